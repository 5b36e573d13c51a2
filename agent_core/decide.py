"""`decide(state)` returns what a run does next; it is the pure and total core of the search.

A run goes through phases, which follow from its state:

- The starting kernels are made and judged (`starts`).
- Between rounds, the stop rules are checked, or a round starts.
- In a round, its candidate slots are worked on until all are terminal. Then the kernels that would enter the
  beam are verified, and one record selects the beam.
- The round is learnt from, and a record completes it.
- Before the run ends, its best kernel is simplified (`simplification`), then audited.

Each phase asks for effects that are neither in flight nor done, or for one record. Nothing is remembered
outside the state, so asking twice gives the same answer, and effects in flight at a crash are not asked for
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent_core import (
    audit,
    ensemble,
    learning,
    rebase,
    round_selection,
    simplification,
    spending,
    starts,
    strategies,
    verification,
)
from agent_core.effects import Decision, Effect, Record
from agent_core.proposers import can_look_ahead, can_repair
from agent_core.requests import make_evaluation_request, pending_effects
from agent_core.round_view import list_candidate_slots
from agent_core.stop import find_ending, is_last_round, is_time_over
from state.events import Event, RoundStarted, RunCompleted, RunPaused
from state.fold import RunState
from state.model import PERSON_SLOT, EffectKey, Level, Role, RunConfig, RunStatus, SlotAssignment, StopReason


def decide(state: RunState) -> list[Decision]:
    """Return what the run needs now: effects to start, in key order, or one record, or nothing.

    It is nothing if the run is paused or over, or only waits for effects in flight.
    """
    if state.status is not RunStatus.RUNNING:
        return []
    return _pause_for_approval(state, _next_decisions(state))


def _next_decisions(state: RunState) -> list[Decision]:
    if state.rejudge:
        return rebase.rejudge_kernels(state)
    if state.initial is None:
        return starts.begin_run(state)
    if not state.in_round:
        return _decide_between_rounds(state)
    return _learn_from_round(state) if state.selected else _advance_round(state)


def _decide_between_rounds(state: RunState) -> list[Decision]:
    """Drop a kernel that the audit proved wrong, start a round, or end the run; each alone.

    Settings that were changed meanwhile count from here on.

    A kernel that a person proposed too late for the last round gets a round of its own, without plans: it was
    accepted, so it is judged. The same holds for a kernel that missed a deadline. Only an immediate ending,
    such as a spent budget, ends the run anyway. If the run's time is over, kernels that were being judged
    then still compete: the run does not end before their verdicts.
    """
    struck = audit.drop_refuted_kernel(state)
    if struck is not None:
        return [struck]
    config = state.pending_config or state.config
    ending = find_ending(state, config)
    if ending is None:
        return [Record((_start_round(state, config, plans=config.search.plans),))]
    is_immediate = ending.reason in _IMMEDIATE_ENDINGS
    if not is_immediate and (due := _list_late_evaluations(state)):
        return [*due]
    proposed = not is_immediate and _has_person_proposal(state)
    by_time = ending.reason is StopReason.BUDGET and is_time_over(state, config)
    judged = (by_time or not is_immediate) and _has_ready_late_kernels(state)
    if proposed or judged:
        return [Record((_start_round(state, config, plans=0),))]
    simpler = simplification.simplify_best(state, config, ending)
    return audit.complete_run(state, ending) if simpler is None else simpler


_IMMEDIATE_ENDINGS = frozenset({StopReason.BUDGET, StopReason.INITIAL_REJECTED})
"""Reasons to end a run although a person's kernel waits: no money is left, or there is no beam."""


def _has_person_proposal(state: RunState) -> bool:
    early = f"r{state.round + 1}.b{PERSON_SLOT}."
    return any(key.startswith(early) for key in state.outcomes)


def _start_round(state: RunState, config: RunConfig, *, plans: int) -> RoundStarted:
    """Assign a parent, a planner and a model to each slot; planners take turns, shifted by one each round."""
    search = config.search
    ahead = search.lookahead_predictions > 0  # a plan then names its one kernel
    parents = strategies.select_parents(state, config)
    turns = [config.planner[(state.round + number) % len(config.planner)] for number in range(len(parents))]
    models = ensemble.assign_models(state, config, turns)
    slots = [
        SlotAssignment(
            slot=number,
            parent=parent.id,
            planner=planner,
            model=model,
            plans=plans,
            implementations=1 if ahead and can_look_ahead(planner) else search.implementations,
            repairs=search.repairs if can_repair(planner) else 0,
        )
        for number, (parent, planner, model) in enumerate(zip(parents, turns, models, strict=True))
    ]
    fitted = spending.fit_slots(state, config, slots)
    return RoundStarted(
        round=state.round + 1,
        slots=tuple(fitted),
        prompts=state.next_prompts,
        executors=ensemble.weigh_executors(state, config),
    )


def _advance_round(state: RunState) -> list[Decision]:
    places = list_candidate_slots(state)
    waiting = [] if state.expired else [place for place in places if place.waits_for is not None]
    late = [] if is_last_round(state) else _list_late_evaluations(state)
    asked = [*late, *pending_effects(state, waiting)]
    if waiting or asked:
        return [*asked]
    verifications = verification.verification_effects(state, places)
    if verifications is not None:
        return [*verifications]
    return [round_selection.record_selection(state, verification.settle_slots(state, places))]


def _learn_from_round(state: RunState) -> list[Decision]:
    places = verification.settle_slots(state, list_candidate_slots(state))
    effects = learning.learning_effects(state, places)
    return [learning.complete_round(state, places)] if effects is None else [*effects]


def _list_late_evaluations(state: RunState) -> list[Effect]:
    """Return the evaluations of late kernels that were not started yet, in key order.

    Late kernels were in flight when their round's deadline passed; the round did not wait for them, and they
    compete once they are judged. Only a run that would end first lets them arrive, and gives them a round of
    their own.
    """
    found = []
    for place in sorted(map(EffectKey.parse, state.late)):
        late, key = state.late[str(place)], place.for_role(Role.EVALUATOR)
        if late.kernel is not None and late.judged is None and str(key) not in state.open:
            kernel = late.kernel
            request = make_evaluation_request(
                state, key, kernel.source, kernel.author, level=Level.SLICES, parent=late.parent
            )
            found.append(Effect(key, request))
    return found


def _has_ready_late_kernels(state: RunState) -> bool:
    """Return whether all late kernels are judged, with at least one that has not competed yet."""
    return not state.open and any(late.judged is not None for late in state.late.values())


_FAILURES = frozenset({StopReason.INITIAL_REJECTED, StopReason.INFRASTRUCTURE, StopReason.NO_PROPOSALS})
"""Endings that a person could not have prevented."""


def _pause_for_approval(state: RunState, decisions: Sequence[Decision]) -> list[Decision]:
    """Return `decisions`, or the pause that must come before them.

    If the next step lies beyond a point that nobody has approved yet, the run pauses and says what it waits
    for. An approval covers all points that the run waits at. Then the step is decided anew, so settings that
    were changed meanwhile count.
    """
    for decision in decisions:
        if isinstance(decision, Record):
            points = tuple(_pending_points(state, decision.events[-1]))
            if points:
                reason = f"needs approval: {', '.join(points)}"
                return [Record((RunPaused(reason=reason, needs_approval=points),))]
    return list(decisions)


def _pending_points(state: RunState, step: Event) -> Iterator[str]:
    """Yield the points before `step` that were not approved."""
    wanted = (state.pending_config or state.config).approval
    for kind, point in _approval_points(state, step):
        if kind in wanted and state.approved.get(kind) != point:
            yield point


def _approval_points(state: RunState, step: Event) -> Iterator[tuple[str, str]]:
    ends = isinstance(step, RunCompleted) and step.reason not in _FAILURES
    if not (ends or isinstance(step, RoundStarted)):
        return
    if state.best is not None and state.initial is not None and state.best.id != state.initial.id:
        yield "new_best", f"new_best {state.best.id}"
    if isinstance(step, RoundStarted):
        yield "before_round", f"before_round {step.round}"
    else:
        yield "completion", f"completion {state.round}"
