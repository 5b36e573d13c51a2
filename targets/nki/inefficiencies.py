"""Names what a kernel does in vain, from the counters of a profile, predicted or measured alike.

Five kinds are looked for: bytes read from HBM more than once, bytes spilled, transposes on the tensor engine,
those of them that were done before, and a tensor engine that is busy below its rate. A share below its
threshold is not worth a line. Repeated transposes are seen in programs alone: a measured profile does not say
what an instruction read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from nki_sim.dtypes import DTYPES
from nki_sim.flow.instruction_values import number_instructions
from nki_sim.program.ir import Program
from nki_sim.timing.traffic import form_flops, is_transpose

REDUNDANT_READS, SPILLS, TRANSPOSES, REPEATED_TRANSPOSES, SLOW_PRODUCTS = (
    "redundant_dma", "spill_traffic", "redundant_transposes", "repeated_transposes",
    "tensor_engine_below_rate",
)  # fmt: skip

_LEAST_EXTRA = 0.10  # of the bytes read
_LEAST_SPILL = 0.02  # of all traffic
_LEAST_TRANSPOSES = 0.10  # of the tensor engine's work
_LEAST_BUSY = 0.30  # of the run
_MOST_RATE = 0.60  # of the peak rate
_NAMED_TENSORS = 3
_NAMED_LINES = 3
_MOST_INSTRUCTIONS = 1 << 15  # of a program in which repeated work is looked for: a second of time
_RELOADED = 1.5  # times, from which a tensor is named


@dataclass(frozen=True, slots=True)
class Inefficiency:
    """`percent` is the share that is in vain: of traffic, of the engine's work or of its busy time."""

    code: str
    percent: float
    message: str

    def to_json(self) -> dict[str, str | float]:
        """Return it for a profile."""
        return {"code": self.code, "percent": round(self.percent, 1), "message": self.message}


def count_input_loads(program: Program) -> dict[str, float]:
    """How many times over a program reads each input from HBM, the most often read first."""
    cells = program.cells
    nbytes = np.array([item.nbytes for item in program.operands], dtype=np.int64)[cells.operand]
    moved = np.bincount(
        cells.tensor[cells.reads], nbytes[cells.reads], minlength=len(program.tensor_sites)
    ).tolist()
    sites = {number: program.site(number) for number in program.inputs}
    found = {
        site.name: moved[number] / (site.size * DTYPES[site.dtype].itemsize) for number, site in sites.items()
    }
    return dict(sorted(found.items(), key=lambda one: -one[1]))


@dataclass(frozen=True, slots=True)
class RepeatedTransposes:
    """Transposes on the tensor engine whose result was there before: their share of the work of all, 0 to 1,
    and by source line how many there are and how many of these are repeated.
    """

    ratio: float
    by_line: Mapping[int, tuple[int, int]]


def find_repeated_transposes(program: Program) -> RepeatedTransposes | None:
    """Return the transposes that a program repeats on data that did not change.

    None if it transposes nothing, has a loop whose iterations depend on data, or is too long to be looked at.
    """
    if len(program) > _MOST_INSTRUCTIONS:
        return None
    work = [form_flops(form) if is_transpose(form) else 0 for form in program.forms]
    values = number_instructions(program) if any(work) else None
    if values is None:
        return None
    seen, lines = set[tuple[int, int]](), dict[int, tuple[int, int]]()
    total = repeated = 0.0
    columns = (program.form_ids, program.cores, program.lines)
    for value, form, core, line in zip(values, *(one.tolist() for one in columns), strict=True):
        if not work[form]:
            continue
        again = (core, value) in seen
        seen.add((core, value))
        total += work[form]
        repeated += again * work[form]
        all_, known = lines.get(line, (0, 0))
        lines[line] = all_ + 1, known + again
    return RepeatedTransposes(repeated / total, {line: one for line, one in lines.items() if one[1]})


def find_inefficiencies(
    counters: Mapping[str, float],
    *,
    input_bytes: int,
    peak_flops: float,
    loads: Mapping[str, float] = MappingProxyType({}),
    program: Program | None = None,
) -> list[Inefficiency]:
    """Return what a kernel does in vain, the largest share first.

    `counters` have the profiler's names, in seconds and bytes; `input_bytes` is what must be read at least;
    `peak_flops` is the tensor engine's rate of bf16 products, in operations per second, in which the adjusted
    counters are given; `loads` says how many times over tensors were loaded. `program` is what ran, if the
    profile is predicted.
    """
    reloaded = [f"{name} {times:.2g} times" for name, times in loads.items() if times >= _RELOADED]
    found = [
        *_find_redundant_reads(counters, input_bytes, reloaded),
        *_find_spills(counters),
        *_find_transposes(counters, program),
        *_find_slow_products(counters, peak_flops),
    ]
    return sorted(found, key=lambda one: -one.percent)


def _find_redundant_reads(
    counters: Mapping[str, float], input_bytes: int, reloaded: Sequence[str]
) -> Iterator[Inefficiency]:
    read = counters.get("hbm_read_bytes", 0.0) - counters.get("spill_reload_bytes", 0.0)
    if read <= 0 or input_bytes <= 0 or 1 - input_bytes / read < _LEAST_EXTRA:
        return
    named = f" ({'; '.join(reloaded[:_NAMED_TENSORS])})" if reloaded else ""
    text = f"reads {read / 1e6:.4g} MB from HBM, {read / input_bytes:.2f} times its inputs{named}"
    yield Inefficiency(REDUNDANT_READS, 100 * (1 - input_bytes / read), text)


def _find_spills(counters: Mapping[str, float]) -> Iterator[Inefficiency]:
    spilled = counters.get("spill_save_bytes", 0.0) + counters.get("spill_reload_bytes", 0.0)
    traffic = counters.get("hbm_read_bytes", 0.0) + counters.get("hbm_write_bytes", 0.0)
    if spilled <= 0 or traffic <= 0 or spilled < _LEAST_SPILL * traffic:
        return
    share = min(1.0, spilled / traffic)
    text = f"{spilled / 1e6:.4g} MB of the traffic to HBM are values that did not fit into SBUF"
    yield Inefficiency(SPILLS, 100 * share, text)


def _find_transposes(counters: Mapping[str, float], program: Program | None) -> Iterator[Inefficiency]:
    work, transposes = counters.get("hardware_flops", 0.0), counters.get("transpose_flops", 0.0)
    if work <= 0 or transposes < _LEAST_TRANSPOSES * work:
        return
    share = min(1.0, transposes / work)
    text = f"{100 * share:.3g} % of the tensor engine's operations are transposes"
    yield Inefficiency(TRANSPOSES, 100 * share, text)
    repeats = find_repeated_transposes(program) if program is not None else None
    if repeats is None or repeats.ratio * share < _LEAST_TRANSPOSES:
        return
    often = sorted(repeats.by_line.items(), key=lambda one: (-one[1][1], one[0]))[:_NAMED_LINES]
    named = "; ".join(f"line {line}: {again} of {count}" for line, (count, again) in often)
    percent = 100 * repeats.ratio * share
    text = f"{percent:.3g} % of the tensor engine's operations transpose unchanged data again ({named})"
    yield Inefficiency(REPEATED_TRANSPOSES, percent, text)


def _find_slow_products(counters: Mapping[str, float], peak_flops: float) -> Iterator[Inefficiency]:
    work, busy_s = (counters.get(f, 0.0) for f in ("adjusted_hardware_flops", "tensor_engine_active_time"))
    total_s = counters.get("total_time", 0.0)
    if work <= 0 or peak_flops <= 0 or busy_s <= 0 or busy_s < _LEAST_BUSY * total_s:
        return
    rate = work / busy_s / peak_flops
    if rate < _MOST_RATE:
        text = f"while it is busy, the tensor engine works at {100 * rate:.3g} % of its rate"
        yield Inefficiency(SLOW_PRODUCTS, 100 * (1 - rate), text)
