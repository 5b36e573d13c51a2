"""Tracks a run while you watch it: folds its events as they are read, and counts what reports need."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agentctl.call_tally import CallTally
from agentctl.views.host_usage import HostUsage
from state.events import EvaluationCompleted, KernelDiscarded, KernelKept, KernelRefuted, RunForked
from state.fold import RunState, apply_event
from state.model import INITIAL_KEY, Candidate, ErrorInfo
from state.records import RecordedEvent


@dataclass(frozen=True, slots=True)
class InheritedCounts:
    """What a fork inherits from its parent: completed rounds, and the number of kernels discarded in them."""

    rounds: int
    discarded: int


@dataclass(slots=True)
class RunTracker:
    """Follows one run; `position` is the global seq up to which it has read."""

    run: str
    position: int = 0
    state: RunState | None = None
    started_us: int = 0
    latest_us: int = 0
    kept: dict[str, Candidate] = field(default_factory=dict)
    discarded: Counter[str] = field(default_factory=Counter)
    """The number of discarded kernels, by reason."""
    inherited: InheritedCounts | None = None
    elsewhere: HostUsage = field(default_factory=HostUsage)
    questions: CallTally = field(default_factory=CallTally)
    initial_error: ErrorInfo | None = None
    """What is wrong with the initial kernel, if it was rejected."""
    predictions: int = 0
    """Predictions that the look-aheads in flight have made so far."""

    def add(self, item: RecordedEvent) -> None:
        """Apply the run's next event."""
        self.state = apply_event(self.state, item.event)
        self.position = item.seq
        self.started_us = self.started_us or item.ts_us
        self.latest_us = item.ts_us
        if isinstance(item.event, RunForked):
            self._reset_for_fork(item, item.event)
        self.questions.add(self.state, item.event)
        if isinstance(item.event, EvaluationCompleted) and item.event.key == str(INITIAL_KEY):
            self.initial_error = item.event.evaluation.error
        if isinstance(item.event, KernelKept):
            self.kept[item.event.candidate.id] = item.event.candidate
        self.elsewhere.add_event(item)
        if isinstance(item.event, KernelDiscarded):
            self.discarded[item.event.reason] += 1
        if isinstance(item.event, KernelRefuted):
            self.discarded["refuted"] += 1

    def _reset_for_fork(self, item: RecordedEvent, event: RunForked) -> None:
        """Reset what a fork does not inherit: its start time, and the kernels if it judges them
        differently.
        """
        self.started_us = item.ts_us
        if event.rebase is not None:
            self.kept.clear()
            self.discarded.clear()
        self.questions = CallTally()
        self.inherited = InheritedCounts(self.state.round if self.state else 0, self.discarded.total())

    @property
    def has_ended(self) -> bool:
        return self.state is not None and self.state.has_ended

    @property
    def elapsed_seconds(self) -> float:
        """Wall-clock seconds from the run's first event to its latest; time without an owner counts too."""
        return max(0.0, (self.latest_us - self.started_us) / 1e6)


def trace_lineage(kept: dict[str, Candidate], best: Candidate | None) -> list[Candidate]:
    """Return the kernels from the initial one to `best`, each made from the one before."""
    line: list[Candidate] = []
    while best is not None and best not in line:
        line.append(best)
        best = kept.get(best.parent) if best.parent is not None else None
    return line[::-1]
