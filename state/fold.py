"""The run fold: `apply(state, event) -> state`, the only way in which a run's state changes.

Pure and total: no clock, no randomness, no I/O; every legal history folds, and an event that cannot
follow raises `IllegalEvent` before it is stored. `RunState` holds only what `decide` reads. What a
round taught arrives whole in its RoundCompleted, so the fold does not know how the search learns.

`semantic` is the part that `state_hash` covers: it leaves out run id, times, cost and deliveries, so a
run that was killed a hundred times hashes like its undisturbed twin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from state.events import (
    BeamSelected,
    BudgetSpent,
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
    ReflectionRecorded,
    ReflectionStarted,
    RoundCompleted,
    RoundStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunForked,
    RunPaused,
    RunResumed,
    SummaryStarted,
    effect_key,
)
from state.model import (
    NOBODY,
    PERSON,
    Attempt,
    BeamEntry,
    Bounds,
    Candidate,
    Checkpoint,
    Credit,
    Digest,
    EffectKey,
    Ending,
    Experience,
    Frozen,
    ProblemRef,
    Rebase,
    Reflection,
    Rejudged,
    Role,
    RunConfig,
    RunStatus,
    SlotAssignment,
    StopReason,
    Usage,
    canonical_json,
)

FOLD_VERSION = 5
"""Raised whenever the meaning of the state changes; snapshots of other versions are ignored."""

FORMER = 16
"""How many kernels that were the best once are remembered, should the best be refuted."""

Outcome = Annotated[
    PlanProposed
    | PlanFailed
    | KernelProposed
    | ExecutionFailed
    | EvaluationCompleted
    | EvaluationFailed
    | ExperienceRecorded
    | ReflectionRecorded,
    Field(discriminator="type"),
]


class IllegalEvent(Exception):  # noqa: N818 - the name says what is wrong with the event
    """An event that cannot follow the state it was given for."""


class OpenEffect(Frozen):
    """An effect that was admitted and has no outcome yet."""

    request: Digest
    delivery: int
    reserved_usd: float


class Tally(NamedTuple):
    """Counts for people, kept in the state because status shows them live."""

    proposed: int = 0
    evaluated: int = 0
    failed: int = 0
    duplicates: int = 0
    reverts: int = 0


class RunState(Frozen):
    """A run, as `decide` sees it.

    `slots` and `parents` belong to the round under way (empty between rounds); `selected` says that
    its beam was chosen and only learning is left; `idle` is what a round without a verdict ends the run with.
    `outcomes` holds the round's results by effect key, and those of audits. `former` are kernels that were
    the best before `best`, in that order.
    `rejudge` are the kernels of a fork's parent (the initial one, then the beam) that must be judged anew
    before anything else. `needs_approval` are the points at which the run waits for a person, `approved` the
    last one let pass of each kind. `pinned` are the keys of settings that somebody set for this run.
    `before` is the state before a record of decisions that has begun and not ended: a fork inside it begins
    there, so that the record is made whole.
    """

    config: RunConfig
    pending_config: RunConfig | None = None
    problem: ProblemRef
    kernel: Digest
    bounds: Bounds
    toolchain: str
    status: RunStatus = RunStatus.RUNNING
    status_reason: str = ""
    stop: StopReason | None = None
    round: int = 0
    slots: tuple[SlotAssignment, ...] = ()
    parents: dict[str, Candidate] = Field(default_factory=dict)
    selected: bool = False
    idle: Ending | None = None
    open: dict[str, OpenEffect] = Field(default_factory=dict)
    outcomes: dict[str, Outcome] = Field(default_factory=dict)
    initial: Candidate | None = None
    best: Candidate | None = None
    former: tuple[Candidate, ...] = ()
    beam: tuple[BeamEntry, ...] = ()
    checkpoints: dict[str, Checkpoint] = Field(default_factory=dict)
    memory: tuple[Experience, ...] = ()
    reflections: tuple[Reflection, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    credits: dict[str, Credit] = Field(default_factory=dict)
    tally: Tally = Tally()
    spent_usd: float = 0.0
    reserved_usd: float = 0.0
    unknown_cost: bool = False
    decision_digest: str = ""
    rejudge: tuple[Rejudged, ...] = ()
    needs_approval: tuple[str, ...] = ()
    approved: dict[str, str] = Field(default_factory=dict)
    pinned: tuple[str, ...] = ()
    before: RunState | None = None

    @property
    def in_round(self) -> bool:
        return bool(self.slots)

    @property
    def joinable(self) -> bool:
        """Whether a kernel proposed now competes in this round: until it is looked at who won it."""
        looked = any(key.endswith(Role.VERIFIER) for key in (*self.open, *self.outcomes))
        return self.in_round and not self.selected and not looked

    @property
    def ended(self) -> bool:
        return self.status in (RunStatus.COMPLETED, RunStatus.CANCELLED)


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
        return _evolve(after, before=state.before or state)
    return after if after.before is None else _evolve(after, before=None)


def fork(parent: RunState, rebase: Rebase | None = None) -> RunState:
    """Return the state that a fork starts with: effects in flight are abandoned, money spent is inherited."""
    child = _evolve(
        parent.before or parent,
        open={},
        reserved_usd=0.0,
        status=RunStatus.RUNNING,
        status_reason="",
        stop=None,
        needs_approval=(),
    )
    return child if rebase is None else _rebased(child, rebase)


def _rebased(state: RunState, rebase: Rebase) -> RunState:
    """Abandon the round under way; what was judged is history, and who competes is judged anew.

    What people proposed stays: it was accepted, and not judged yet under what counts now.
    """
    first = [] if state.initial is None else [state.initial]
    known = {one.id: one for one in (*first, *(entry.candidate for entry in state.beam))}
    round_ = state.round - (state.in_round and not state.selected)
    return _evolve(
        state,
        config=rebase.config,
        pending_config=None,
        problem=rebase.problem,
        bounds=rebase.bounds,
        toolchain=rebase.toolchain,
        round=round_,
        slots=(),
        parents={},
        selected=False,
        idle=None,
        outcomes={key: one for key, one in state.outcomes.items() if _waits_for_round(one, round_)},
        initial=None,
        best=None,
        former=(),
        beam=(),
        checkpoints={},
        rejudge=state.rejudge
        or tuple(
            Rejudged(candidate=one, author=rebase.authors.get(name, NOBODY)) for name, one in known.items()
        ),
    )


def _waits_for_round(outcome: EffectEnded, round_: int) -> bool:
    return _by_person(outcome) and effect_key(outcome).round > round_


def semantic(state: RunState) -> dict[str, Any]:
    """Return what two runs with the same history of decisions share, as JSON-like data."""
    data = state.model_dump(mode="json", exclude=_NOT_SEMANTIC)
    data["open"] = {key: value["request"] for key, value in data["open"].items()}
    for outcome in data["outcomes"].values():
        for name in ("usage", "cached_from", "stage_ms", "tries"):
            outcome.pop(name, None)
    return data


def state_hash(state: RunState) -> str:
    """Return the SHA-256 of the semantic state, in hexadecimal."""
    return hashlib.sha256(canonical_json(semantic(state))).hexdigest()


_NOT_SEMANTIC = {"spent_usd", "reserved_usd", "unknown_cost", "status_reason", "before", "pinned"}


def _evolve(state: RunState, **changes: Any) -> RunState:
    """Return a copy with `changes`, which come validated in their events.

    What `model_copy` does, without its generality: a third of the time of a replay's folds.
    """
    copy = RunState.__new__(RunState)
    put = object.__setattr__  # the model is frozen
    put(copy, "__dict__", state.__dict__ | changes)
    put(copy, "__pydantic_fields_set__", state.__pydantic_fields_set__)
    put(copy, "__pydantic_extra__", None)
    put(copy, "__pydantic_private__", None)
    return copy


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
    )


def _refuse(state: RunState, event: Event) -> RunState:
    raise IllegalEvent(f"{type(event).__name__} in a run that was created already")


def _forked(state: RunState, event: RunForked) -> RunState:
    return _pinned(fork(state, event.rebase), event.pinned)


def _paused(state: RunState, event: RunPaused) -> RunState:
    _require_live(state, event)
    return _evolve(
        state, status=RunStatus.PAUSED, status_reason=event.reason, needs_approval=event.needs_approval
    )


def _resumed(state: RunState, event: RunResumed) -> RunState:
    """Points are `kind` or `kind what`: of each kind the last one that was let pass is remembered."""
    _require_live(state, event)
    passed = {point.partition(" ")[0]: point for point in event.approved}
    return _evolve(
        state,
        status=RunStatus.RUNNING,
        status_reason=event.reason,
        needs_approval=(),
        approved=state.approved | passed,
    )


def _cancelled(state: RunState, event: RunCancelled) -> RunState:
    _require_live(state, event)
    return _evolve(state, status=RunStatus.CANCELLED, status_reason=event.reason, open={}, reserved_usd=0.0)


def _completed(state: RunState, event: RunCompleted) -> RunState:
    _require_live(state, event)
    if state.open:
        raise IllegalEvent(f"RunCompleted with {len(state.open)} effects in flight")
    ended = _evolve(
        state,
        status=RunStatus.COMPLETED,
        stop=event.reason,
        status_reason=event.detail,
        outcomes={},
        slots=(),
    )
    return _decided(ended, event)


def _require_live(state: RunState, event: Event) -> None:
    if state.ended:
        raise IllegalEvent(f"{type(event).__name__} in a run that is {state.status}")


def _config_changed(state: RunState, event: ConfigChanged) -> RunState:
    return _pinned(_evolve(state, pending_config=RunConfig.model_validate(event.config)), event.pinned)


def _pinned(state: RunState, keys: tuple[str, ...]) -> RunState:
    return _evolve(state, pinned=tuple(dict.fromkeys((*state.pinned, *keys)))) if keys else state


def _round_started(state: RunState, event: RoundStarted) -> RunState:
    _require_live(state, event)
    if state.in_round or event.round != state.round + 1:
        raise IllegalEvent(f"RoundStarted({event.round}) after round {state.round}")
    known = {entry.candidate.id: entry.candidate for entry in state.beam}
    missing = [slot.parent for slot in event.slots if slot.parent not in known]
    if missing:
        raise IllegalEvent(f"RoundStarted({event.round}): parents not in the beam: {', '.join(missing)}")
    return _evolve(
        state,
        round=event.round,
        slots=event.slots,
        parents=known,
        selected=False,
        idle=None,
        config=state.pending_config or state.config,
        pending_config=None,
    )


def _beam_selected(state: RunState, event: BeamSelected) -> RunState:
    """A lineage without a kernel in the beam is over: its checkpoint is forgotten (the state stays small)."""
    alive = {entry.candidate.lineage for entry in event.beam}
    marks = {lineage: mark for lineage, mark in state.checkpoints.items() if lineage in alive}
    selected = _evolve(state, beam=event.beam, selected=state.in_round, checkpoints=marks, rejudge=())
    return _decided(selected, event)


def _round_completed(state: RunState, event: RoundCompleted) -> RunState:
    if not state.selected or event.round != state.round:
        raise IllegalEvent(f"RoundCompleted({event.round}) while round {state.round} has no beam")
    # what is left is for rounds to come: a person's kernel that arrived early, and what audits said
    later = {key: value for key, value in state.outcomes.items() if _outlives(effect_key(value), event.round)}
    return _evolve(
        state,
        slots=(),
        parents={},
        selected=False,
        idle=event.idle,
        outcomes=later,
        attempts=(state.attempts + event.attempts)[-state.config.search.history :],
        credits=event.credits,
        reflections=event.reflections,
    )


def _outlives(key: EffectKey, round_: int) -> bool:
    return key.round > round_ or key.role is Role.AUDITOR


def _started(state: RunState, event: EffectStarted) -> RunState:
    _require_live(state, event)
    if event.key in state.outcomes:
        raise IllegalEvent(f"{event.key}: a start after its outcome")
    before = state.open.get(event.key)
    if event.delivery != (before.delivery if before else 0) + 1:
        raise IllegalEvent(f"{event.key}: delivery {event.delivery} out of order")
    if before is not None and before.request != event.request:
        raise IllegalEvent(f"{event.key}: a redelivery must carry the request as logged")
    opened = OpenEffect(request=event.request, delivery=event.delivery, reserved_usd=event.reserved_usd)
    held = state.reserved_usd - (before.reserved_usd if before else 0.0) + event.reserved_usd
    return _evolve(state, open={**state.open, event.key: opened}, reserved_usd=held)


def _ended(state: RunState, event: EffectEnded) -> RunState:
    if event.key in state.outcomes:
        raise IllegalEvent(f"{event.key}: a second outcome")
    opened = state.open.get(event.key)
    if opened is None and not _by_person(event):
        if state.status is RunStatus.CANCELLED:
            return _charged(state, event.usage)
        raise IllegalEvent(f"{event.key}: an outcome without a start")
    rest = {key: value for key, value in state.open.items() if key != event.key}
    changed = _evolve(
        state,
        open=rest,
        outcomes={**state.outcomes, event.key: event},
        tally=_TALLIES.get(type(event), _same_tally)(state.tally, event),
        reserved_usd=state.reserved_usd - (opened.reserved_usd if opened else 0.0),
    )
    return _charged(_audited(changed, event), event.usage)


def _audited(state: RunState, event: EffectEnded) -> RunState:
    """The best kernel stands at the level that its audit has shown."""
    best, key = state.best, effect_key(event)
    if not isinstance(event, EvaluationCompleted) or not event.evaluation.correct:
        return state
    if key.role is not Role.AUDITOR or best is None or best.id != key.candidate:
        return state
    return _evolve(state, best=best.model_copy(update={"level": event.evaluation.level}))


def _by_person(event: EffectEnded) -> bool:
    """A person's kernel arrives finished: no effect of ours produced it."""
    return isinstance(event, KernelProposed) and event.author == PERSON


def _charged(state: RunState, usage: Usage) -> RunState:
    if usage.cost_usd == 0.0:
        return state
    if usage.cost_usd is None:
        return _evolve(state, unknown_cost=True)
    return _evolve(state, spent_usd=state.spent_usd + usage.cost_usd)


def _spent(state: RunState, event: BudgetSpent) -> RunState:
    return _evolve(state, spent_usd=state.spent_usd + event.amount_usd)


def _same_tally(tally: Tally, event: Any) -> Tally:
    return tally


def _count_proposed(tally: Tally, event: KernelProposed) -> Tally:
    return tally._replace(proposed=tally.proposed + 1)


def _count_unproposed(tally: Tally, event: ExecutionFailed) -> Tally:
    return tally._replace(failed=tally.failed + 1)


def _count_evaluated(tally: Tally, event: EvaluationCompleted) -> Tally:
    """A kernel that is judged again is evaluated once, and fails once: the first refusal ends it."""
    first = effect_key(event).role is Role.EVALUATOR
    failed = tally.failed + (not event.evaluation.correct)
    return tally._replace(evaluated=tally.evaluated + first, failed=failed)


_TALLIES: dict[type[Event], Callable[[Tally, Any], Tally]] = {
    KernelProposed: _count_proposed,
    ExecutionFailed: _count_unproposed,
    EvaluationCompleted: _count_evaluated,
}


def _kept(state: RunState, event: KernelKept) -> RunState:
    candidate, best, former = event.candidate, state.best, state.former
    if best is None or candidate.latency_ms < best.latency_ms:
        former = former if best is None else (*former, best)[-FORMER:]
        best = candidate
    kept = _evolve(state, best=best, former=former, initial=state.initial or candidate)
    return _decided(kept, event)


def _discarded(state: RunState, event: KernelDiscarded) -> RunState:
    if event.duplicate_of is None:
        return _decided(state, event)
    tally = state.tally._replace(duplicates=state.tally.duplicates + 1)
    return _decided(_evolve(state, tally=tally), event)


def _reverted(state: RunState, event: KernelReverted) -> RunState:
    tally = state.tally._replace(reverts=state.tally.reverts + 1)
    return _decided(_evolve(state, tally=tally), event)


def _refuted(state: RunState, event: KernelRefuted) -> RunState:
    gone = {event.candidate, event.best.id if event.best else None}
    changed = _evolve(
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
    return _decided(_evolve(state, checkpoints={**state.checkpoints, mark.lineage: mark}), event)


def _curated(state: RunState, event: MemoryCurated) -> RunState:
    return _decided(_evolve(state, memory=event.memory), event)


def _decided(state: RunState, event: Event) -> RunState:
    """Chain a decision into the digest by which twins compare everything that was decided, in order."""
    line = state.decision_digest.encode() + event.model_dump_json().encode()
    return _evolve(state, decision_digest=hashlib.sha256(line).hexdigest())


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
    RoundStarted: _round_started,
    BeamSelected: _beam_selected,
    RoundCompleted: _round_completed,
    KernelKept: _kept,
    KernelDiscarded: _discarded,
    KernelReverted: _reverted,
    KernelRefuted: _refuted,
    GuardCheckpointed: _checkpointed,
    MemoryCurated: _curated,
    BudgetSpent: _spent,
    PlanStarted: _started,
    ExecutionStarted: _started,
    EvaluationStarted: _started,
    SummaryStarted: _started,
    ReflectionStarted: _started,
    PlanProposed: _ended,
    PlanFailed: _ended,
    KernelProposed: _ended,
    ExecutionFailed: _ended,
    EvaluationCompleted: _ended,
    EvaluationFailed: _ended,
    ExperienceRecorded: _ended,
    ReflectionRecorded: _ended,
}
