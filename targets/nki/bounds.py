"""Lower bounds on latency on Trainium: what the performance model allows, and what the device's peaks allow.

`tight_bound_ms` follows from the simulator's tables: no prediction of the model can be lower. A device may be
faster than the model, so this bound refuses nothing. `physical_bound` follows from peak rates alone; each has
its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nki_sim import targets
from nki_sim.dtypes import DTYPES, MX_DTYPES
from nki_sim.forms import PRODUCTS, Form
from nki_sim.operators.rules.matrix import V3
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.bounds import MinimalWork, peak_flops_per_ns, tight_bound
from nki_sim.timing.traffic import count_forms, form_flops, is_transpose
from seeds.spec import ProblemWork

SPLIT_PASSES = 3
"""Products of 16-bit parts that one of float32 needs: high by high, and high by low in both orders.

No known way takes fewer passes of the tensor engine: float32 itself takes four, and parts of eight bits need
more products than they are faster.
"""

_FAST_ELEMENTS = 4
"""Elements per cycle and lane of VectorE in 16-bit types."""

_FAST_SCALAR_ELEMENTS = 2
"""The same of ScalarE, where it has a fast mode."""

_MX_DTYPE = "float8_e4m3fn_x4"
"""One of the MX types, whose products all have the same rate."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A rate that the device never exceeds, per ns, and who says so."""

    per_ns: float
    source: str


HBM_PEAKS: Mapping[str, Peak] = {
    "trn1": Peak(
        440.2, "440.2 GB/s of HBM: NKIBench's table, more than the 410 GB/s that profilers divide by"
    ),
    "trn2": Peak(
        820.0,
        "820 GB/s of HBM: the most that any published measurement comes to (adamw of NKIBench, 448 MB in "
        "0.548 ms); NKIBench's table has 640 GB/s",
    ),
    "trn3": Peak(
        1386.0,
        "1386 GB/s of HBM: nothing was measured; the 820 GB/s that Trainium 2 came to, as much faster as the "
        "documents say that this chip's HBM is (4.9 to 2.9 TB/s)",
    ),
}
"""Bytes per ns between HBM and one core: the published peak, or what a device was seen to do, if more."""


@dataclass(frozen=True, slots=True)
class PhysicalBound:
    """The least latency that peak rates allow, and the source of the rate that limits it."""

    ms: float
    source: str


def tight_bound_ms(work: ProblemWork, target: str) -> float:
    """Return the least latency that the performance model can predict for the work, in milliseconds."""
    table = targets.load(target)
    return tight_bound(minimal_work(work, table), table)


def minimal_work(work: ProblemWork, table: Target) -> MinimalWork:
    """Return a problem's work in the simulator's terms, done in the fastest known way."""
    passes, dtype = fastest_products(work, table)
    return MinimalWork(
        read_bytes=work.read_bytes,
        write_bytes=work.write_bytes,
        matmul_flops=passes * work.matmul_flops,
        matmul_dtype=dtype,
        activation_elements=work.activation_elements,
        elementwise_elements=work.elementwise_elements,
        # Output that no engine computes may be a copy.
        copied_bytes=max(0, work.write_bytes - 4 * work.elementwise_elements),
    )


def physical_bound(work: ProblemWork, target: str) -> PhysicalBound:
    """Return the least latency that the device's peak rates allow for the work.

    Everything runs at the same time, nothing has an overhead, and any engine computes any function.
    """
    table, hbm = targets.load(target), HBM_PEAKS[target]
    passes, dtype = fastest_products(work, table)
    fast = work.matmul_dtype != "float32"
    vector = _FAST_ELEMENTS if fast and table.vector_fast_modes else max(1.0, table.exponential_speed)
    scalar = _FAST_SCALAR_ELEMENTS if fast and table.scalar_fast_modes else 1
    per_lane = table.vector_clock_ghz * vector + table.scalar_clock_ghz * scalar + table.gpsimd_clock_ghz
    elements = max(work.elementwise_elements, work.activation_elements)
    flops_per_ns = peak_flops_per_ns(dtype, table)
    parts = (
        PhysicalBound(work.total_bytes / hbm.per_ns / 1e6, hbm.source),
        PhysicalBound(
            passes * work.matmul_flops / flops_per_ns / 1e6,
            f"{flops_per_ns / 1e3:.3g} TFLOPS of the tensor engine at its documented clock, in {passes} "
            f"pass{'es' if passes > 1 else ''}",
        ),
        PhysicalBound(
            elements / (table.partitions * per_lane) / 1e6,
            "the documented clocks and widths of VectorE, ScalarE and GpSimd",
        ),
    )
    return max(parts, key=lambda part: part.ms)


def fastest_products(work: ProblemWork, table: Target) -> tuple[int, str]:
    """Return how the problem's products are fastest: passes of the tensor engine, and the type of each."""
    if work.mx and table.mx_contract_max:
        return 1, _MX_DTYPE
    return (SPLIT_PASSES, "bfloat16") if work.matmul_dtype == "float32" else (1, work.matmul_dtype)


def products_bound_ms(program: Program, target: str) -> float:
    """Return the time that a program's own products take at the peak rate of their types, in ms."""
    table = targets.load(target)
    passes = sum(
        form_flops(form) * count * _product_passes(form, table)
        for form, count in zip(program.forms, count_forms(program), strict=True)
        if form.op in PRODUCTS and not is_transpose(form)
    )
    return passes / peak_flops_per_ns("bfloat16", table) / 1e6


def _product_passes(form: Form, table: Target) -> float:
    """Passes of one product; float32 in either operand decides."""
    operands = (form["stationary"], form["moving"])
    if operands[0].dtype in MX_DTYPES:
        return table.matmul_contract_max / table.mx_contract_max
    if any(item.dtype == "float32" for item in operands):
        onezero = any(form.param(f"is_{item.role}_onezero") for item in operands)
        return table.tensor_fp32_onezero_passes if onezero else table.tensor_fp32_passes
    narrow = all(DTYPES[item.dtype].itemsize == 1 for item in operands)
    return 0.5 if narrow and table.generation >= V3 else 1
