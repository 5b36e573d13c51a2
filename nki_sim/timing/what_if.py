"""Predicts the latency if one part cost nothing: an engine, DMA, or the waits for results.

This bounds what work on that part can gain; such kernels need not exist. Each case keeps the order of the
prediction, because a new list schedule has anomalies and may come out slower although something is faster.

`what_if_pairs.json` counts the pairs of measured kernels that show a case, and those that gained no more than
its bound. `benchmarks/fidelity.py --what-ifs --write` makes it. A case without pairs is a promise that no
device has kept yet.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nki_sim.timing.activity import QUEUES_OF
from nki_sim.timing.engines import Assumptions
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.schedule import schedule
from nki_sim.timing.timeline import QUEUES

NO_DEPENDENCES = "no dependences"

_PAIRS = Path(__file__).with_name("what_if_pairs.json")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A predicted latency under an assumption, and the time it saves.

    `measured_pairs` pairs of kernels on this target were measured that differ by this alone, and in
    `pairs_within` of them the faster kernel gained no more than was predicted.
    """

    assumption: str
    latency_ms: float
    saved_ms: float
    saved_percent: float
    measured_pairs: int = 0
    pairs_within: int = 0


def what_ifs(forecast: Forecast) -> list[WhatIf]:
    """Return one case per engine that the program uses and one without dependences, largest saving first."""
    used = {QUEUES[queue] for queue in set(forecast.timeline.queue.tolist())}
    engines = [name for name, queues in QUEUES_OF.items() if used & set(queues)]
    found = [_what_if(forecast, name_free(name), Assumptions(free=frozenset({name}))) for name in engines]
    found.append(_what_if(forecast, NO_DEPENDENCES, Assumptions(dependences=False)))
    return sorted(found, key=lambda item: item.latency_ms)


def name_free(engine: str) -> str:
    """Return how the case is called in which an engine takes no time."""
    return f"{engine} free"


def _what_if(forecast: Forecast, name: str, assume: Assumptions) -> WhatIf:
    program, order = forecast.compiled.program, forecast.timeline
    latency = schedule(program, forecast.target, order=order, assume=assume).latency_ms
    saved = forecast.latency_ms - latency
    pairs, within = load_measured_pairs().get(forecast.target.name, {}).get(name, (0, 0))
    return WhatIf(name, latency, saved, 100.0 * saved / forecast.latency_ms, pairs, within)


def format_evidence(measured_pairs: int, pairs_within: int) -> str:
    """Return what measured pairs say of a case."""
    if not measured_pairs:
        return "no measured pair"
    return f"{pairs_within} of {measured_pairs} measured pairs gained no more"


@cache
def load_measured_pairs() -> dict[str, dict[str, tuple[int, int]]]:
    """Return, by target and case, how many pairs show it, and in how many the gain stays in the bound."""
    table = json.loads(_PAIRS.read_text(encoding="utf-8"))["pairs"]
    return {
        target: {name: (pairs, within) for name, (pairs, within) in cases.items()}
        for target, cases in table.items()
    }
