"""Names the bottleneck of a prediction, from busy times and from what-if latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nki_sim.timing.forecast import Forecast
from nki_sim.timing.what_if import NO_DEPENDENCES, WhatIf, what_ifs

MAX_WHAT_IFS = 20_000
"""Largest program that gets what-ifs by default; each one schedules the program again."""

OVERHEAD_RATIO = 0.5
"""The fixed overhead is the bottleneck if its share of the latency is larger than this."""

BOUND_RATIO = 0.8
"""Else an engine is the bottleneck if it is busy for at least this share of the remaining time."""

DEPENDENCY_PERCENT = 20.0
"""Else dependences are the bottleneck if the kernel would be faster by this much without them."""

IDLE_RATIO = 0.3
"""Else the chip is underutilised if no engine is busy for this share."""

_FREE = " free"


def find_bottleneck(
    forecast: Forecast, busy_ms: Mapping[str, float], ifs: Sequence[WhatIf] | None = None
) -> str:
    """Return `overhead`, an engine, `dependency` or `underutilised`.

    Long programs get no what-ifs unless the caller passes them. If no engine of such a program is busy
    enough, the answer is `underutilised` if all are mostly idle, else `dependency`: they wait for each other.
    """
    span_ms = forecast.timeline.span_ns / 1e6
    if not span_ms or forecast.latency_ms - span_ms > OVERHEAD_RATIO * forecast.latency_ms:
        return "overhead"
    busiest = max(busy_ms, key=busy_ms.__getitem__)
    if busy_ms[busiest] >= BOUND_RATIO * span_ms:
        return busiest
    idle = busy_ms[busiest] < IDLE_RATIO * span_ms
    if ifs is None and len(forecast.compiled.program) > MAX_WHAT_IFS:
        return "underutilised" if idle else "dependency"
    saved = {item.assumption: item.saved_percent for item in (ifs or what_ifs(forecast))}
    if saved.pop(NO_DEPENDENCES, 0.0) >= DEPENDENCY_PERCENT:
        return "dependency"
    most = max(saved, key=saved.__getitem__, default=busiest)
    return "underutilised" if idle else most.removesuffix(_FREE)
