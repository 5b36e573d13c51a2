"""One run in numbers: its state, what it found, what it spent, and what it waits for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agentctl.views import OMIT_EMPTY
from state.fold import RunState, state_hash
from state.model import Benchmark, EffectKey, RunStatus

INTERRUPTED = "interrupted"
"""The state of an unfinished run while nobody owns the home."""

QUEUED = "queued"
"""The state of a run that has not begun: it waits for a slot, or was just submitted."""


@dataclass(frozen=True, slots=True)
class RunCaps:
    """What a run may spend; None means no limit. `usd` is always set, 0 if the run may spend nothing."""

    usd: float
    tokens: int | None
    calls: int | None
    seconds: float | None
    device_seconds: float | None


@dataclass(frozen=True, slots=True)
class LatencyInterval:
    """A latency with its interval; `predicted` is true if it comes from a model.

    `samples` is how often it was measured; `draws_ms`, `order_confidence` and `unlike` are as in `Benchmark`.
    """

    ms: float
    lo_ms: float
    hi_ms: float
    predicted: bool
    samples: int = 1
    draws_ms: tuple[float, ...] = ()
    order_confidence: tuple[tuple[float, float], ...] = field(default=(), metadata={OMIT_EMPTY: True})
    unlike: str = field(default="", metadata={OMIT_EMPTY: True})

    @property
    def benchmark(self) -> Benchmark:
        """The same, as the value that the log stores."""
        return Benchmark(
            latency_ms=self.ms, lo_ms=self.lo_ms, hi_ms=self.hi_ms, predicted=self.predicted,
            samples=self.samples, draws_ms=self.draws_ms, order_confidence=self.order_confidence,
            unlike=self.unlike,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunView:
    """A run's numbers; what is not known yet is None. Latencies are ms, percentages 0 to 100, money US$.

    `state` is queued, running, paused, interrupted, cancelled or completed. `in_flight` counts effects
    without an outcome, `in_flight_roles` the same by role. `spent_usd` is None if a price is unknown.
    `given` are sequences of other runs that it tried first, `told` the experiences that it received, by
    id. `best_wins_percent` is how sure it is, in percent, that the best kernel is faster than the initial
    one; None if they share no draws.
    """

    id: str
    state: str
    reason: str | None
    problem: str
    size: str
    target: str
    seed: int
    evaluator: str
    planner: tuple[str, ...]
    toolchain: str
    round: int
    rounds: int
    initial_ms: float | None
    initial_lo_ms: float | None
    initial_hi_ms: float | None
    best_ms: float | None
    best_lo_ms: float | None
    best_hi_ms: float | None
    best: str | None
    best_title: str | None
    best_level: str | None
    predicted: bool | None
    speedup: float | None
    best_wins_percent: float | None
    plain_bound_ms: float
    model_bound_ms: float
    tight_bound_ms: float
    percent_of_peak: float | None
    percent_of_model_bound: float | None
    percent_of_tight_bound: float | None
    proposed: int
    evaluated: int
    looked_at: int
    failed: int
    duplicates: int
    reverts: int
    in_flight: int
    in_flight_roles: dict[str, int]
    needs_approval: tuple[str, ...]
    prompts: str | None
    given: tuple[dict[str, Any], ...]
    told: tuple[str, ...]
    spent_usd: float | None
    reserved_usd: float
    spent_tokens: int
    spent_calls: int
    device_seconds: float
    caps: RunCaps
    state_hash: str
    decision_digest: str
    models: tuple[str, ...]


def run_view(run: str, state: RunState, *, owned: bool | None = None, hashed: bool = True) -> RunView:
    """Return a run's numbers; `owned` says whether somebody owns the home, None if that does not matter.

    With None, the state is the log's, which cannot tell an interrupted run from a running one. Without
    `hashed` the hash of its state is left empty, because it takes as long as all the rest.
    """
    return RunView(
        id=run,
        state=state.status.value if owned is None else status_word(state, owned=owned),
        reason=state.stop.value if state.stop else state.status_reason or None,
        problem=state.problem.name,
        size=state.config.size,
        target=state.config.target,
        seed=state.config.seed,
        evaluator=state.config.evaluator,
        planner=state.config.planner,
        toolchain=state.toolchain,
        round=state.round,
        rounds=state.config.search.rounds,
        **_latency_fields(state),
        proposed=state.tally.proposed,
        evaluated=state.tally.evaluated,
        looked_at=state.tally.predicted,
        failed=state.tally.failed,
        duplicates=state.tally.duplicates,
        reverts=state.tally.reverts,
        in_flight=len(state.open),
        in_flight_roles=_count_roles(state),
        needs_approval=state.needs_approval,
        prompts=state.prompts,
        given=tuple(
            {"from": one.event_id, "problem": one.problem, "speedup": one.speedup, "steps": len(one.steps)}
            for one in state.sequences or ()
        ),
        told=tuple(one.id for one in state.experiences or ()),
        spent_usd=None if state.unknown_cost else state.spent_usd,
        reserved_usd=state.reserved_usd,
        spent_tokens=state.spent_tokens,
        spent_calls=state.spent_calls,
        device_seconds=state.device_seconds,
        caps=_run_caps(state),
        state_hash=state_hash(state) if hashed else "",
        decision_digest=state.decision_digest,
        models=tuple(sorted(state.models)),
    )


def _latency_fields(state: RunState) -> dict[str, Any]:
    """Return what a run found: its initial and its best kernel, compared with each other and with the
    bounds.
    """
    initial, best = state.initial, state.best
    best_ms = best.latency_ms if best else None
    first = initial.benchmark if initial else None
    last = best.benchmark if best else None
    return {
        "initial_ms": first.latency_ms if first else None,
        "initial_lo_ms": first.lo_ms if first else None,
        "initial_hi_ms": first.hi_ms if first else None,
        "best_ms": best_ms,
        "best_lo_ms": last.lo_ms if last else None,
        "best_hi_ms": last.hi_ms if last else None,
        "best": best.id if best else None,
        "best_title": best.title if best else None,
        "best_level": best.level.value if best else None,
        "predicted": last.predicted if last else None,
        "speedup": initial.latency_ms / best_ms if initial and best_ms else None,
        "best_wins_percent": last.wins_percent(first) if first and last else None,
        "plain_bound_ms": state.bounds.plain_ms,
        "model_bound_ms": state.bounds.tight_ms,
        "tight_bound_ms": state.bounds.tight_ms,
        "percent_of_peak": bound_percent(state.bounds.plain_ms, best_ms),
        "percent_of_model_bound": bound_percent(state.bounds.tight_ms, best_ms),
        "percent_of_tight_bound": bound_percent(state.bounds.tight_ms, best_ms),
    }


def latency_of(benchmark: Benchmark | None) -> LatencyInterval | None:
    """Return a latency as data, None if there is none."""
    if benchmark is None:
        return None
    return LatencyInterval(
        benchmark.latency_ms, benchmark.lo_ms, benchmark.hi_ms, benchmark.predicted, benchmark.samples,
        benchmark.draws_ms, benchmark.order_confidence, benchmark.unlike,
    )  # fmt: skip


def bound_percent(bound_ms: float, latency_ms: float | None) -> float | None:
    """Return a lower bound on latency as a percentage of a latency."""
    return None if latency_ms is None else 100 * bound_ms / latency_ms


def status_word(state: RunState, *, owned: bool) -> str:
    """Return a run's state as people see it; `owned` says whether somebody owns the home."""
    if state.status is RunStatus.RUNNING and not owned:
        return INTERRUPTED
    if state.status is RunStatus.RUNNING and state.initial is None and not (state.open or state.outcomes):
        return QUEUED
    return state.status.value


def _count_roles(state: RunState) -> dict[str, int]:
    """Return how many effects each role has in flight, by name."""
    return dict(sorted(Counter(EffectKey.parse(key).role.value for key in state.open).items()))


def _run_caps(state: RunState) -> RunCaps:
    config = state.config
    return RunCaps(
        usd=config.cap_usd, tokens=config.cap_tokens, calls=config.cap_calls, seconds=config.cap_seconds,
        device_seconds=config.cap_device_seconds,
    )  # fmt: skip
