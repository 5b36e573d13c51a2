"""Fits the constants that only measurements can give, and predicts each kernel from a fit on all others.

A fit is a coordinate search: every constant starts in the middle of its range, whatever the target table
says, and moves by a quarter, an eighth and a sixteenth of the range while the error of the kernels falls. The
error is the mean of |ln(predicted / measured)|. Compiled programs are kept, so that a step costs at most one
schedule of each kernel; a constant that changes nothing about a kernel at either end of its range costs that
kernel nothing. No table is changed: who calibrates reads the result and decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache
from math import log
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

from benchmarks.measured.cases import Case, CaseError
from benchmarks.measured.runs import job_of
from benchmarks.measured.scores import scores
from nki_sim import targets
from nki_sim.compiler.compile import compiled
from nki_sim.compiler.compiled import Compiled
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.schedule import schedule

Constants = tuple[tuple[str, float], ...]
"""Names and values, sorted by name."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Range:
    """Where a fitted constant may lie; `compiles` when what the compiler does depends on it too."""

    low: float
    high: float
    compiles: bool = False


FITTED: dict[str, Range] = {
    "tensor_overhead_cycles": Range(40, 120),
    "vector_overhead_sbuf_cycles": Range(60, 160),
    "vector_overhead_psum_cycles": Range(40, 80),
    "scalar_overhead_sbuf_cycles": Range(60, 170),
    "scalar_overhead_psum_cycles": Range(20, 120),
    "psum_accumulate_stretch": Range(1.0, 1.8),
    "dma_engine_bytes_per_ns": Range(15.0, 18.0),
    "issue_window": Range(2, 14),
}
"""The constants that were fitted to measured profiles, with the ranges that documents leave open."""

_STEPS = (1 / 4, 1 / 8, 1 / 16)


def chosen(names: str | None) -> dict[str, Range]:
    """The listed constants, or those named: `a,b` or `a=low:high,b`; a range not given is half to twice.

    Raises:
        CaseError: a name is no constant of the target tables, or a range is none.
    """
    if not names:
        return FITTED
    return dict(_chosen(item) for item in names.split(","))


def _chosen(text: str) -> tuple[str, Range]:
    name, _, bounds = text.partition("=")
    if name not in {field.name for field in fields(Target)} - {"name", "sources"}:
        raise CaseError(f"--constants: the target tables have no {name!r}")
    if not bounds:
        value = float(getattr(targets.load("trn1"), name))
        return name, FITTED.get(name, Range(value / 2, value * 2, compiles=True))
    try:
        low, high = (float(item) for item in bounds.split(":"))
    except ValueError as error:
        raise CaseError(f"--constants: {text!r} is not of the form name=low:high") from error
    return name, Range(low, high, compiles=name not in FITTED or FITTED[name].compiles)


class Timer:
    """Predicted latencies of some kernels under any values of constants; remembers all it was asked."""

    def __init__(self, cases: Sequence[Case], programs: Path, jobs: int, ranges: Mapping[str, Range]) -> None:
        self.cases = list(cases)
        self.ranges = ranges
        self._compiling = frozenset(name for name, one in ranges.items() if one.compiles)
        self._files = [str(job_of(case, programs)["program"]) for case in cases]
        self._known: dict[tuple[int, Constants], float] = {}
        self._matters: list[frozenset[str]] = [frozenset(ranges) for _ in cases]
        # Spawned, not forked: the parent has threads.
        self._pool = ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn"))

    def __enter__(self) -> Self:
        self._probe()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def middle(self) -> dict[str, float]:
        """Where every search begins."""
        return {name: (one.low + one.high) / 2 for name, one in self.ranges.items()}

    def _probe(self) -> None:
        """Find out which constants matter to which kernel: those that move its latency."""
        middle, numbers = self.middle(), range(len(self.cases))
        base = self.latencies_ms([(number, middle) for number in numbers])
        matters: list[set[str]] = [set() for _ in numbers]
        for name, one in self.ranges.items():
            for value in (one.low, one.high):
                moved = self.latencies_ms([(number, {**middle, name: value}) for number in numbers])
                for number in numbers:
                    if moved[number] != base[number]:
                        matters[number].add(name)
        self._matters = [frozenset(items) for items in matters]
        self._known = {
            (number, self._key(number, dict(values))): found
            for (number, values), found in self._known.items()
        }

    def latencies_ms(self, asked: Sequence[tuple[int, Mapping[str, float]]]) -> list[float]:
        """Predicted latency of each (number of a case, values of constants)."""
        keys = [(number, self._key(number, values)) for number, values in asked]
        new = [item for item in dict.fromkeys(keys) if item not in self._known]
        waiting = [
            self._pool.submit(
                _retimed, self._files[number], self.cases[number].target, values, self._compiling
            )
            for number, values in new
        ]
        self._known.update(zip(new, (future.result() for future in waiting), strict=True))
        return [self._known[item] for item in keys]

    def _key(self, number: int, values: Mapping[str, float]) -> Constants:
        """What matters to a kernel; all else is in the middle of its range."""
        middle = self.middle()
        chosen = {name: values[name] if name in self._matters[number] else middle[name] for name in values}
        return tuple(sorted(chosen.items()))


def _retimed(file: str, target: str, values: Constants, compiling: frozenset[str]) -> float:
    changed = _with(targets.load(target), values)
    seen = tuple(item for item in values if item[0] in compiling)
    return schedule(_compiled(file, target, seen).program, changed).latency_ms


@cache
def _compiled(file: str, target: str, values: Constants) -> Compiled:
    program = Program.from_bytes(Path(file).read_bytes())
    return compiled(program, _with(targets.load(target), values))


def _with(target: Target, values: Constants) -> Target:
    whole = {name: type(getattr(target, name)) is int for name, _ in values}
    changed: dict[str, Any] = {name: round(value) if whole[name] else value for name, value in values}
    return replace(target, **changed)


Error = Callable[[Mapping[str, float]], float]


def fitted(timer: Timer, *, left_out: int | None = None, tell: Tell) -> dict[str, Any]:
    """The values with the least error on all kernels, or on all but one; and that error."""
    numbers = [number for number in range(len(timer.cases)) if number != left_out]

    def error_of(values: Mapping[str, float]) -> float:
        found = timer.latencies_ms([(number, values) for number in numbers])
        measured = [timer.cases[number].measured["latency"] for number in numbers]
        return sum(abs(log(one / other)) for one, other in zip(found, measured, strict=True)) / len(numbers)

    values = timer.middle()
    error = error_of(values)
    for share in _STEPS:
        values, error = _pass(values, error, timer.ranges, share, error_of)
        tell(f"fit: steps of {share:g} of the range, mean error {error:.4f}, {_shown(values)}")
    return {"constants": values, "mean_abs_log_ratio": error}


def _pass(
    values: dict[str, float], error: float, ranges: Mapping[str, Range], share: float, error_of: Error
) -> tuple[dict[str, float], float]:
    """Go through the constants until no step of this size helps any of them."""
    improved = True
    while improved:
        improved = False
        for name, one in ranges.items():
            step = share * (one.high - one.low)
            for value in (values[name] - step, values[name] + step):
                moved = {**values, name: value}
                found = error_of(moved) if one.low <= value <= one.high else error
                if found < error - 1e-6:
                    values, error, improved = moved, found, True
    return values, error


def leave_one_out(timer: Timer, *, tell: Tell) -> dict[str, Any]:
    """Each kernel predicted with constants fitted on all others."""
    rows, pairs = [], []
    for number, case in enumerate(timer.cases):
        tell(f"leave one out: {case.name}")
        constants = fitted(timer, left_out=number, tell=tell)["constants"]
        predicted_ms = timer.latencies_ms([(number, constants)])[0]
        measured_ms = case.measured["latency"]
        pairs.append((measured_ms, predicted_ms))
        rows.append(
            {
                "kernel": case.name,
                "measured_ms": measured_ms,
                "predicted_ms": predicted_ms,
                "ratio": predicted_ms / measured_ms,
                "constants": constants,
            }
        )
    return {"kernels": rows, "overall": scores(pairs)}


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """What was fitted, for people."""
    if "fit" in result:
        error = result["fit"]["mean_abs_log_ratio"]
        yield f"fitted on all kernels, mean |ln ratio| {error:.4f}: {_shown(result['fit']['constants'])}"
    if "leave_one_out" not in result:
        return
    yield "each kernel with constants fitted on the others:"
    for one in result["leave_one_out"]["kernels"]:
        yield f"    {one['kernel']:<46} ratio {one['ratio']:.3f}  {_shown(one['constants'])}"
    overall = result["leave_one_out"]["overall"]
    yield f"    median APE {overall['median_ape_percent']:.1f} %, worst {overall['worst_ape_percent']:.1f} %"


def _shown(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
