"""The run fold: `apply_event(state, event)` is the only way in which a run's state changes.

It is pure and total: no clock, no randomness, no I/O. Every legal history folds, and an event that cannot
follow raises `IllegalEvent` before it is stored. `RunState` holds only what `decide` reads. RoundCompleted
carries all that a round taught, so the fold does not know how the search learns.

`state.semantic_state.dump_semantic` defines which part of the state twin runs have in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from state import call_fold, session_fold
from state.events import (
    AgentEnded,
    AgentStarted,
    BeamSelected,
    BudgetShort,
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
    KernelTried,
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
    SessionEnded,
    SessionStarted,
    SummaryStarted,
    TechniquesGiven,
    ToolCallCompleted,
    ToolCallStarted,
    effect_key,
)
from state.fork import fork_state
from state.learning import apply_prior_learning
from state.model import (
    BeamEntry,
    EffectKey,
    Role,
    RunConfig,
    RunStatus,
    dump_json,
)
from state.round_deadline import apply_deadline_passed, route_outcome
from state.run_state import IllegalEvent, RunState, blank_effect, evolve, is_by_person, require_live
from state.semantic_state import dump_semantic, state_hash
from state.tally import count_outcome

__all__ = [
    "FOLD_VERSION",
    "IllegalEvent",
    "RunState",
    "apply_event",
    "dump_semantic",
    "fork_state",
    "state_hash",
]

FOLD_VERSION = 11
"""Raise it whenever the meaning of the state changes; snapshots of other versions are ignored."""

MAX_FORMER_BESTS = 16
"""How many earlier best kernels are remembered, in case the best is refuted."""

EventHandler = Callable[[RunState, Any], RunState]


def apply_event(state: RunState | None, event: Event) -> RunState:
    """Return the state after `event`.

    Raises:
        IllegalEvent: `event` cannot follow: there is no run yet, it starts something twice, or it is an
            outcome without a start.
    """
    if state is None:
        return _create_state(event)
    handler = _HANDLERS.get(type(event))
    after = state if handler is None else handler(state, event)
    if after.before is None or type(event) in _PARTIAL_DECISIONS:
        return after
    return evolve(after, before=None)


def _create_state(event: Event) -> RunState:
    if not isinstance(event, RunCreated):
        raise IllegalEvent(f"{type(event).__name__} before RunCreated")
    return RunState(
        config=event.config,
        problem=event.problem,
        kernel=event.kernel,
        starts=event.starts,
        bounds=event.bounds,
        toolchain=event.toolchain,
        pinned=event.pinned,
        prompts=event.prompts,
    )


def _refuse_second_start(state: RunState, event: Event) -> RunState:
    raise IllegalEvent(f"{type(event).__name__} in a run that was created already")


def _apply_run_forked(state: RunState, event: RunForked) -> RunState:
    return _add_pinned_keys(fork_state(state, event.rebase), event.pinned)


def _apply_run_paused(state: RunState, event: RunPaused) -> RunState:
    require_live(state, event)
    return evolve(
        state,
        status=RunStatus.PAUSED,
        status_reason=event.reason,
        pause_cause=event.cause,
        needs_approval=event.needs_approval,
    )


def _apply_run_resumed(state: RunState, event: RunResumed) -> RunState:
    """A point is `kind` or `kind what`; for each kind, the last approved point is remembered."""
    require_live(state, event)
    passed = {point.partition(" ")[0]: point for point in event.approved}
    return evolve(
        state,
        status=RunStatus.RUNNING,
        status_reason=event.reason,
        needs_approval=(),
        approved=state.approved | passed,
    )


def _apply_run_cancelled(state: RunState, event: RunCancelled) -> RunState:
    require_live(state, event)
    return evolve(state, status=RunStatus.CANCELLED, status_reason=event.reason, open={}, reserved_usd=0.0)


def _apply_run_completed(state: RunState, event: RunCompleted) -> RunState:
    require_live(state, event)
    if state.open:
        raise IllegalEvent(f"RunCompleted with {len(state.open)} effects in flight")
    return _chain_decision(
        state,
        event,
        status=RunStatus.COMPLETED,
        stop=event.reason,
        status_reason=event.detail,
        outcomes={},
        late={},
        slots=(),
    )


def _apply_config_changed(state: RunState, event: ConfigChanged) -> RunState:
    changed = evolve(
        state,
        pending_config=RunConfig.model_validate(event.config),
        pending_prompts=event.prompts or state.pending_prompts,
    )
    return _add_pinned_keys(changed, event.pinned)


def _add_pinned_keys(state: RunState, keys: tuple[str, ...]) -> RunState:
    return evolve(state, pinned=tuple(dict.fromkeys((*state.pinned, *keys)))) if keys else state


def _apply_round_started(state: RunState, event: RoundStarted) -> RunState:
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
        executors=event.executors,
        parents=known,
        selected=False,
        idle=None,
        expired=False,
        config=state.pending_config or state.config,
        pending_config=None,
        prompts=event.prompts,
        pending_prompts=None,
    )


def _apply_beam_selected(state: RunState, event: BeamSelected) -> RunState:
    """Drop the checkpoints of lineages that have no kernel in the beam any more, to keep the state small."""
    alive = {entry.candidate.lineage for entry in event.beam}
    marks = {lineage: mark for lineage, mark in state.checkpoints.items() if lineage in alive}
    return _chain_decision(
        state, event, beam=event.beam, selected=state.in_round, checkpoints=marks, rejudge=()
    )


def _apply_round_completed(state: RunState, event: RoundCompleted) -> RunState:
    if not state.selected or event.round != state.round:
        raise IllegalEvent(f"RoundCompleted({event.round}) while round {state.round} has no beam")
    # the rest belongs to later rounds: a person's kernel that arrived early, and results of audits
    later = {
        key: value for key, value in state.outcomes.items() if _outlives_round(effect_key(value), event.round)
    }
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
        models=call_fold.record_attempts(state, event.attempts),
        roles=call_fold.record_role_results(state, event.attempts),
        credits=event.credits,
        reflections=event.reflections,
    )


def _outlives_round(key: EffectKey, round_: int) -> bool:
    return key.round > round_ or key.role is Role.AUDITOR


def _apply_effect_started(state: RunState, event: EffectStarted) -> RunState:
    require_live(state, event)
    if event.key in state.outcomes:
        raise IllegalEvent(f"{event.key}: a start after its outcome")
    before = state.open.get(event.key)
    if event.delivery != (before.delivery if before else 0) + 1:
        raise IllegalEvent(f"{event.key}: delivery {event.delivery} out of order")
    if before is not None and before.request != event.request:
        raise IllegalEvent(f"{event.key}: a redelivery must carry the request as logged")
    changes: dict[str, Any] = {"delivery": event.delivery, "reserved_usd": event.reserved_usd}
    if before is None:
        changes |= {"request": event.request, "slot": state.assigned_slot(effect_key(event))}
    opened = evolve(before or blank_effect(), **changes)
    open_ = {**state.open, event.key: opened}
    if not (state.reserved_usd or event.reserved_usd):  # then nothing is reserved, whatever is open
        return evolve(state, open=open_)
    return evolve(state, open=open_, reserved_usd=call_fold.reserved_usd(open_.values()))


def _apply_effect_ended(state: RunState, event: EffectEnded) -> RunState:
    if event.key in state.outcomes:
        raise IllegalEvent(f"{event.key}: a second outcome")
    opened = state.open.get(event.key)
    beside = event.beside if type(event) in _MADE_IN_SESSIONS else None  # type: ignore[attr-defined]
    if beside is not None:
        if beside not in state.outcomes:  # its session came too late: then its first one alone counts
            return state
        return evolve(
            state,
            outcomes={**state.outcomes, event.key: event},
            tally=count_outcome(state.tally, event),
        )
    if opened is None and not is_by_person(event):
        if state.status is RunStatus.CANCELLED:
            return evolve(state, **call_fold.usage_charges(state.spent_usd, event.usage))
        raise IllegalEvent(f"{event.key}: an outcome without a start")
    rest = state.open.copy()
    rest.pop(event.key, None)
    changed = evolve(
        state,
        open=rest,
        **route_outcome(state, event),
        tally=count_outcome(state.tally, event),
        reserved_usd=call_fold.reserved_usd(rest.values()) if state.reserved_usd else 0.0,
        **call_fold.outcome_charges(state, event, opened),
    )
    return _apply_audit(changed, event)


def _apply_audit(state: RunState, event: EffectEnded) -> RunState:
    """Raise the best kernel to the level that its audit has shown."""
    key, best = effect_key(event), state.best
    if key.role is not Role.AUDITOR or best is None or best.id != key.candidate_id:
        return state
    if not isinstance(event, EvaluationCompleted) or not event.evaluation.is_correct:
        return state
    return evolve(state, best=best.model_copy(update={"level": event.evaluation.level}))


def _apply_kernel_kept(state: RunState, event: KernelKept) -> RunState:
    candidate, best, former = event.candidate, state.best, state.former
    if best is None or candidate.latency_ms < best.latency_ms or event.replaces == best.id:
        former = former if best is None else (*former, best)[-MAX_FORMER_BESTS:]
        best = candidate
    changes: dict[str, Any] = {"best": best, "former": former, "initial": state.initial or candidate}
    if event.replaces is not None:
        changes["beam"] = tuple(_replace_entry(one, event) for one in state.beam)
    return _chain_decision(state, event, **changes)


def _replace_entry(entry: BeamEntry, event: KernelKept) -> BeamEntry:
    """Return a place of the beam with the simpler kernel, if the one that it replaces has it."""
    if entry.candidate.id != event.replaces:
        return entry
    return entry.model_copy(update={"candidate": event.candidate})


def _apply_kernel_discarded(state: RunState, event: KernelDiscarded) -> RunState:
    if event.duplicate_of is None:
        return _chain_decision(state, event)
    tally = state.tally._replace(duplicates=state.tally.duplicates + 1)
    return _chain_decision(state, event, tally=tally)


def _apply_kernel_reverted(state: RunState, event: KernelReverted) -> RunState:
    tally = state.tally._replace(reverts=state.tally.reverts + 1)
    return _chain_decision(state, event, tally=tally)


def _apply_kernel_refuted(state: RunState, event: KernelRefuted) -> RunState:
    gone = {event.candidate, event.best.id if event.best else None}
    return _chain_decision(
        state,
        event,
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


def _apply_checkpoint(state: RunState, event: GuardCheckpointed) -> RunState:
    mark = event.checkpoint
    return _chain_decision(state, event, checkpoints={**state.checkpoints, mark.lineage: mark})


def _apply_memory_curated(state: RunState, event: MemoryCurated) -> RunState:
    return _chain_decision(state, event, memory=event.memory)


def _chain_decision(state: RunState, event: Event, **changes: Any) -> RunState:
    """Return the state before a decision with its `changes`, and with it in the digest of all decisions.

    Twin runs compare these digests. A part of a record of decisions leaves the state before the record.
    """
    line = state.decision_digest.encode() + dump_json(event)
    before = (state.before or state) if type(event) in _PARTIAL_DECISIONS else None
    return evolve(state, **changes, decision_digest=hashlib.sha256(line).hexdigest(), before=before)


_MADE_IN_SESSIONS = frozenset({KernelProposed, PlanProposed})
"""Outcomes of which a session may bring several."""

_PARTIAL_DECISIONS = frozenset(
    {KernelKept, KernelDiscarded, KernelReverted, GuardCheckpointed, MemoryCurated}
)
"""Decisions that are recorded in parts. The event that ends such a record is not among them."""

_HANDLERS: dict[type[Event], EventHandler] = {
    RunCreated: _refuse_second_start,
    RunForked: _apply_run_forked,
    RunPaused: _apply_run_paused,
    RunResumed: _apply_run_resumed,
    RunCancelled: _apply_run_cancelled,
    RunCompleted: _apply_run_completed,
    ConfigChanged: _apply_config_changed,
    SequencesGiven: apply_prior_learning,
    ExperiencesGiven: apply_prior_learning,
    TechniquesGiven: apply_prior_learning,
    RoundStarted: _apply_round_started,
    RoundDeadlinePassed: apply_deadline_passed,
    BeamSelected: _apply_beam_selected,
    RoundCompleted: _apply_round_completed,
    KernelKept: _apply_kernel_kept,
    KernelDiscarded: _apply_kernel_discarded,
    KernelReverted: _apply_kernel_reverted,
    KernelRefuted: _apply_kernel_refuted,
    GuardCheckpointed: _apply_checkpoint,
    MemoryCurated: _apply_memory_curated,
    BudgetShort: call_fold.apply_budget_short,
    BudgetWarned: call_fold.apply_budget_warned,
    CallStarted: call_fold.apply_call_started,
    CallCompleted: call_fold.apply_call_ended,
    CallFailed: call_fold.apply_call_ended,
    CallLost: call_fold.apply_call_ended,
    SessionStarted: session_fold.apply_session_started,
    ToolCallStarted: session_fold.apply_tool_started,
    KernelTried: session_fold.apply_kernel_tried,
    ToolCallCompleted: session_fold.apply_tool_completed,
    SessionEnded: session_fold.apply_session_ended,
    AgentStarted: call_fold.apply_agent_started,
    AgentEnded: call_fold.apply_agent_ended,
    PredictionStarted: _apply_effect_started,
    PlanStarted: _apply_effect_started,
    ExecutionStarted: _apply_effect_started,
    EvaluationStarted: _apply_effect_started,
    SummaryStarted: _apply_effect_started,
    ReflectionStarted: _apply_effect_started,
    PredictionBatch: _apply_effect_ended,
    PlanProposed: _apply_effect_ended,
    PlanFailed: _apply_effect_ended,
    KernelProposed: _apply_effect_ended,
    ExecutionFailed: _apply_effect_ended,
    EvaluationCompleted: _apply_effect_ended,
    EvaluationFailed: _apply_effect_ended,
    ExperienceRecorded: _apply_effect_ended,
    ReflectionRecorded: _apply_effect_ended,
}
