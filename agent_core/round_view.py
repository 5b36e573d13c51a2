"""A view of a round, read from the state: its candidate slots, their results, and what each waits for.

A **candidate slot** is one (slot, plan, implementation), or one kernel that a person proposed. It has a chain
of **attempts**: the first kernel, then its repairs. Results are looked up by effect key in slot order, never
in order of arrival, so two states with the same results give the same view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from agent_core import spending, strategies
from agent_core.proposers import can_look_ahead
from state.events import (
    EvaluationCompleted,
    EvaluationFailed,
    ExecutionFailed,
    KernelProposed,
    PlanFailed,
    PlanProposed,
    PredictionBatch,
    effect_key,
)
from state.fold import RunState
from state.model import (
    PERSON_SLOT,
    PREFILTERED,
    Candidate,
    Digest,
    EffectKey,
    ErrorInfo,
    Evaluation,
    Plan,
    Role,
    SlotAssignment,
)

UNUSABLE_ANSWERS = frozenset({
    "no_block", "not_python", "no_kernel", "nothing_changed", "too_long",
    "bad_edits", "edit_not_found", "edit_not_unique", "edit_changes_nothing",
})  # fmt: skip
"""Codes of failed effects whose model answered, but with nothing that is a kernel."""

MOST_FURTHER = 3
"""The most kernels that a session submits besides its first."""

MOST_PLANS = 4
"""The most plans that a planner's session submits."""


@dataclass(frozen=True, slots=True)
class KernelAttempt:
    """One kernel of a candidate slot and its result.

    `error` says why there is no kernel, why the judge refused it (with `refuted`: when it compared more), or
    why it could not be judged (with `infrastructure`). It is None for a correct kernel. `key` is the
    executor's.
    """

    key: EffectKey
    kernel: KernelProposed | None = None
    evaluation: Evaluation | None = None
    error: ErrorInfo | None = None
    infrastructure: bool = False
    refuted: bool = False

    @property
    def is_refused(self) -> bool:
        return self.evaluation is not None and self.error is not None

    @property
    def is_unusable(self) -> bool:
        """Whether a model answered, and nothing of it was a kernel."""
        return self.kernel is None and self.error is not None and self.error.code in UNUSABLE_ANSWERS

    @property
    def is_held_back(self) -> bool:
        """Whether the kernel was left out only because others are predicted to be faster."""
        return self.error is not None and self.error.code == PREFILTERED


@dataclass(frozen=True, slots=True)
class CandidateSlot:
    """One candidate slot. `waits_for` is the effect that it needs next, None if it is terminal.

    `plan` is None until there is one. A person's kernel has neither plan nor slot.
    """

    parent: Candidate
    slot: SlotAssignment | None
    plan: Plan | None = None
    tries: tuple[KernelAttempt, ...] = ()
    waits_for: EffectKey | None = None


@dataclass(frozen=True, slots=True)
class TimedCandidate:
    """A correct, timed kernel of the round, with its origin."""

    key: EffectKey
    candidate: Candidate
    parent: Candidate
    plan: Plan | None


def list_candidate_slots(state: RunState) -> tuple[CandidateSlot, ...]:
    """Return the candidate slots of the current round.

    Late kernels of earlier rounds come first, then the round's own slots in order, then people's kernels.
    """
    slots = sorted(state.slots, key=lambda slot: slot.slot)
    refused = _find_refusals(state)
    planned = [place for slot in slots for place in _planned_slots(state, slot, refused)]
    return (*_late_slots(state, refused), *planned, *_person_slots(state, refused))


def timed_candidates(state: RunState, places: Iterable[CandidateSlot]) -> tuple[TimedCandidate, ...]:
    """Return all correct kernels of the round, duplicates included, in slot order."""
    return tuple(
        TimedCandidate(tried.key, _attempt_candidate(state, place, tried), place.parent, place.plan)
        for place in places
        for tried in place.tries
        if tried.evaluation is not None and tried.error is None
    )


def find_duplicates(state: RunState, found: Iterable[TimedCandidate]) -> dict[str, str]:
    """Return, for each kernel whose code another kernel owns, the owner's id.

    The round's parents own their code first, then the lowest slot does.
    """
    owners: dict[Digest, str] = {parent.code: parent.id for parent in state.parents.values()}
    copies: dict[str, str] = {}
    for sample in found:
        owner = owners.setdefault(sample.candidate.code, sample.candidate.id)
        if owner != sample.candidate.id:
            copies[sample.candidate.id] = owner
    return copies


def executor_key(candidate: str) -> EffectKey:
    """Return the executor's key for a candidate's id."""
    return EffectKey.parse(f"{candidate}.{Role.EXECUTOR}")


Refusals = Mapping[Digest, Evaluation]
"""The verdict on each code that was refused."""


def _find_refusals(state: RunState) -> Refusals:
    """Return the refusal of each code that was refused in the round, the one with the lowest key.

    A code may pass on tiles in one slot and be refused in another, where it is so much faster than its parent
    that more is compared. It counts as refused in both, whichever verdict comes first.
    """
    verdicts = (one for _, one in sorted(state.outcomes.items()) if isinstance(one, EvaluationCompleted))
    first = [
        one for one in verdicts if effect_key(one).role is Role.EVALUATOR and not one.evaluation.is_correct
    ]
    return {one.evaluation.code: one.evaluation for one in reversed(first)}


def _planned_slots(state: RunState, slot: SlotAssignment, refused: Refusals) -> Iterator[CandidateSlot]:
    parent = state.parents[slot.parent]
    looking = look_ahead_key(state, slot)
    if looking is not None and str(looking) not in state.outcomes:
        yield CandidateSlot(parent, slot, waits_for=looking)
        return
    in_turn, is_waiting = slot.model is not None and spending.is_probing(state), False
    in_sessions = slot.model is not None and state.config.llm.planner_form == "loop"
    for number in range(slot.plans):
        key = EffectKey(state.round, slot.slot, number, 0, 0, Role.PLANNER)
        planned = state.outcomes.get(str(key))
        if planned is None:
            if in_turn and number and (is_waiting or not spending.can_pay_another(state, number)):
                return
            is_waiting = True
            yield CandidateSlot(parent, slot, waits_for=key)
            if in_sessions:  # one after the other: a session may submit the plans that follow
                return
        elif not isinstance(planned, PlanFailed):
            assert isinstance(planned, PlanProposed)
            for implementation in range(slot.implementations):
                first = key._replace(implementation=implementation, role=Role.EXECUTOR)
                tries, waits_for = _follow_attempts(state, first, slot.repairs, refused=refused)
                is_waiting = is_waiting or waits_for is not None
                yield CandidateSlot(parent, slot, _plan_of(planned.plan, tries), tries, waits_for)
                for tried in tries:
                    yield from _further_slots(state, tried, slot, plan=planned.plan, refused=refused)


def further_keys(state: RunState, key: EffectKey) -> Iterator[EffectKey]:
    """Yield an executor's own key, then those of the kernels that its session submits besides.

    Theirs are numbers of implementations that no plan is given.
    """
    yield key
    slot = state.slot_of(key)
    if slot is not None:
        first = slot.implementations + MOST_FURTHER * (key.implementation + slot.implementations * key.repair)
        yield from (key._replace(implementation=first + number, repair=0) for number in range(MOST_FURTHER))


def _further_slots(
    state: RunState, tried: KernelAttempt, slot: SlotAssignment, *, plan: Plan, refused: Refusals
) -> Iterator[CandidateSlot]:
    """Yield the places of the kernels that a session submitted besides its first; they are not repaired."""
    parent = state.parents[slot.parent]
    for key in islice(further_keys(state, tried.key), 1, None):
        if str(key) in state.outcomes:
            tries, waits_for = _follow_attempts(state, key, 0, refused=refused)
            own = state.outcomes[str(key)]
            assert isinstance(own, KernelProposed)
            yield CandidateSlot(parent, slot, _told_plan(plan, own), tries, waits_for)


def _plan_of(plan: Plan, tries: tuple[KernelAttempt, ...]) -> Plan:
    """Return a plan as the session that carried it out says it did."""
    last = tries[-1].kernel if tries else None
    return _told_plan(plan, last) if last is not None else plan


def _told_plan(plan: Plan, kernel: KernelProposed) -> Plan:
    changes: dict[str, object] = {}
    if kernel.technique and kernel.technique != plan.technique:
        changes |= {"technique": kernel.technique, "steps": ()}
    if kernel.beside is not None:
        changes |= {"title": kernel.note}
    if kernel.speedup is not None:
        changes |= {"prediction": plan.prediction.model_copy(update={"speedup": kernel.speedup})}
    return plan.model_copy(update=changes) if changes else plan


def look_ahead_key(state: RunState, slot: SlotAssignment) -> EffectKey | None:
    """Return the key of the lookahead from a slot's parent; None if its planner does not look ahead."""
    search = state.config.search
    wanted = search.lookahead_predictions > 0 or strategies.drawn_sequence_length(search) > 0
    may = slot.plans > 0 and wanted and can_look_ahead(slot.planner)
    return EffectKey(state.round, slot.slot, 0, 0, 0, Role.PREDICTOR) if may else None


def look_ahead_variants(state: RunState, slot: SlotAssignment) -> Digest | None:
    """Return the blob of variants that the lookahead for a slot found, or None."""
    looking = look_ahead_key(state, slot)
    found = state.outcomes.get(str(looking)) if looking is not None else None
    return found.variants if isinstance(found, PredictionBatch) else None


def _late_slots(state: RunState, refused: Refusals) -> Iterator[CandidateSlot]:
    for key in sorted(map(EffectKey.parse, state.late)):
        late = state.late[str(key)]
        if late.kernel is not None and late.judged is not None and late.competes_in == state.round:
            tried = _judged_attempt(key, late.kernel, late.judged, refused=refused)
            yield CandidateSlot(_with_live_lineage(state, late.parent), None, late.plan, (tried,))


def _with_live_lineage(state: RunState, parent: Candidate) -> Candidate:
    """Return a late kernel's parent, moved to the lineage of the fastest parent if its own has ended."""
    if parent.lineage in state.checkpoints:
        return parent
    return parent.model_copy(update={"lineage": _fastest_parent(state).lineage})


def _fastest_parent(state: RunState) -> Candidate:
    return min(state.parents.values(), key=lambda parent: (parent.latency_ms, executor_key(parent.id)))


def _person_slots(state: RunState, refused: Refusals) -> Iterator[CandidateSlot]:
    prefix = f"r{state.round}.b{PERSON_SLOT}."
    keys = {EffectKey.parse(key).for_role(Role.EXECUTOR) for key in state.outcomes if key.startswith(prefix)}
    if not keys:
        return
    best = _fastest_parent(state)
    for key in sorted(keys):
        tries, waits_for = _follow_attempts(state, key, 0, refused=refused)
        yield CandidateSlot(best, None, None, tries, waits_for)


def _follow_attempts(
    state: RunState, first: EffectKey, repairs: int, *, refused: Refusals
) -> tuple[tuple[KernelAttempt, ...], EffectKey | None]:
    """Return the attempts of a candidate slot and the effect it waits for.

    Repair ends when a kernel is correct, when no repairs are left, or when an error comes back. A repairer
    whose answer cannot be used takes a repair, like one whose kernel is refused.
    """
    tries: list[KernelAttempt] = []
    for repair in range(repairs + 1):
        found = _read_attempt(state, first._replace(repair=repair), refused)
        if isinstance(found, EffectKey):
            return tuple(tries), found
        returned = any(_has_same_error(found, earlier) for earlier in tries)
        tries.append(found)
        if returned or found.is_held_back or not (found.is_refused or (repair and found.is_unusable)):
            break
    return tuple(tries), None


def _read_attempt(state: RunState, key: EffectKey, refused: Refusals) -> KernelAttempt | EffectKey:
    """Return the result of one kernel, or the key of the effect that it waits for."""
    made = state.outcomes.get(str(key))
    if made is None:
        return key
    if isinstance(made, ExecutionFailed):
        return KernelAttempt(key, error=made.error)
    assert isinstance(made, KernelProposed)
    judging = key.for_role(Role.EVALUATOR)
    judged = state.outcomes.get(str(judging))
    if judged is None:
        return judging
    assert isinstance(judged, EvaluationCompleted | EvaluationFailed)
    return _judged_attempt(key, made, judged, refused=refused)


def _judged_attempt(
    key: EffectKey, made: KernelProposed, judged: EvaluationCompleted | EvaluationFailed, *, refused: Refusals
) -> KernelAttempt:
    if isinstance(judged, EvaluationFailed):
        return KernelAttempt(key, made, error=judged.error, infrastructure=True)
    evaluation = refused.get(judged.evaluation.code, judged.evaluation)
    return KernelAttempt(key, made, evaluation, refusal_error(evaluation))


def refusal_error(evaluation: Evaluation) -> ErrorInfo | None:
    """Return why a kernel cannot compete: the judge's error, or its verdict without one. None if it can."""
    if evaluation.is_correct and evaluation.benchmark is not None:
        return None
    verdict = evaluation.verdict.value
    return evaluation.error or ErrorInfo(
        code=verdict, message=f"stage {evaluation.stage}: {verdict}, no latency"
    )


def _has_same_error(one: KernelAttempt, other: KernelAttempt) -> bool:
    return (one.error and (one.error.code, one.error.message)) == (
        other.error and (other.error.code, other.error.message)
    )


def _attempt_candidate(state: RunState, place: CandidateSlot, tried: KernelAttempt) -> Candidate:
    assert tried.kernel is not None
    assert tried.evaluation is not None
    title = place.plan.title if place.plan else tried.kernel.note
    return make_candidate(
        tried.key,
        source=tried.kernel.source,
        author=tried.kernel.author,
        evaluation=tried.evaluation,
        parent=place.parent,
        technique=place.plan.technique if place.plan else None,
        title=title,
    )


def make_candidate(
    key: EffectKey,
    *,
    source: Digest,
    author: str,
    evaluation: Evaluation,
    parent: Candidate | None,
    technique: str | None,
    title: str,
) -> Candidate:
    """Return the candidate of a correct, timed kernel, in its parent's lineage or in a new one."""
    assert evaluation.benchmark is not None
    return Candidate(
        id=key.candidate_id,
        parent=parent.id if parent else None,
        lineage=parent.lineage if parent else key.candidate_id,
        round=key.round,
        source=source,
        code=evaluation.code,
        technique=technique,
        title=title,
        benchmark=evaluation.benchmark,
        profile=evaluation.profile,
        bottleneck=evaluation.bottleneck,
        level=evaluation.level,
        author=author,
    )
