"""`decide(state)` returns what a run does next; it is the pure and total core of the search.

A run goes through phases, which follow from its state:

- The starting kernels are made and judged (`starts`).
- Between rounds, the stop rules are checked, or a round starts.
- In a round, its candidate slots are worked on until all are terminal. Then the kernels that would enter the
  beam are verified, and one record selects the beam.
- The round is learnt from, and a record completes it.
- Before the run ends, its best kernel is audited.

Each phase asks for effects that are neither in flight nor done, or for one record. Nothing is remembered
outside the state, so asking twice gives the same answer, and effects in flight at a crash are not asked for
again.
"""

from __future__ import annotations

from agent_core import (
    approval,
    audit,
    ensemble,
    late_results,
    learning,
    rebase,
    round_selection,
    starts,
    strategies,
    verification,
)
from agent_core.effects import Decision, Record
from agent_core.proposers import can_look_ahead, can_repair
from agent_core.requests import pending_effects
from agent_core.round_view import list_candidate_slots
from agent_core.stop import find_ending
from state.events import RoundStarted
from state.fold import RunState
from state.model import PERSON_SLOT, RunConfig, RunStatus, SlotAssignment, StopReason


def decide(state: RunState) -> list[Decision]:
    """Return what the run needs now: effects to start, in key order, or one record, or nothing.

    It is nothing if the run is paused or over, or only waits for effects in flight.
    """
    if state.status is not RunStatus.RUNNING:
        return []
    return approval.pause_for_approval(state, _next_decisions(state))


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
    such as a spent budget, ends the run anyway.
    """
    struck = audit.drop_refuted_kernel(state)
    if struck is not None:
        return [struck]
    config = state.pending_config or state.config
    ending = find_ending(state, config)
    if ending is None:
        return [Record((_start_round(state, config, plans=config.search.plans),))]
    if ending.reason not in _IMMEDIATE_ENDINGS:
        if due := late_results.pending_evaluations(state):
            return [*due]
        if _has_person_proposal(state) or late_results.has_ready_kernels(state):
            return [Record((_start_round(state, config, plans=0),))]
    return audit.complete_run(state, ending)


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
    return RoundStarted(round=state.round + 1, slots=tuple(slots), prompts=state.next_prompts)


def _advance_round(state: RunState) -> list[Decision]:
    places = list_candidate_slots(state)
    waiting = [] if state.expired else [place for place in places if place.waits_for is not None]
    asked = [*late_results.pending_evaluations(state), *pending_effects(state, waiting)]
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
