"""Compares two predictions: what changed between them, and why one is faster.

The critical path of each adds up to its latency, so the differences of the parts add up to the difference of
the latencies: by engine, and for each engine by operator. Latency of semaphores and DMA is a part of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nki_sim.timing.counters import ConventionName, profile_counters
from nki_sim.timing.critical_path import LATENCY, PathPart, busy_ms, critical_path
from nki_sim.timing.forecast import Forecast, unknown_latency_error
from nki_sim.timing.units import format_size, format_time

SAME_RATIO = 0.001
"""Predictions with a smaller relative difference count as equal."""

SAME_MS = 1e-7
"""Times that differ by less, a fraction of a cycle, differ only by rounding."""

_REASON_RATIO = 0.05
"""A part is a reason if it has at least this share of the total gain."""

_INSTRUCTIONS = 3
"""Number of instructions that a reason names."""

_TRAFFIC = {
    "hbm_read_bytes": "reads from HBM",
    "hbm_write_bytes": "writes to HBM",
    "spill_save_bytes": "spills to HBM",
    "spill_reload_bytes": "reloads what it spilled",
}


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure in both predictions."""

    name: str
    a: float
    b: float

    @property
    def weight(self) -> float:
        """How much it changed: 0 for equal figures, 1 if one of them is zero."""
        return abs(self.a - self.b) / max(abs(self.a), abs(self.b), 1e-300)


@dataclass(frozen=True, slots=True)
class PathChange:
    """Time on the critical path in an engine, or in `latency`, and its operators, most changed first.

    `busy` is how long that engine runs altogether in ms, None if the part is not an engine.
    """

    part: str
    a_ms: float
    b_ms: float
    busy: FigureChange | None
    operators: list[FigureChange]

    @property
    def is_changed(self) -> bool:
        """Whether its time differs by more than rounding."""
        return abs(self.a_ms - self.b_ms) >= SAME_MS


@dataclass(frozen=True, slots=True)
class ForecastDifference:
    """`faster` is "a", "b" or "neither"; `speedup` is how many times longer the slower one takes.

    If either kernel has a loop with a data-dependent number of iterations, `faster` is "unknown" and
    `speedup` is None, because the times are those of one iteration.

    `instructions` are counts by engine and operator, `counters` the profile counters, both changed ones only
    and most changed first. The parts of `path` add up to the difference of the latencies. `reasons` are
    sentences about the faster kernel.
    """

    a_ms: float
    b_ms: float
    faster: str
    speedup: float | None
    path: list[PathChange]
    instructions: list[FigureChange]
    counters: list[FigureChange]
    reasons: list[str]


def compare_forecasts(
    a: Forecast, b: Forecast, convention: ConventionName = "explorer"
) -> ForecastDifference:
    """Compare two predictions for the same work."""
    faster = _find_faster(a, b)
    slowest, fastest = max(a.latency_ms, b.latency_ms), min(a.latency_ms, b.latency_ms)
    path = _path_changes(a, b)
    instructions = _list_changes(_count_instructions(a), _count_instructions(b))
    counters = _list_changes(profile_counters(a, convention), profile_counters(b, convention))
    return ForecastDifference(
        a_ms=a.latency_ms,
        b_ms=b.latency_ms,
        faster=faster,
        speedup=None if faster == "unknown" else slowest / fastest,
        path=path,
        instructions=instructions,
        counters=counters,
        reasons=explain_difference(faster, path, instructions, counters) if faster in {"a", "b"} else [],
    )


def _find_faster(a: Forecast, b: Forecast) -> str:
    if unknown_latency_error(a.traced) or unknown_latency_error(b.traced):
        return "unknown"
    if FigureChange("", a.latency_ms, b.latency_ms).weight < SAME_RATIO:
        return "neither"
    return "a" if a.latency_ms < b.latency_ms else "b"


def _list_changes(a: dict[str, float | int], b: dict[str, float | int]) -> list[FigureChange]:
    """The figures that differ, most changed first."""
    found = [FigureChange(name, a.get(name, 0), b.get(name, 0)) for name in {**a, **b}]
    return sorted((item for item in found if item.weight > 0.0), key=lambda item: -item.weight)


def _count_instructions(forecast: Forecast) -> dict[str, float | int]:
    program = forecast.compiled.program
    counted = Counter(program.form_ids.tolist())
    found: Counter[str] = Counter()
    for form, count in counted.items():
        found[f"{program.forms[form].engine} {program.forms[form].op}"] += count
    return dict(found)


def _path_changes(a: Forecast, b: Forecast) -> list[PathChange]:
    spent = [_time_by_operator(critical_path(item.compiled.program, item.timeline)) for item in (a, b)]
    worked = [busy_ms(item.timeline) for item in (a, b)]
    made = []
    for part in {part for found in spent for part, _ in found}:
        ours = [{op: ms for (name, op), ms in found.items() if name == part} for found in spent]
        a_ms, b_ms = (sum(found.values()) for found in ours)
        moved = [item for item in _list_changes(*ours) if abs(item.a - item.b) >= SAME_MS]
        changes = sorted(moved, key=lambda item: -abs(item.a - item.b))
        busy = [item[part] for item in worked if part in item]
        made.append(PathChange(part, a_ms, b_ms, FigureChange("busy_ms", *busy) if busy else None, changes))
    return sorted(made, key=lambda item: (-abs(item.a_ms - item.b_ms), item.part))


def _time_by_operator(parts: list[PathPart]) -> dict[tuple[str, str], float | int]:
    """Time on the critical path by engine and operator, without the latency before instructions run."""
    found: dict[tuple[str, str], float | int] = {}
    for part in parts:
        for key, ms in (
            ((part.engine or part.op, part.op), part.ms - part.wait_ms),
            ((LATENCY, part.op), part.wait_ms),
        ):
            found[key] = found.get(key, 0.0) + ms
    return found


def explain_difference(
    faster: str, path: list[PathChange], instructions: list[FigureChange], counters: list[FigureChange]
) -> list[str]:
    """Describe where the faster kernel gains on the critical path, and which traffic it saves."""
    sign = 1.0 if faster == "b" else -1.0
    latency = max(sum(part.a_ms for part in path), sum(part.b_ms for part in path))
    gained = sum(max(0.0, sign * (part.a_ms - part.b_ms)) for part in path)
    said = [
        _describe_gain(part, sign, latency, instructions=instructions)
        for part in path
        if sign * (part.a_ms - part.b_ms) > _REASON_RATIO * gained
    ]
    for change in counters:
        old, new = _slow_and_fast(change, sign)
        if change.name in _TRAFFIC and new < old:
            said.append(f"it {_TRAFFIC[change.name]} {format_size(new)} instead of {format_size(old)}")
    return said


def _describe_gain(part: PathChange, sign: float, latency: float, *, instructions: list[FigureChange]) -> str:
    """Describe where critical-path time goes away, what else shrinks, and which instructions changed."""
    less = _describe_times(FigureChange("", part.a_ms, part.b_ms), sign, latency)
    if part.busy is None:
        name = "latency of semaphores and DMA" if part.part == LATENCY else part.part.replace("_", " ")
        return f"{name} is on the critical path for {less}"
    old, new = _slow_and_fast(part.busy, sign)
    busy = (
        "" if old - new < SAME_RATIO * old else f" and busy for {_describe_times(part.busy, sign, latency)}"
    )
    counts = _describe_counts(part.part, sign, instructions)
    return f"{part.part} is on the critical path for {less}{busy}{f', with {counts}' if counts else ''}"


def _describe_counts(engine: str, sign: float, instructions: list[FigureChange]) -> str:
    """Describe the instructions of an engine whose count changed, most changed first."""
    mine = [item for item in instructions if item.name.startswith(f"{engine} ")]
    said = []
    for item in sorted(mine, key=lambda item: (-abs(item.a - item.b), item.name))[:_INSTRUCTIONS]:
        old, new = _slow_and_fast(item, sign)
        said.append(f"{new} {item.name.removeprefix(f'{engine} ')} instead of {old}")
    return ", ".join([*said, "..."] if len(mine) > _INSTRUCTIONS else said)


def _describe_times(change: FigureChange, sign: float, latency: float) -> str:
    """The faster kernel's time and the other's, in the unit of the latency."""
    old, new = _slow_and_fast(change, sign)
    return f"{format_time(new, latency)} instead of {format_time(old, latency)}"


def _slow_and_fast(change: FigureChange, sign: float) -> tuple[float, float]:
    """The slower kernel's figure, then the faster one's."""
    return (change.a, change.b) if sign > 0 else (change.b, change.a)
