"""Estimates how far a prediction can be trusted, by timing the kernel again with other constants.

Constants tagged I (inferred) or C (calibrated) have a range: 20 % to either side, or what `constant_ranges`
gives. The range of a fitted constant covers at least the values that fit some of the measured kernels. A
*draw* gives every such constant a value within its range. The seed depends only on the constant's name and
the draw's number, so two kernels see the same draws, and errors that affect both cancel when they are
compared. Odd draws mirror the even ones before them. Of what the compiler depends on, only the SBUF capacity
varies, for kernels that a compiler rewrites: it has cliffs, so about a third of the draws have less of it and
a third more.

Draws say which of two kernels is faster. How far off a single prediction may be, they do not say, because
they leave the model's structure as it is: the interval is what measured kernels of other families show
(`nki_sim.timing.residuals`). Long programs are timed again by an excerpt, whose relative change is applied to
the whole. The amount of work depends on the size of the program, never on a clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from nki_sim.compiler.pass_pipeline import compile_program
from nki_sim.errors import ScheduleError
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.excerpt import RUN_INSTRUCTIONS, take_excerpt
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.kernel_traits import kernel_traits
from nki_sim.timing.residuals import load_residuals
from nki_sim.timing.schedule import schedule

SHARE = 0.2
"""Relative range to either side of a constant without a range of its own."""

UNCERTAIN = frozenset("CI")

FITS: dict[str, tuple[float, float]] = {
    "vector_overhead_sbuf_cycles": (0.8, 1.45),
    "vector_overhead_psum_cycles": (0.7, 1.2),
    "scalar_overhead_sbuf_cycles": (0.8, 1.45),
    "scalar_overhead_psum_cycles": (0.35, 1.55),
    "issue_window": (0.5, 2.2),
    "tensor_transpose_speed": (0.5, 1.0),
}
"""Relative ranges of constants, where `SHARE` is not enough.

The ranges of fitted constants cover the fits on all calibration kernels but one, for each kernel left out
(`fidelity.py --leave-one-out`). A constant that another target infers from a fitted one has the same range.
Transposes of the tensor engine run in the background all the time, never, or anything between.
"""

DRAWS = 16

WORK = 40_000
"""Limit on instructions that all draws of a prediction schedule together."""

RESOLUTION_RATIO = 0.005
"""Predictions that differ by less do not show which kernel is faster."""

UNLIMITED = 4096
"""A lookahead so large that it has no effect."""

_WINDOWS = ("issue_window", "dma_window")

_CAPACITY_SHARE = 0.75
"""Programs up to this share of `WORK` are also compiled with other capacities."""


@dataclass(frozen=True, slots=True)
class ConstantRange:
    """From `low` to `high` around the table's `value`; as many draws lie above `value` as below.

    Draws are uniform, or with `by_factor` uniform on a logarithmic scale. `compiles`: the compiler depends on
    it.
    """

    low: float
    value: float
    high: float
    by_factor: bool = False
    compiles: bool = False

    def value_at(self, share: float) -> float:
        """The value at a share of the range: 0 is `low`, 0.5 is `value`, 1 is `high`."""
        first, last = (self.low, self.value) if share < 0.5 else (self.value, self.high)
        within = 2 * share if share < 0.5 else 2 * share - 1
        if self.by_factor:
            return float(first * (last / first) ** within)
        return first + (last - first) * within


def constant_ranges(target: Target) -> dict[str, ConstantRange]:
    """The range of each uncertain constant of a target, by name."""
    uncertain = [
        name
        for name, tag in target.sources.items()
        if tag in UNCERTAIN and not isinstance(getattr(target, name), bool)
    ]
    found = {name: _proportional_range(name, getattr(target, name)) for name in uncertain}
    found |= {name: _lookahead_range(target, name) for name in _WINDOWS if name in found}
    # Capacity varies whatever its tag, because it decides whether some tiles just fit.
    found["sbuf_reserved_bytes"] = _range_around(target.sbuf_reserved_bytes, 8192, 8192)
    return found


def _proportional_range(name: str, value: float) -> ConstantRange:
    low, high = FITS.get(name, (1 - SHARE, 1 + SHARE))
    return ConstantRange(low * value, value, high * value)


def _lookahead_range(target: Target, name: str) -> ConstantRange:
    """Inferred: from strict program order to a lookahead without effect. Calibrated: as the fits say."""
    value = getattr(target, name)
    if target.sources[name] == "C":
        low, high = FITS.get(name, (0.5, 2.0))
        return ConstantRange(max(1.0, low * value), value, high * value, by_factor=True)
    return ConstantRange(1, value, max(UNLIMITED, value), by_factor=True)


def _range_around(value: float, below: float, above: float) -> ConstantRange:
    return ConstantRange(value - below, value, value + above, compiles=True)


@dataclass(frozen=True, slots=True)
class ForecastInterval:
    """A predicted latency, the interval around it, and the latency in each draw; ms.

    `dynamic_loops` counts loops whose bounds depend on data; they are timed as if they ran once. `unlike` is
    why nothing measured resembles the kernel, or empty. `order_confidence` holds, for rising percents, how
    many times as long another kernel must be predicted to take so that it is slower in that percentage of
    measured pairs.
    """

    latency_ms: float
    lo_ms: float
    hi_ms: float
    draws_ms: tuple[float, ...]
    dynamic_loops: int = 0
    unlike: str = ""
    order_confidence: tuple[tuple[float, float], ...] = ()


def predict_interval(
    forecast: Forecast, *, draws: int = DRAWS, work: int = WORK, recompile: bool | None = None
) -> ForecastInterval:
    """Return the interval of a prediction, and its draws from schedules of `work` instructions in total.

    `recompile` says whether to compile legacy kernels again with other capacities. By default they are if
    that is no more work than the draws.
    """
    legacy = forecast.traced.dialect == "neuronxcc"
    size, count = len(forecast.compiled.program), max(RUN_INSTRUCTIONS, work // max(1, draws))
    capacity = size <= _CAPACITY_SHARE * work if recompile is None else recompile
    made = dict(_make_variants(forecast, count, capacity=legacy and capacity))
    times = tuple(
        _draw_latency(made[_capacity_side(draw) if len(made) > 1 else 0], draw) for draw in range(draws)
    )
    table, latency_ms = load_residuals(), forecast.latency_ms
    bounds = table.bound_latency(kernel_traits(forecast))
    return ForecastInterval(
        latency_ms,
        bounds.low * latency_ms,
        bounds.high * latency_ms,
        times,
        forecast.timeline.dynamic_loops,
        bounds.unlike,
        table.order_confidence_on(forecast.target.name),
    )


@dataclass(frozen=True, slots=True)
class _CompiledVariant:
    """One result of the compiler: the part of it that is timed again, and the times of part and whole."""

    part: Program
    target: Target
    base_ns: float
    span_ns: float


def _capacity_side(draw: int) -> int:
    """Less (-1), the same (0) or more (1) SBUF in a draw: about a third of the draws each, in pairs."""
    return 0 if draw // 2 % 3 == 0 else (-1, 1)[draw % 2]


def _make_variants(
    forecast: Forecast, count: int, *, capacity: bool
) -> Iterator[tuple[int, _CompiledVariant]]:
    """The program as it is, and if `capacity` varies, as compiled with less and with more of it."""
    target, program = forecast.target, forecast.compiled.program
    part = take_excerpt(program, count)
    span_ns = forecast.timeline.span_ns
    base_ns = span_ns if part is program else schedule(part, target).span_ns
    one = _CompiledVariant(part, target, base_ns, span_ns)
    yield 0, one
    if capacity:
        reserve = constant_ranges(target)["sbuf_reserved_bytes"]
        for side, value in ((-1, reserve.high), (1, reserve.low)):
            yield (
                side,
                _recompile_variant(
                    forecast, one, _with_values(target, {"sbuf_reserved_bytes": value}), count=count
                ),
            )


def _recompile_variant(
    forecast: Forecast, one: _CompiledVariant, changed: Target, *, count: int
) -> _CompiledVariant:
    """The variant for another capacity, or the predicted one if the kernel does not fit."""
    try:
        program = compile_program(forecast.traced, changed).program
        if _is_same_program(program, forecast.compiled.program):
            return replace(one, target=changed)
        span_ns = schedule(program, changed).span_ns
        part = take_excerpt(program, count)
        return _CompiledVariant(
            part, changed, span_ns if part is program else schedule(part, changed).span_ns, span_ns
        )
    except ScheduleError:
        return one


def _is_same_program(one: Program, other: Program) -> bool:
    columns = ("form_ids", "tensors", "offsets")
    return one.forms == other.forms and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in columns
    )


def _draw_latency(one: _CompiledVariant, draw: int) -> float:
    """The latency in a draw; if the kernel does not fit there, as long as it takes where it fits."""
    changed = draw_target(one.target, draw)
    try:
        ratio = schedule(one.part, changed).span_ns / one.base_ns if one.base_ns else 1.0
    except ScheduleError:
        ratio = 1.0
    return (ratio * one.span_ns + changed.kernel_overhead_ns) / 1e6


def win_share(one: ForecastInterval, other: ForecastInterval) -> float:
    """Share of draws that the kernel with the lower prediction wins, among draws that separate the two.

    A draw does not count if the latencies are within `RESOLUTION_RATIO` or if only one kernel has it. If no
    draw counts, the share is 0.5.
    """
    fast, slow = sorted((one, other), key=lambda item: item.latency_ms)
    pairs = zip(fast.draws_ms, slow.draws_ms, strict=False)
    told = [
        mine < theirs for mine, theirs in pairs if abs(mine - theirs) > RESOLUTION_RATIO * max(mine, theirs)
    ]
    return sum(told) / len(told) if told else 0.5


def order_percent(one: ForecastInterval, other: ForecastInterval) -> float:
    """How sure the order of two predictions is, in percent: as measured pairs show, if all draws agree.

    Draws that disagree lower it towards 50, and below that if most of them do.
    """
    share = win_share(one, other)
    if share <= 0.5:
        return 100.0 * share
    fast, slow = sorted((one.latency_ms, other.latency_ms))
    levels = [percent for percent, ratio in one.order_confidence if slow >= ratio * fast]
    return 50.0 + (max(levels, default=50.0) - 50.0) * (2 * share - 1)


def draw_target(target: Target, draw: int) -> Target:
    """Return the target of a draw: all uncertain constants that affect only times are varied."""
    values = {
        name: one.value_at(draw_share(name, draw))
        for name, one in constant_ranges(target).items()
        if not one.compiles
    }
    return _with_values(target, values)


def draw_share(name: str, draw: int) -> float:
    """Where in its range a constant lies in a draw; draws 2 k and 2 k + 1 mirror each other."""
    # A text seed gives the same numbers on every machine and Python version.
    at = random.Random(f"{name} {draw // 2}").random()  # noqa: S311  reproducible, not secret
    return 1.0 - at if draw % 2 else at


def _with_values(target: Target, values: dict[str, float]) -> Target:
    """The target with other values; integers stay integers."""
    return replace(
        target,
        **{  # type: ignore[arg-type]  # the names are the target's own
            name: round(value) if type(getattr(target, name)) is int else value
            for name, value in values.items()
        },
    )
