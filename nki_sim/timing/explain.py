"""Why a kernel takes the time it is predicted to take: busy times, the bottleneck, the lines on the
critical path.

The critical path is walked back from the last instruction to end, each time to the instruction that the
current one waited for; the time between one's end and the next one's end belongs to the later line.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from nki_sim.program.ir import Program
from nki_sim.timing.activity import QUEUES_OF, active_ns
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.schedule import Timeline

# An engine busier than this share of the span is the bottleneck; when none is, and none reaches the
# second share, the chip as a whole is idle most of the time.
_BOUND_RATIO = 0.8
_IDLE_RATIO = 0.3


@dataclass(frozen=True, slots=True)
class Explanation:
    """`bottleneck` is an engine, `dependency` (engines wait for each other) or `underutilised`.

    `busy_ms` is predicted active time per engine; `top_lines` are (line, ms on the critical path, op).
    """

    bottleneck: str
    busy_ms: dict[str, float]
    top_lines: list[tuple[int, float, str]]


def explain(forecast: Forecast, *, lines: int = 10) -> Explanation:
    """Explain a prediction; at most `lines` source lines, the costliest first."""
    program, timeline = forecast.compiled.program, forecast.timeline
    busy = {name: active_ns(timeline, queues) / 1e6 for name, queues in QUEUES_OF.items()}
    span = float(timeline.end_ns.max()) / 1e6 if len(timeline.end_ns) else 0.0
    return Explanation(_bottleneck(busy, span), busy, _critical_lines(program, timeline)[:lines])


def _bottleneck(busy: dict[str, float], span: float) -> str:
    name = max(busy, key=busy.__getitem__)
    if busy[name] >= _BOUND_RATIO * span > 0.0:
        return name
    return "underutilised" if busy[name] < _IDLE_RATIO * span or span == 0.0 else "dependency"


def _critical_lines(program: Program, timeline: Timeline) -> list[tuple[int, float, str]]:
    spent: dict[tuple[int, str], float] = defaultdict(float)
    number = int(np.argmax(timeline.end_ns)) if len(timeline.end_ns) else -1
    end = timeline.end_ns.tolist()
    blocker = timeline.blocker.tolist()
    while number >= 0:
        before = blocker[number]
        share = end[number] - (end[before] if before >= 0 else 0.0)
        op = program.forms[int(program.form_ids[number])].op
        spent[int(program.lines[number]), op] += max(0.0, share)
        number = before
    ranked = sorted(spent.items(), key=lambda entry: (-entry[1], entry[0]))
    return [(line, ns / 1e6, op) for (line, op), ns in ranked]
