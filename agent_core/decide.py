"""What to do next: `decide(state)`, the pure and total heart of the search.

A run goes through phases that its state tells apart: the initial kernel is judged; between rounds the
stop rules speak or a round starts; in a round its places are worked on until all are terminal, then who would
enter the beam is verified, then one record selects it; then the round is learnt from, and a record completes
it; before the run ends its best kernel is audited. Each phase asks for the effects that are neither in flight
nor done, or for one record; nothing is remembered outside the state, so asking twice gives the same answer,
and what was in flight at a crash is not asked for again.
"""

from __future__ import annotations

from agent_core import (
    approval,
    audit,
    closing,
    ensemble,
    lateness,
    learning,
    rejudging,
    strategies,
    verification,
)
from agent_core.effects import Decision, Record
from agent_core.proposers import looks_ahead, repairs
from agent_core.requests import effects_of, initial_effect
from agent_core.stop import stop
from agent_core.survey import refusal, survey
from state.events import EvaluationCompleted, EvaluationFailed, RoundStarted, RunCompleted
from state.fold import RunState
from state.model import INITIAL_KEY, PERSON_SLOT, RunConfig, RunStatus, SlotAssignment, StopReason


def decide(state: RunState) -> list[Decision]:
    """Return what the run needs now: effects to start, in key order, or one record, or nothing.

    Nothing while the run is paused or over, and while it only waits for effects in flight.
    """
    if state.status is not RunStatus.RUNNING:
        return []
    return approval.gate(state, _wanted(state))


def _wanted(state: RunState) -> list[Decision]:
    if state.rejudge:
        return rejudging.judge_anew(state)
    if state.initial is None:
        return _judge_initial(state)
    if not state.in_round:
        return _between_rounds(state)
    return _learn(state) if state.selected else _work(state)


def _judge_initial(state: RunState) -> list[Decision]:
    key = str(INITIAL_KEY)
    judged = state.outcomes.get(key)
    if judged is None:
        return [] if key in state.open else [initial_effect(state)]
    if isinstance(judged, EvaluationFailed):
        return [_ended(StopReason.INFRASTRUCTURE, f"{judged.error.code}: {judged.error.message}")]
    assert isinstance(judged, EvaluationCompleted)
    error = refusal(judged.evaluation)
    if error is not None:
        verdict = judged.evaluation.verdict.value
        return [_ended(StopReason.INITIAL_REJECTED, f"{verdict}: {error.code}: {error.message}")]
    return [closing.first_beam(state, judged.evaluation)]


def _ended(reason: StopReason, detail: str) -> Record:
    return Record((RunCompleted(reason=reason, detail=detail),))


def _between_rounds(state: RunState) -> list[Decision]:
    """Let fall what an audit refuted, start a round, or end the run, each by itself.

    A setting that was changed meanwhile counts from here on.

    A kernel that a person proposed too late for the last round gets a round to itself, without plans:
    it was accepted, so it is judged. So does one that missed a deadline. Only a spent budget ends the run
    all the same.
    """
    struck = audit.strike(state)
    if struck is not None:
        return [struck]
    config = state.pending_config or state.config
    ending = stop(state, config)
    if ending is None:
        return [Record((_round_started(state, config, plans=config.search.plans),))]
    if ending.reason not in _AT_ONCE:
        if due := lateness.due(state):
            return [*due]
        if _person_waits(state) or lateness.waits(state):
            return [Record((_round_started(state, config, plans=0),))]
    return audit.complete(state, ending)


_AT_ONCE = frozenset({StopReason.BUDGET, StopReason.INITIAL_REJECTED})
"""Why a run ends even where a kernel of a person waits: no money is left, or no beam."""


def _person_waits(state: RunState) -> bool:
    early = f"r{state.round + 1}.b{PERSON_SLOT}."
    return any(key.startswith(early) for key in state.outcomes)


def _round_started(state: RunState, config: RunConfig, *, plans: int) -> RoundStarted:
    """Deal parents to slots, and planners to them in turn, one further each round; and models to planners."""
    search = config.search
    ahead = search.lookahead_predictions > 0  # then a plan names its kernel: there is no second one
    parents = strategies.parents(state, config)
    turns = [config.planner[(state.round + number) % len(config.planner)] for number in range(len(parents))]
    models = ensemble.deal(state, config, turns)
    slots = [
        SlotAssignment(
            slot=number,
            parent=parent.id,
            planner=planner,
            model=model,
            plans=plans,
            implementations=1 if ahead and looks_ahead(planner) else search.implementations,
            repairs=search.repairs if repairs(planner) else 0,
        )
        for number, (parent, planner, model) in enumerate(zip(parents, turns, models, strict=True))
    ]
    return RoundStarted(round=state.round + 1, slots=tuple(slots), prompts=state.prompts_to_come)


def _work(state: RunState) -> list[Decision]:
    places = survey(state)
    waiting = [] if state.expired else [place for place in places if place.waits_for is not None]
    asked = [*lateness.due(state), *effects_of(state, waiting)]
    if waiting or asked:
        return [*asked]
    verifications = verification.effects(state, places)
    if verifications is not None:
        return [*verifications]
    return [closing.close(state, verification.settled(state, places))]


def _learn(state: RunState) -> list[Decision]:
    places = verification.settled(state, survey(state))
    effects = learning.effects(state, places)
    return [learning.complete(state, places)] if effects is None else [*effects]
