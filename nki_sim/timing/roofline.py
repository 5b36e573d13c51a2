"""Places a prediction under the roofline: the work, the plain bound and the model bound.

If the caller knows the problem, the work is the problem's. Otherwise it is estimated from the program: the
parts of the inputs that it reads, once; its outputs, written once; its products without transposes. Copies
from inputs to outputs stay copies. The estimate is less than what the program does. It may exceed what
another kernel for the same problem needs, if this program multiplies more than necessary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nki_sim.dtypes import DTYPES, MX_DTYPES
from nki_sim.forms import PRODUCTS, Form
from nki_sim.program.ir import Program
from nki_sim.timing.bounds import MinimalWork, peak_flops_per_ns, plain_bound, tight_bound
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.traffic import count_forms, form_flops, is_transpose

_RATES = ("float32", "bfloat16", "float8_e4m3", "float8_e4m3fn_x4")
"""Types by the rate of their products; if a program has several, the fastest sets its bound."""

_COPIES = frozenset({"dma_copy", "dma_transpose"})

_OPERANDS = ("stationary", "moving")


@dataclass(frozen=True, slots=True)
class Roofline:
    """Both bounds, how much of them the prediction reaches, and the side of the ridge the work lies on.

    `flops_per_byte` is that of the work; `ridge_flops_per_byte` is where the two limits of the plain roofline
    meet.
    """

    work: MinimalWork
    work_of: Literal["problem", "kernel"]
    plain_ms: float
    tight_ms: float
    plain_percent: float
    tight_percent: float
    flops_per_byte: float | None
    ridge_flops_per_byte: float


def roofline(forecast: Forecast, work: MinimalWork | None = None) -> Roofline:
    """Place a prediction under the bounds of `work`, or of the program's own minimal work."""
    target, latency = forecast.target, forecast.latency_ms
    least = work or minimal_work(forecast.traced)
    plain, tight = plain_bound(least, target), tight_bound(least, target)
    moved = least.read_bytes + least.write_bytes
    return Roofline(
        work=least,
        work_of="kernel" if work is None else "problem",
        plain_ms=plain,
        tight_ms=tight,
        plain_percent=100.0 * plain / latency,
        tight_percent=100.0 * tight / latency,
        flops_per_byte=least.matmul_flops / moved if moved else None,
        ridge_flops_per_byte=peak_flops_per_ns(least.matmul_dtype, target) / target.hbm_bytes_per_ns,
    )


def minimal_work(program: Program) -> MinimalWork:
    """The least work of any kernel with this program's inputs, outputs and products."""
    products = [
        (form_flops(form) * count, _product_rate(form))
        for form, count in zip(program.forms, count_forms(program), strict=True)
        if form.op in PRODUCTS and not is_transpose(form)
    ]
    return MinimalWork(
        read_bytes=_touched_bytes(program, program.inputs, writes=False),
        write_bytes=_touched_bytes(program, program.outputs, writes=True),
        matmul_flops=sum(flops for flops, _ in products),
        copied_bytes=_copied_bytes(program),
        matmul_dtype=_RATES[max((rate for _, rate in products), default=0)],
    )


def _product_rate(form: Form) -> int:
    """Which of `_RATES` applies to a product; ones and zeros need fewer passes of float32."""
    moving = form["moving"]
    if moving.dtype in MX_DTYPES:
        return 3
    if moving.dtype == "float32" and not any(form.param(f"is_{role}_onezero") for role in _OPERANDS):
        return 0
    return 2 if moving.itemsize == 1 else 1


def _copied_bytes(program: Program) -> int:
    """Bytes copied directly from inputs to outputs, not through on-chip memory."""
    cells, found = program.cells, 0
    direct = np.array([form.op in _COPIES and form["src"].in_hbm for form in program.forms], dtype=bool)
    for number in np.flatnonzero(direct[program.form_ids]).tolist() if len(direct) else ():
        form, first = program.forms[program.form_ids[number]], int(cells.first[number])
        roles = [item.role for item in form.operands]
        src, dst = (int(cells.tensor[first + roles.index(role)]) for role in ("src", "dst"))
        if src in program.inputs and dst in program.outputs:
            found += min(form["src"].nbytes, form["dst"].nbytes)
    return found


def _touched_bytes(program: Program, tensors: tuple[int, ...], *, writes: bool) -> int:
    """Bytes of some tensors that the program accesses, each counted once."""
    cells = program.cells
    sizes = np.array([item.nbytes for item in program.operands], dtype=np.int64)[cells.operand]
    chosen = cells.writes if writes else cells.reads
    moved = np.bincount(cells.tensor[chosen], sizes[chosen], minlength=len(program.tensor_sites))
    return sum(
        min(int(moved[tensor]), program.site(tensor).size * DTYPES[program.site(tensor).dtype].itemsize)
        for tensor in tensors
    )
