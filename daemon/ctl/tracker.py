"""A run as it is watched: its events folded as they are read, and the numbers that people ask for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from state.events import KernelDiscarded, KernelKept, KernelRefuted, RunForked
from state.fold import RunState, apply, state_hash
from state.model import Candidate
from state.records import Recorded


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a fork has from its parent: rounds that were done, and kernels that were discarded in them."""

    rounds: int
    discarded: int


@dataclass(slots=True)
class Tracker:
    """Follows one run; `position` is the global seq up to which it has read."""

    run: str
    position: int = 0
    state: RunState | None = None
    started_us: int = 0
    latest_us: int = 0
    kept: dict[str, Candidate] = field(default_factory=dict)
    discarded: Counter[str] = field(default_factory=Counter)
    """How many kernels were discarded, by reason."""
    inherited: Inherited | None = None

    def add(self, item: Recorded) -> None:
        """Take in the run's next event."""
        self.state = apply(self.state, item.event)
        self.position = item.seq
        self.started_us = self.started_us or item.ts_us
        self.latest_us = item.ts_us
        if isinstance(item.event, RunForked):
            self._forked(item, item.event)
        if isinstance(item.event, KernelKept):
            self.kept[item.event.candidate.id] = item.event.candidate
        if isinstance(item.event, KernelDiscarded):
            self.discarded[item.event.reason] += 1
        if isinstance(item.event, KernelRefuted):
            self.discarded["refuted"] += 1

    def _forked(self, item: Recorded, event: RunForked) -> None:
        """A fork's time is its own; where it judges by something else, latencies of before are history."""
        self.started_us = item.ts_us
        if event.rebase is not None:
            self.kept.clear()
            self.discarded.clear()
        self.inherited = Inherited(self.state.round if self.state else 0, self.discarded.total())

    @property
    def ended(self) -> bool:
        return self.state is not None and self.state.ended

    @property
    def elapsed_seconds(self) -> float:
        """Wall clock from the run's first event to its latest; time between owners counts too."""
        return max(0.0, (self.latest_us - self.started_us) / 1e6)


def lineage(kept: dict[str, Candidate], best: Candidate | None) -> list[Candidate]:
    """Return the kernels from the initial one to `best`, each made from the one before."""
    line: list[Candidate] = []
    while best is not None and best not in line:
        line.append(best)
        best = kept.get(best.parent) if best.parent is not None else None
    return line[::-1]


def summary(run: str, state: RunState) -> dict[str, Any]:
    """Return a run's numbers, as `status --json` gives them; what is not known yet is None."""
    initial, best = state.initial, state.best
    best_ms = best.latency_ms if best else None
    return {
        "id": run,
        "state": state.status.value,
        "reason": state.stop.value if state.stop else state.status_reason or None,
        "problem": state.problem.name,
        "size": state.config.size,
        "target": state.config.target,
        "seed": state.config.seed,
        "round": state.round,
        "rounds": state.config.search.rounds,
        "initial_ms": initial.latency_ms if initial else None,
        "initial_lo_ms": initial.benchmark.lo_ms if initial else None,
        "initial_hi_ms": initial.benchmark.hi_ms if initial else None,
        "best_ms": best_ms,
        "best_lo_ms": best.benchmark.lo_ms if best else None,
        "best_hi_ms": best.benchmark.hi_ms if best else None,
        "best": best.id if best else None,
        "best_level": best.level.value if best else None,
        "predicted": best.benchmark.predicted if best else None,
        "speedup": initial.latency_ms / best_ms if initial and best_ms else None,
        "best_wins_percent": best.benchmark.wins_percent(initial.benchmark) if initial and best else None,
        "plain_bound_ms": state.bounds.plain_ms,
        "tight_bound_ms": state.bounds.tight_ms,
        "percent_of_peak": percent(state.bounds.plain_ms, best_ms),
        "percent_of_tight_bound": percent(state.bounds.tight_ms, best_ms),
        "proposed": state.tally.proposed,
        "evaluated": state.tally.evaluated,
        "looked_at": state.tally.predicted,
        "failed": state.tally.failed,
        "duplicates": state.tally.duplicates,
        "reverts": state.tally.reverts,
        "in_flight": len(state.open),
        "needs_approval": list(state.needs_approval),
        "prompts": state.prompts,
        "given": [
            {"from": one.place, "problem": one.problem, "speedup": one.speedup, "steps": len(one.steps)}
            for one in state.sequences or ()
        ],
        "told": [one.id for one in state.experiences or ()],
        "spent_usd": None if state.unknown_cost else state.spent_usd,
        "state_hash": state_hash(state),
        "decision_digest": state.decision_digest,
    }


def percent(bound_ms: float, latency_ms: float | None) -> float | None:
    """Return a lower bound on latency as a percentage of a latency."""
    return None if latency_ms is None else 100 * bound_ms / latency_ms
