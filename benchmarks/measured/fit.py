"""Fits the constants that only measurements can give, and predicts each kernel from a fit on all others.

The latency of each kernel is predicted at five values of each constant, all others in the middle of their
ranges, whatever the target table says. A fit searches, coordinate by coordinate, the values with the least
mean |ln(predicted / measured)|, taking changes of ln(latency) by different constants to add up; the error
that is given, and the kernel that was left out, are predicted at these values anew. Compiled programs are
kept, so that a prediction costs one schedule. No table is changed: who calibrates reads the result and
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import log
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

from benchmarks.measured.cases import Case, CaseError
from benchmarks.measured.runs import job_of
from benchmarks.measured.scores import scores
from nki_sim import targets
from nki_sim.compiler.compiled_program import CompiledProgram
from nki_sim.compiler.pass_pipeline import compile_program
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.schedule import schedule
from nki_sim.timing.uncertainty import constant_ranges

Constants = tuple[tuple[str, float], ...]
"""Names and values, sorted by name."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Range:
    """Where a fitted constant may lie; `compiles` when what the compiler does depends on it too."""

    low: float
    high: float
    compiles: bool = False

    def at(self, share: float) -> float:
        """The value at a share of the range."""
        return self.low + (self.high - self.low) * share


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

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)

_STEPS = (1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)

_PULL = 0.01
"""What it costs to move all constants to the ends of their ranges: so few kernels do not tell all of them."""


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
        # Spawned, not forked: the parent has threads.
        self._pool = ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def middle(self) -> dict[str, float]:
        """Where every search begins."""
        return {name: one.at(0.5) for name, one in self.ranges.items()}

    def latencies_ms(self, asked: Sequence[tuple[int, Mapping[str, float]]]) -> list[float]:
        """Predicted latency of each (number of a case, values of constants)."""
        keys = [(number, tuple(sorted(values.items()))) for number, values in asked]
        new = [item for item in dict.fromkeys(keys) if item not in self._known]
        waiting = [
            self._pool.submit(
                _retime_program, self._files[number], self.cases[number].target, values, self._compiling
            )
            for number, values in new
        ]
        self._known.update(zip(new, (future.result() for future in waiting), strict=True))
        return [self._known[item] for item in keys]


@dataclass(frozen=True)
class Curves:
    """How the latency of each kernel changes with each constant, all others in the middle of their ranges.

    `middle[k]` is ln(predicted / measured) of kernel k; `changes[k][name]` are the changes of that at
    `_SHARES` of the constant's range.
    """

    ranges: Mapping[str, Range]
    middle: dict[int, float]
    changes: dict[int, dict[str, list[float]]]

    @classmethod
    def of(cls, timer: Timer, tell: Tell, *, numbers: Sequence[int] | None = None) -> Self:
        """The curves of a timer's kernels, or of those with these numbers."""
        centre, numbers = timer.middle(), range(len(timer.cases)) if numbers is None else numbers
        times = timer.latencies_ms([(number, centre) for number in numbers])
        base = dict(zip(numbers, times, strict=True))
        changes: dict[int, dict[str, list[float]]] = {number: {} for number in numbers}
        for name, one in timer.ranges.items():
            tell(f"fit: {name}")
            points = [{**centre, name: one.at(share)} for share in _SHARES]
            found = timer.latencies_ms([(number, point) for number in numbers for point in points])
            for place, number in enumerate(numbers):
                mine = found[place * len(points) : (place + 1) * len(points)]
                changes[number][name] = [log(latency_ms / base[number]) for latency_ms in mine]
        middle = {number: log(base[number] / timer.cases[number].measured["latency"]) for number in numbers}
        return cls(timer.ranges, middle, changes)

    def error(self, shares: Mapping[str, float], numbers: Sequence[int]) -> float:
        """Mean |ln(predicted / measured)| of some kernels, and how far the constants are from the middle."""
        total = 0.0
        for number in numbers:
            moves = (_between(self.changes[number][name], share) for name, share in shares.items())
            total += abs(self.middle[number] + sum(moves))
        away = sum((2 * share - 1) ** 2 for share in shares.values()) / len(shares)
        return total / len(numbers) + _PULL * away


def _between(points: Sequence[float], share: float) -> float:
    """The value at a share of the range, straight between the points."""
    place = share * (len(points) - 1)
    below = min(int(place), len(points) - 2)
    return points[below] + (points[below + 1] - points[below]) * (place - below)


def _retime_program(file: str, target: str, values: Constants, compiling: frozenset[str]) -> float:
    changed = _with(targets.load(target), values)
    seen = tuple(item for item in values if item[0] in compiling)
    return schedule(_compile_program(file, target, seen).program, changed).latency_ms


@lru_cache(maxsize=64)
def _compile_program(file: str, target: str, values: Constants) -> CompiledProgram:
    program = Program.from_bytes(Path(file).read_bytes())
    return compile_program(program, _with(targets.load(target), values))


def _with(target: Target, values: Constants) -> Target:
    whole = {name: type(getattr(target, name)) is int for name, _ in values}
    changed: dict[str, Any] = {name: round(value) if whole[name] else value for name, value in values}
    return replace(target, **changed)


def fit_constants(timer: Timer, curves: Curves, numbers: Sequence[int], *, tell: Tell) -> dict[str, Any]:
    """The values with the least error on some kernels; the error that they really have."""
    shares = dict.fromkeys(curves.ranges, 0.5)
    for step in _STEPS:
        shares = _search(curves, numbers, shares, step)
    values = {name: one.at(shares[name]) for name, one in curves.ranges.items()}
    found = timer.latencies_ms([(number, values) for number in numbers])
    measured = [timer.cases[number].measured["latency"] for number in numbers]
    error = sum(abs(log(one / other)) for one, other in zip(found, measured, strict=True)) / len(numbers)
    tell(f"fit: mean |ln ratio| {error:.4f}, {_format_values(values)}")
    return {"constants": values, "mean_abs_log_ratio": error}


def _search(
    curves: Curves, numbers: Sequence[int], shares: dict[str, float], step: float
) -> dict[str, float]:
    """Go through the constants until no step of this size helps any of them."""
    error, improved = curves.error(shares, numbers), True
    while improved:
        improved = False
        for name, at in tuple(shares.items()):
            for share in (at - step, at + step):
                moved = {**shares, name: share}
                found = curves.error(moved, numbers) if 0.0 <= share <= 1.0 else error
                if found < error - 1e-9:
                    shares, error, improved = moved, found, True
    return shares


def leave_one_out(timer: Timer, curves: Curves, *, tell: Tell) -> dict[str, Any]:
    """Each kernel predicted with constants fitted on all others."""
    rows, pairs = [], []
    for number, case in enumerate(timer.cases):
        tell(f"leave one out: {case.name}")
        others = [other for other in range(len(timer.cases)) if other != number]
        constants = fit_constants(timer, curves, others, tell=tell)["constants"]
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
                "outside": _outside(constants, targets.load(case.target)),
            }
        )
    return {"kernels": rows, "overall": scores(pairs)}


def _outside(constants: Mapping[str, float], target: Target) -> list[str]:
    """Constants that lie further from the table's value than intervals assume."""
    known = constant_ranges(target)
    return [
        name
        for name, value in constants.items()
        if name not in known or not known[name].low <= value <= known[name].high
    ]


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """What was fitted, for people."""
    if "fit" in result:
        error = result["fit"]["mean_abs_log_ratio"]
        constants = _format_values(result["fit"]["constants"])
        yield f"fitted on all kernels, mean |ln ratio| {error:.4f}: {constants}"
    if "leave_one_out" not in result:
        return
    yield "each kernel with constants fitted on the others (the compiler's rules were worked out on all):"
    for one in result["leave_one_out"]["kernels"]:
        yield (
            f"    {one['kernel']:<46} measured {one['measured_ms']:.3f} ms, "
            f"predicted {one['predicted_ms']:.3f} ms, ratio {one['ratio']:.3f}"
        )
        yield f"        {_format_values(one['constants'])}"
        if one["outside"]:
            yield f"        outside the range that intervals assume: {', '.join(one['outside'])}"
    overall = result["leave_one_out"]["overall"]
    yield f"    median APE {overall['median_ape_percent']:.1f} %, worst {overall['worst_ape_percent']:.1f} %"


def _format_values(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
