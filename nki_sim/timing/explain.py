"""Why a kernel takes the time it is predicted to take.

The bottleneck in one word, the critical path by source line, what every engine does and waits for, the
place under the roofline, memory over time, and which tiles the compiler spills. All times are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nki_sim.timing.bottleneck import bottleneck
from nki_sim.timing.bounds import MinimalWork
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.occupancy import Occupancy, occupancy
from nki_sim.timing.path import PathPart, Track, busy_ms, critical_path, tracks
from nki_sim.timing.reuse import Reused, reused
from nki_sim.timing.roofline import Roofline, roofline
from nki_sim.timing.spill_origins import Spilled, spilled
from nki_sim.timing.transfers import Transfers, transfers
from nki_sim.timing.whatif import WhatIf


@dataclass(frozen=True, slots=True)
class Explanation:
    """`bottleneck` is `overhead`, an engine, `dependency` (engines wait for each other) or `underutilised`.

    `busy_ms` is how long each engine is predicted to run. The parts of `critical_path`, costliest first, add
    up to `latency_ms`, of which `overhead_ms` is a kernel's fixed time. `reused` are tiles for which rounds
    of a loop wait, though they need nothing of each other.
    """

    bottleneck: str
    latency_ms: float
    overhead_ms: float
    busy_ms: dict[str, float]
    critical_path: list[PathPart]
    tracks: list[Track]
    reused: list[Reused]
    transfers: Transfers
    roofline: Roofline
    occupancy: list[Occupancy]
    spilled: list[Spilled]


def explain(
    forecast: Forecast, work: MinimalWork | None = None, ifs: Sequence[WhatIf] | None = None
) -> Explanation:
    """Explain a prediction, with the problem's minimal work and its what-ifs where the caller knows them."""
    program, timeline = forecast.compiled.program, forecast.timeline
    busy = busy_ms(timeline)
    return Explanation(
        bottleneck=bottleneck(forecast, busy, ifs),
        latency_ms=forecast.latency_ms,
        overhead_ms=timeline.kernel_overhead_ns / 1e6,
        busy_ms=busy,
        critical_path=critical_path(program, timeline),
        tracks=tracks(program, timeline),
        reused=reused(forecast.compiled, forecast.traced, timeline),
        transfers=transfers(program, forecast.target),
        roofline=roofline(forecast, work),
        occupancy=occupancy(program, timeline, forecast.target),
        spilled=spilled(forecast.compiled),
    )
