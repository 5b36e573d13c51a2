"""The run fold: `apply(state, event) -> state`, the only way in which a run's state changes.

Pure and total: no clock, no randomness, no I/O; every legal history folds, and an event that cannot
follow raises `IllegalEvent` before it is stored. `RunState` holds only what `decide` reads. What a
round taught arrives whole in its RoundCompleted, so the fold does not know how the search learns.
What of the state twins share is `semantic`'s to say (`state.semantic`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from state import calls
from state.events import (
    BeamSelected,
    BudgetShort,
    BudgetSpent,
    BudgetWarned,
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    ConfigChanged,
    EffectEnded,
    EffectStarted,
    EvaluationCompleted,
    EvaluationFailed,
    EvaluationStarted,
    Event,
    ExecutionFailed,
    ExecutionStarted,
    ExperienceRecorded,
    ExperiencesGiven,
    GuardCheckpointed,
    KernelDiscarded,
    KernelKept,
    KernelProposed,
    KernelRefuted,
    KernelReverted,
    MemoryCurated,
    PlanFailed,
    PlanProposed,
    PlanStarted,
    PredictionBatch,
    PredictionStarted,
    ReflectionRecorded,
    ReflectionStarted,
    RoundCompleted,
    RoundDeadlinePassed,
    RoundStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunForked,
    RunPaused,
    RunResumed,
    SequencesGiven,
    SummaryStarted,
    TechniquesGiven,
    effect_key,
)
from state.forked import fork
from state.late import deadline_passed, taken
from state.learnt import given
from state.model import (
    EffectKey,
    Role,
    RunConfig,
    RunStatus,
)
from state.run import IllegalEvent, OpenEffect, RunState, by_person, evolve, require_live
from state.semantic import semantic, state_hash
from state.tally import tallied

__all__ = ["FOLD_VERSION", "IllegalEvent", "RunState", "apply", "fork", "semantic", "state_hash"]

FOLD_VERSION = 10
"""Raised whenever the meaning of the state changes; snapshots of other versions are ignored."""

FORMER = 16
"""How many kernels that were the best once are remembered, should the best be refuted."""

Handler = Callable[[RunState, Any], RunState]


def apply(state: RunState | None, event: Event) -> RunState:
    """Return the state after `event`.

    Raises:
        IllegalEvent: `event` cannot follow: no run yet, a second start, an outcome without a start.
    """
    if state is None:
        return _created(event)
    handler = _HANDLERS.get(type(event))
    after = state if handler is None else handler(state, event)
    if type(event) in _UNFINISHED:
        return evolve(after, before=state.before or state)
    return after if after.before is None else evolve(after, before=None)


def _created(event: Event) -> RunState:
    if not isinstance(event, RunCreated):
        raise IllegalEvent(f"{type(event).__name__} before RunCreated")
    return RunState(
        config=event.config,
        problem=event.problem,
        kernel=event.kernel,
        bounds=event.bounds,
        toolchain=event.toolchain,
        pinned=event.pinned,
        prompts=event.prompts,
    )


def _refuse(state: RunState, event: Event) -> RunState:
    raise IllegalEvent(f"{type(event).__name__} in a run that was created already")


def _forked(state: RunState, event: RunForked) -> RunState:
    return _pinned(fork(state, event.rebase), event.pinned)


def _paused(state: RunState, event: RunPaused) -> RunState:
    require_live(state, event)
    return evolve(
        state,
        status=RunStatus.PAUSED,
        status_reason=event.reason,
        pause_cause=event.cause,
        needs_approval=event.needs_approval,
    )


def _resumed(state: RunState, event: RunResumed) -> RunState:
    """Points are `kind` or `kind what`: of each kind the last one that was let pass is remembered."""
    require_live(state, event)
    passed = {point.partition(" ")[0]: point for point in event.approved}
    return evolve(
        state,
        status=RunStatus.RUNNING,
        status_reason=event.reason,
        needs_approval=(),
        approved=state.approved | passed,
    )


def _cancelled(state: RunState, event: RunCancelled) -> RunState:
    require_live(state, event)
    return evolve(state, status=RunStatus.CANCELLED, status_reason=event.reason, open={}, reserved_usd=0.0)


def _completed(state: RunState, event: RunCompleted) -> RunState:
    require_live(state, event)
    if state.open:
        raise IllegalEvent(f"RunCompleted with {len(state.open)} effects in flight")
    ended = evolve(
        state,
        status=RunStatus.COMPLETED,
        stop=event.reason,
        status_reason=event.detail,
        outcomes={},
        late={},
        slots=(),
    )
    return _decided(ended, event)


def _config_changed(state: RunState, event: ConfigChanged) -> RunState:
    changed = evolve(
        state,
        pending_config=RunConfig.model_validate(event.config),
        pending_prompts=event.prompts or state.pending_prompts,
    )
    return _pinned(changed, event.pinned)


def _pinned(state: RunState, keys: tuple[str, ...]) -> RunState:
    return evolve(state, pinned=tuple(dict.fromkeys((*state.pinned, *keys)))) if keys else state


def _round_started(state: RunState, event: RoundStarted) -> RunState:
    require_live(state, event)
    if state.in_round or event.round != state.round + 1:
        raise IllegalEvent(f"RoundStarted({event.round}) after round {state.round}")
    known = {entry.candidate.id: entry.candidate for entry in state.beam}
    missing = [slot.parent for slot in event.slots if slot.parent not in known]
    if missing:
        raise IllegalEvent(f"RoundStarted({event.round}): parents not in the beam: {', '.join(missing)}")
    return evolve(
        state,
        round=event.round,
        slots=event.slots,
        parents=known,
        selected=False,
        idle=None,
        expired=False,
        config=state.pending_config or state.config,
        pending_config=None,
        prompts=event.prompts,
        pending_prompts=None,
    )


def _beam_selected(state: RunState, event: BeamSelected) -> RunState:
    """A lineage without a kernel in the beam is over: its checkpoint is forgotten (the state stays small)."""
    alive = {entry.candidate.lineage for entry in event.beam}
    marks = {lineage: mark for lineage, mark in state.checkpoints.items() if lineage in alive}
    selected = evolve(state, beam=event.beam, selected=state.in_round, checkpoints=marks, rejudge=())
    return _decided(selected, event)


def _round_completed(state: RunState, event: RoundCompleted) -> RunState:
    if not state.selected or event.round != state.round:
        raise IllegalEvent(f"RoundCompleted({event.round}) while round {state.round} has no beam")
    # what is left is for rounds to come: a person's kernel that arrived early, and what audits said
    later = {key: value for key, value in state.outcomes.items() if _outlives(effect_key(value), event.round)}
    return evolve(
        state,
        slots=(),
        parents={},
        selected=False,
        idle=event.idle,
        outcomes=later,
        late={
            key: one for key, one in state.late.items() if (one.competes_in or event.round + 1) > event.round
        },
        attempts=(state.attempts + event.attempts)[-state.config.search.history :],
        models=calls.dealt(state, event.attempts),
        credits=event.credits,
        reflections=event.reflections,
    )


def _outlives(key: EffectKey, round_: int) -> bool:
    return key.round > round_ or key.role is Role.AUDITOR


def _started(state: RunState, event: EffectStarted) -> RunState:
    require_live(state, event)
    if event.key in state.outcomes:
        raise IllegalEvent(f"{event.key}: a start after its outcome")
    before = state.open.get(event.key)
    if event.delivery != (before.delivery if before else 0) + 1:
        raise IllegalEvent(f"{event.key}: delivery {event.delivery} out of order")
    if before is not None and before.request != event.request:
        raise IllegalEvent(f"{event.key}: a redelivery must carry the request as logged")
    opened = OpenEffect(
        request=event.request,
        delivery=event.delivery,
        reserved_usd=event.reserved_usd,
        slot=before.slot if before else state.slot_of(effect_key(event)),
        calls=before.calls if before else (),
    )
    open_ = {**state.open, event.key: opened}
    return evolve(state, open=open_, reserved_usd=calls.reserved_usd(open_.values()))


def _ended(state: RunState, event: EffectEnded) -> RunState:
    if event.key in state.outcomes:
        raise IllegalEvent(f"{event.key}: a second outcome")
    opened = state.open.get(event.key)
    if opened is None and not by_person(event):
        if state.status is RunStatus.CANCELLED:
            return calls.charged(state, event.usage)
        raise IllegalEvent(f"{event.key}: an outcome without a start")
    rest = {key: value for key, value in state.open.items() if key != event.key}
    changed = evolve(
        state,
        open=rest,
        **taken(state, event),
        tally=tallied(state.tally, event),
        reserved_usd=calls.reserved_usd(rest.values()),
        **calls.used(state, event, opened),
    )
    return calls.charged(_audited(changed, event), event.usage)


def _audited(state: RunState, event: EffectEnded) -> RunState:
    """The best kernel stands at the level that its audit has shown."""
    best, key = state.best, effect_key(event)
    if not isinstance(event, EvaluationCompleted) or not event.evaluation.correct:
        return state
    if key.role is not Role.AUDITOR or best is None or best.id != key.candidate:
        return state
    return evolve(state, best=best.model_copy(update={"level": event.evaluation.level}))


def _kept(state: RunState, event: KernelKept) -> RunState:
    candidate, best, former = event.candidate, state.best, state.former
    if best is None or candidate.latency_ms < best.latency_ms:
        former = former if best is None else (*former, best)[-FORMER:]
        best = candidate
    kept = evolve(state, best=best, former=former, initial=state.initial or candidate)
    return _decided(kept, event)


def _discarded(state: RunState, event: KernelDiscarded) -> RunState:
    if event.duplicate_of is None:
        return _decided(state, event)
    tally = state.tally._replace(duplicates=state.tally.duplicates + 1)
    return _decided(evolve(state, tally=tally), event)


def _reverted(state: RunState, event: KernelReverted) -> RunState:
    tally = state.tally._replace(reverts=state.tally.reverts + 1)
    return _decided(evolve(state, tally=tally), event)


def _refuted(state: RunState, event: KernelRefuted) -> RunState:
    gone = {event.candidate, event.best.id if event.best else None}
    changed = evolve(
        state,
        best=event.best,
        former=tuple(one for one in state.former if one.id not in gone),
        beam=event.beam,
        checkpoints={mark.lineage: mark for mark in event.checkpoints},
        memory=event.memory,
        reflections=event.reflections,
        attempts=event.attempts,
        credits=event.credits,
        tally=state.tally._replace(reverts=state.tally.reverts + 1),
    )
    return _decided(changed, event)


def _checkpointed(state: RunState, event: GuardCheckpointed) -> RunState:
    mark = event.checkpoint
    return _decided(evolve(state, checkpoints={**state.checkpoints, mark.lineage: mark}), event)


def _curated(state: RunState, event: MemoryCurated) -> RunState:
    return _decided(evolve(state, memory=event.memory), event)


def _decided(state: RunState, event: Event) -> RunState:
    """Chain a decision into the digest by which twins compare everything that was decided, in order."""
    line = state.decision_digest.encode() + event.model_dump_json().encode()
    return evolve(state, decision_digest=hashlib.sha256(line).hexdigest())


_UNFINISHED = frozenset({KernelKept, KernelDiscarded, KernelReverted, GuardCheckpointed, MemoryCurated})
"""Decisions that stand in a record with others; what ends the record is none of them."""

_HANDLERS: dict[type[Event], Handler] = {
    RunCreated: _refuse,
    RunForked: _forked,
    RunPaused: _paused,
    RunResumed: _resumed,
    RunCancelled: _cancelled,
    RunCompleted: _completed,
    ConfigChanged: _config_changed,
    SequencesGiven: given,
    ExperiencesGiven: given,
    TechniquesGiven: given,
    RoundStarted: _round_started,
    RoundDeadlinePassed: deadline_passed,
    BeamSelected: _beam_selected,
    RoundCompleted: _round_completed,
    KernelKept: _kept,
    KernelDiscarded: _discarded,
    KernelReverted: _reverted,
    KernelRefuted: _refuted,
    GuardCheckpointed: _checkpointed,
    MemoryCurated: _curated,
    BudgetSpent: calls.spent,
    BudgetShort: calls.short,
    BudgetWarned: calls.warned,
    CallStarted: calls.started,
    CallCompleted: calls.ended,
    CallFailed: calls.ended,
    CallLost: calls.ended,
    PredictionStarted: _started,
    PlanStarted: _started,
    ExecutionStarted: _started,
    EvaluationStarted: _started,
    SummaryStarted: _started,
    ReflectionStarted: _started,
    PredictionBatch: _ended,
    PlanProposed: _ended,
    PlanFailed: _ended,
    KernelProposed: _ended,
    ExecutionFailed: _ended,
    EvaluationCompleted: _ended,
    EvaluationFailed: _ended,
    ExperienceRecorded: _ended,
    ReflectionRecorded: _ended,
}
