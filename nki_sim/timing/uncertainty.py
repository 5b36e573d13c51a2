"""How far a prediction can be trusted: the same kernel timed again with the uncertain constants moved.

Constants tagged I (inferred) or C (calibrated) have a range: 20 % to either side, or what `ranges` says. A
*draw* gives every such constant a value within its range, from a seed that depends on the constant's
name and the number of the draw alone: two kernels see the same draws, so that what moves both alike cancels
when they are compared. Odd draws mirror the even ones before them. The compiler's constants are moved only
for kernels that a compiler rewrites, one at a time, and the kernel is compiled again: its capacity is a
cliff.

The interval goes from the 5th to the 95th percentile of the draws, and to the compiler's extremes. Long
programs are timed again by an excerpt: how its time changes is taken for how the whole changes. What is done
depends on the size of the program and never on a clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from nki_sim.compiler.compile import compiled
from nki_sim.errors import ScheduleError
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.excerpt import RUN, excerpt
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.schedule import schedule

SHARE = 0.2
"""How far a constant without a range of its own moves to either side."""

UNCERTAIN = frozenset("CI")

DRAWS = 16

WORK = 40_000
"""Instructions that all draws of a prediction schedule together at most."""

UNLIMITED = 4096
"""A lookahead that no longer binds."""

_WINDOWS = ("issue_window", "dma_window")

_COMPILING = 8
"""What compiling and scheduling cost, in schedules of the same program."""

_TAIL = 0.05


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high` around the table's `value`, which as many draws exceed as stay below.

    Even in between; `by_factor` even on a logarithmic scale. `compiles`: the compiler depends on it.
    """

    low: float
    value: float
    high: float
    by_factor: bool = False
    compiles: bool = False

    def at(self, share: float) -> float:
        """The value at a share of the range: 0 is `low`, 0.5 `value`, 1 `high`."""
        first, last = (self.low, self.value) if share < 0.5 else (self.value, self.high)
        within = 2 * share if share < 0.5 else 2 * share - 1
        if self.by_factor:
            return float(first * (last / first) ** within)
        return first + (last - first) * within


def ranges(target: Target) -> dict[str, Range]:
    """The range of each uncertain constant of a target, by name."""
    uncertain = [name for name, tag in target.sources.items() if tag in UNCERTAIN]
    found = {name: _share(getattr(target, name)) for name in uncertain}
    found |= {name: _lookahead(target, name) for name in _WINDOWS if name in found}
    # Capacity whatever its tag: what decides is whether some tiles just fit.
    found["sbuf_reserved_bytes"] = _around(target.sbuf_reserved_bytes, 8192, 8192)
    found["legacy_rotation"] = _around(target.legacy_rotation, 0, 1)
    return found


def _share(value: float) -> Range:
    return Range((1 - SHARE) * value, value, (1 + SHARE) * value)


def _lookahead(target: Target, name: str) -> Range:
    """Inferred: from strict program order to a lookahead that no longer binds. Calibrated: half to twice."""
    value = getattr(target, name)
    if target.sources[name] == "C":
        return Range(max(1.0, value / 2), value, 2.0 * value, by_factor=True)
    return Range(1, value, max(UNLIMITED, value), by_factor=True)


def _around(value: float, below: float, above: float) -> Range:
    return Range(value - below, value, value + above, compiles=True)


@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted latency, the interval around it, and the latency in each draw; ms.

    `dynamic_loops` counts loops whose bounds depend on data: they are timed as if they ran once.
    """

    latency_ms: float
    lo_ms: float
    hi_ms: float
    draws_ms: tuple[float, ...]
    dynamic_loops: int = 0


def interval(
    forecast: Forecast, *, draws: int = DRAWS, work: int = WORK, recompile: bool | None = None
) -> Interval:
    """The interval of a prediction from `draws` schedules of `work` instructions together.

    `recompile`: whether to compile legacy kernels again with the compiler's constants moved; unless it is
    said, when that is no more work either.
    """
    times = tuple(_drawn(forecast, draws, max(RUN, work // max(1, draws))))
    ends = [_percentile(times, share) for share in (_TAIL, 1 - _TAIL)] if times else []
    if recompile is None:
        recompile = _COMPILING * len(forecast.compiled.program) <= work
    if recompile and forecast.traced.dialect == "neuronxcc":
        ends.extend(_recompiled(forecast.traced, forecast.target))
    ends.append(forecast.latency_ms)
    return Interval(forecast.latency_ms, min(ends), max(ends), times, forecast.timeline.dynamic_loops)


def _drawn(forecast: Forecast, draws: int, count: int) -> Iterator[float]:
    """The latency of each draw, from at most `count` instructions."""
    program, target, span_ns = forecast.compiled.program, forecast.target, forecast.timeline.span_ns
    part = excerpt(program, count)
    base_ns = span_ns if part is program else schedule(part, target).span_ns
    for draw in range(draws):
        changed = moved(target, draw)
        ratio = schedule(part, changed).span_ns / base_ns if base_ns else 1.0
        yield (ratio * span_ns + changed.kernel_overhead_ns) / 1e6


def compare(one: Interval, other: Interval) -> float:
    """The share of draws in which the kernel with the lower prediction is faster; a tie counts half.

    Of draws that only one of them has nothing is known. Without draws that both have, the share is 0.5.
    """
    fast, slow = sorted((one, other), key=lambda item: item.latency_ms)
    pairs = list(zip(fast.draws_ms, slow.draws_ms, strict=False))
    wins = sum((mine < theirs) + (mine == theirs) / 2 for mine, theirs in pairs)
    return wins / len(pairs) if pairs else 0.5


def moved(target: Target, draw: int) -> Target:
    """The target of a draw: every uncertain constant that only times depend on is moved."""
    values = {name: one.at(share(name, draw)) for name, one in ranges(target).items() if not one.compiles}
    return _with(target, values)


def share(name: str, draw: int) -> float:
    """Where in its range a constant lies in a draw; draws 2 k and 2 k + 1 mirror each other."""
    # Seeded by text, the generator is the same on every machine and version of Python.
    at = random.Random(f"{name} {draw // 2}").random()  # noqa: S311  reproducible, not secret
    return 1.0 - at if draw % 2 else at


def _recompiled(program: Program, target: Target) -> Iterator[float]:
    """Latencies with one constant of the compiler at an end of its range."""
    ends = [(name, {one.low, one.high} - {one.value}) for name, one in ranges(target).items() if one.compiles]
    for name, values in ends:
        for value in sorted(values):
            changed = _with(target, {name: value})
            try:
                yield schedule(compiled(program, changed).program, changed).latency_ms
            except ScheduleError:
                continue  # what does not fit there says nothing of how long it takes where it does


def _with(target: Target, values: dict[str, float]) -> Target:
    """The target with other values; whole numbers stay whole."""
    return replace(
        target,
        **{  # type: ignore[arg-type]  # the names are the target's own
            name: round(value) if type(getattr(target, name)) is int else value
            for name, value in values.items()
        },
    )


def _percentile(values: Sequence[float], share: float) -> float:
    """Linear between the sorted values."""
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    below = list(pairwise([*ranked, ranked[-1]]))[int(place)]
    return below[0] + (below[1] - below[0]) * (place - int(place))
