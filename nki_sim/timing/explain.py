"""Why a kernel takes the time it is predicted to take.

The bottleneck in one word, the critical path by source line, what every engine does and waits for, the
place under the roofline, memory over time, and which tiles the compiler spills. All times are predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

from nki_sim.timing.activity import QUEUES_OF, active_ns, span_ns
from nki_sim.timing.bounds import MinimalWork
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.occupancy import Occupancy, occupancy
from nki_sim.timing.path import PathPart, Track, critical_path, tracks
from nki_sim.timing.roofline import Roofline, roofline
from nki_sim.timing.spill_origins import Spilled, spilled

# An engine busier than this share of the span is the bottleneck; when none is, and none reaches the
# second share, the chip as a whole is idle most of the time.
_BOUND_RATIO = 0.8
_IDLE_RATIO = 0.3


@dataclass(frozen=True, slots=True)
class Explanation:
    """`bottleneck` is an engine, `dependency` (engines wait for each other) or `underutilised`.

    `busy_ms` is predicted active time per engine. The parts of `critical_path`, costliest first, add up to
    `latency_ms`, of which `overhead_ms` is a kernel's fixed time.
    """

    bottleneck: str
    latency_ms: float
    overhead_ms: float
    busy_ms: dict[str, float]
    critical_path: list[PathPart]
    tracks: list[Track]
    roofline: Roofline
    occupancy: list[Occupancy]
    spilled: list[Spilled]


def explain(forecast: Forecast, work: MinimalWork | None = None) -> Explanation:
    """Explain a prediction; `work` is the problem's minimal work where the caller knows it."""
    program, timeline = forecast.compiled.program, forecast.timeline
    busy = {name: active_ns(timeline, queues) / 1e6 for name, queues in QUEUES_OF.items()}
    return Explanation(
        bottleneck=_bottleneck(busy, span_ns(timeline) / 1e6),
        latency_ms=forecast.latency_ms,
        overhead_ms=timeline.kernel_overhead_ns / 1e6,
        busy_ms=busy,
        critical_path=critical_path(program, timeline),
        tracks=tracks(timeline),
        roofline=roofline(forecast, work),
        occupancy=occupancy(program, timeline, forecast.target),
        spilled=spilled(forecast.compiled),
    )


def _bottleneck(busy: dict[str, float], span: float) -> str:
    name = max(busy, key=busy.__getitem__)
    if busy[name] >= _BOUND_RATIO * span > 0.0:
        return name
    return "underutilised" if busy[name] < _IDLE_RATIO * span or span == 0.0 else "dependency"
