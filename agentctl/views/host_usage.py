"""Which hosts judged a run's kernels, and how useful the pre-filter was."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from state.events import EvaluationCompleted, RunForked
from state.model import PREFILTERED
from state.records import RecordedEvent

MIN_PAIRS = 4
"""With fewer kernels that were both predicted and timed, no rate is given."""


@dataclass(frozen=True, slots=True)
class PrefilterResult:
    """What a pre-filter did: the kernels held back, and the timed ones for which it had predicted a
    latency.

    `hit_percent`: of the kernels that it put into the faster half, how many were in the faster half by
    measured times; None if too few were timed. `predicted` is true if the times are predictions too.
    """

    held_back: int
    timed: int
    hit_percent: float | None
    predicted: bool


@dataclass(slots=True)
class HostUsage:
    """Counts a run's verdicts: `hosts` by host, `devices` by the device that timed them."""

    types: ClassVar = ("EvaluationCompleted", "RunForked")
    hosts: Counter[str] = field(default_factory=Counter)
    devices: Counter[str] = field(default_factory=Counter)
    held_back: int = 0
    pairs: list[tuple[float, float]] = field(default_factory=list)
    predicted: bool = False

    def add_event(self, item: RecordedEvent) -> None:
        """Count the run's next event; predictions before a fork that judges differently are dropped."""
        match item.event:
            case EvaluationCompleted() as event:
                self.add_verdict(event)
            case RunForked(rebase=rebase) if rebase is not None:
                self.pairs, self.predicted = [], False

    def add_verdict(self, event: EvaluationCompleted) -> None:
        """Count a verdict."""
        if event.where is not None:
            self.hosts[event.where.host] += 1
            self.devices[event.where.device] += 1
        error, timed = event.evaluation.error, event.evaluation.benchmark
        self.held_back += error is not None and error.code == PREFILTERED
        if event.predicted_ms is not None and timed is not None:
            self.pairs.append((event.predicted_ms, timed.latency_ms))
            self.predicted = self.predicted or timed.predicted

    @property
    def prefilter_result(self) -> PrefilterResult | None:
        """What the pre-filter did; None if there was none."""
        if not (self.held_back or self.pairs):
            return None
        rate = hit_percent(self.pairs) if len(self.pairs) >= MIN_PAIRS else None
        return PrefilterResult(self.held_back, len(self.pairs), rate, self.predicted)


def hit_percent(pairs: list[tuple[float, float]]) -> float:
    """Return how many of the faster half by prediction are in the faster half by time, in percent."""
    middle_predicted = median(predicted for predicted, _ in pairs)
    middle_timed = median(timed for _, timed in pairs)
    chosen = [timed for predicted, timed in pairs if predicted <= middle_predicted]
    return 100.0 * sum(timed <= middle_timed for timed in chosen) / len(chosen)
