"""Predicts the latency if one part cost nothing: an engine, DMA, or the waits for results.

This bounds what work on that part can gain; such kernels need not exist. Each case keeps the order of the
prediction, because a new list schedule has anomalies and may come out slower although something is faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from nki_sim.timing.activity import QUEUES_OF
from nki_sim.timing.engines import Assumptions
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.schedule import schedule
from nki_sim.timing.timeline import QUEUES

NO_DEPENDENCES = "no dependences"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A predicted latency under an assumption, and the time it saves."""

    assumption: str
    latency_ms: float
    saved_ms: float
    saved_percent: float


def what_ifs(forecast: Forecast) -> list[WhatIf]:
    """Return one case per engine that the program uses and one without dependences, largest saving first."""
    used = {QUEUES[queue] for queue in set(forecast.timeline.queue.tolist())}
    engines = [name for name, queues in QUEUES_OF.items() if used & set(queues)]
    found = [_what_if(forecast, f"{name} free", Assumptions(free=frozenset({name}))) for name in engines]
    found.append(_what_if(forecast, NO_DEPENDENCES, Assumptions(dependences=False)))
    return sorted(found, key=lambda item: item.latency_ms)


def _what_if(forecast: Forecast, name: str, assume: Assumptions) -> WhatIf:
    program, order = forecast.compiled.program, forecast.timeline
    latency = schedule(program, forecast.target, order=order, assume=assume).latency_ms
    saved = forecast.latency_ms - latency
    return WhatIf(name, latency, saved, 100.0 * saved / forecast.latency_ms)
