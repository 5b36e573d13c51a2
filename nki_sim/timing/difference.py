"""What changed from one prediction to another, and why one of them is faster.

The critical path of each adds up to its latency, so the differences of its parts add up to the difference
of the two: by engine, and for each engine by operator. Latency of semaphores and DMA is a part of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nki_sim.timing.activity import QUEUES_OF, active_ns
from nki_sim.timing.counters import ConventionName, profile
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.path import LATENCY, PathPart, critical_path

SAME_RATIO = 0.001
"""Predictions that differ by less are called equal."""

_TRAFFIC = {
    "hbm_read_bytes": "reads from HBM",
    "hbm_write_bytes": "writes to HBM",
    "spill_save_bytes": "spills to HBM",
    "spill_reload_bytes": "reloads what it spilled",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of both."""

    name: str
    a: float
    b: float

    @property
    def weight(self) -> float:
        """How much it changed: 0 for equal figures, 1 where one of them is nothing."""
        return abs(self.a - self.b) / max(abs(self.a), abs(self.b), 1e-300)


@dataclass(frozen=True, slots=True)
class PathChange:
    """Time on the critical path in an engine, or in `latency`, and its operators, most changed first.

    `busy` is how long that engine runs altogether, None where the part is no engine.
    """

    part: str
    a_ms: float
    b_ms: float
    busy: Change | None
    operators: list[Change]


@dataclass(frozen=True, slots=True)
class Difference:
    """`faster` is "a", "b" or "neither", `speedup` how many times longer the other one takes.

    `instructions` counts them by engine and operator, `counters` are those that changed, most first.
    `path` adds up to the difference of the latencies. `reasons` are sentences about the faster one.
    """

    a_ms: float
    b_ms: float
    faster: str
    speedup: float
    path: list[PathChange]
    instructions: list[Change]
    counters: list[Change]
    reasons: list[str]


def difference(a: Forecast, b: Forecast, convention: ConventionName = "explorer") -> Difference:
    """Compare two predictions for the same work."""
    faster = "neither" if Change("", a.latency_ms, b.latency_ms).weight < SAME_RATIO else (
        "a" if a.latency_ms < b.latency_ms else "b"
    )  # fmt: skip
    path = _path(a, b)
    instructions = _changes(_instructions(a), _instructions(b))
    counters = _changes(profile(a, convention), profile(b, convention))
    return Difference(
        a_ms=a.latency_ms,
        b_ms=b.latency_ms,
        faster=faster,
        speedup=max(a.latency_ms, b.latency_ms) / min(a.latency_ms, b.latency_ms),
        path=path,
        instructions=instructions,
        counters=counters,
        reasons=[] if faster == "neither" else _reasons(faster, path, instructions, counters),
    )


def _changes(a: dict[str, float | int], b: dict[str, float | int]) -> list[Change]:
    """The figures that differ, those that changed most first."""
    found = [Change(name, a.get(name, 0), b.get(name, 0)) for name in {**a, **b}]
    return sorted((item for item in found if item.weight > 0.0), key=lambda item: -item.weight)


def _instructions(forecast: Forecast) -> dict[str, float | int]:
    program = forecast.compiled.program
    counted = Counter(program.form_ids.tolist())
    found: Counter[str] = Counter()
    for form, count in counted.items():
        found[f"{program.forms[form].engine} {program.forms[form].op}"] += count
    return dict(found)


def _path(a: Forecast, b: Forecast) -> list[PathChange]:
    spent = [_spent(critical_path(item.compiled.program, item.timeline)) for item in (a, b)]
    made = []
    for part in {part for found in spent for part, _ in found}:
        ours = [{op: ms for (name, op), ms in found.items() if name == part} for found in spent]
        a_ms, b_ms = (sum(found.values()) for found in ours)
        changes = sorted(_changes(*ours), key=lambda item: -abs(item.a - item.b))
        busy = [active_ns(item.timeline, QUEUES_OF[part]) / 1e6 for item in (a, b) if part in QUEUES_OF]
        made.append(PathChange(part, a_ms, b_ms, Change("busy_ms", *busy) if busy else None, changes))
    return sorted(made, key=lambda item: (-abs(item.a_ms - item.b_ms), item.part))


def _spent(parts: list[PathPart]) -> dict[tuple[str, str], float | int]:
    """Time on the critical path by engine and operator; latency before they run apart."""
    found: dict[tuple[str, str], float | int] = {}
    for part in parts:
        for key, ms in (
            ((part.engine or part.op, part.op), part.ms - part.wait_ms),
            ((LATENCY, part.op), part.wait_ms),
        ):
            found[key] = found.get(key, 0.0) + ms
    return found


def _reasons(
    faster: str, path: list[PathChange], instructions: list[Change], counters: list[Change]
) -> list[str]:
    """Where the faster one gains on the critical path, and traffic that it saves."""
    sign = 1.0 if faster == "b" else -1.0
    gained = sum(sign * (part.a_ms - part.b_ms) for part in path)
    said = [
        _gain(part, sign, instructions) for part in path if sign * (part.a_ms - part.b_ms) > 0.05 * gained
    ]
    for change in counters:
        if change.name in _TRAFFIC and sign * (change.a - change.b) > 0.0:
            less, more = (change.b, change.a) if faster == "b" else (change.a, change.b)
            said.append(f"it {_TRAFFIC[change.name]} {less / 1e6:.4g} MB instead of {more / 1e6:.4g} MB")
    return said


def _gain(part: PathChange, sign: float, instructions: list[Change]) -> str:
    """Where time on the critical path goes away, and which instructions go with it."""
    on_path = f"on the critical path for {_less(Change('', part.a_ms, part.b_ms), sign)} ms"
    if part.busy is None:
        name = "latency of semaphores and DMA" if part.part == LATENCY else part.part.replace("_", " ")
        return f"{name} is {on_path}"
    prefix = f"{part.part} "
    fewer = [item for item in instructions if item.name.startswith(prefix) and sign * (item.a - item.b) > 0.0]
    most = max(fewer, key=lambda item: abs(item.a - item.b), default=None)
    said = f"{prefix}is busy for {_less(part.busy, sign)} ms and {on_path}"
    return f"{said}, with {_less(most, sign)} {most.name.removeprefix(prefix)}" if most else said


def _less(change: Change, sign: float) -> str:
    """The faster one's figure and the other's."""
    old, new = (change.a, change.b) if sign > 0 else (change.b, change.a)
    return f"{new:.4g} instead of {old:.4g}"
