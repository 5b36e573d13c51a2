"""Builds the requests of effects from the state alone, such as those of planner, executor and evaluator.

A request is complete: recovery runs it again as the log has it. What the run has learnt does not change
during a round, so it is one blob that all plans of the round name.
"""

from __future__ import annotations

from collections.abc import Callable

from agent_core import strategies
from agent_core.effects import (
    Effect,
    FailedTry,
    ImplementRequest,
    LearningContext,
    LookAheadRequest,
    PlanRequest,
    SessionRequest,
)
from agent_core.proposers import AGENT, is_llm_proposer
from agent_core.round_view import MOST_PLANS, CandidateSlot, look_ahead_variants
from stability.attempt_history import tried_codes
from state.events import KernelProposed
from state.fold import RunState
from state.model import (
    Candidate,
    Digest,
    EffectKey,
    EvaluationRequest,
    Level,
    LlmConfig,
    Role,
    RoleForm,
    RunConfig,
    canonical_json,
    digest_of,
    draw_seed,
    round_usd,
)
from targets.registry import measures_in_turns


def evaluate_at_level(state: RunState, key: EffectKey, one: Candidate, level: Level) -> Effect:
    """Return the evaluation, at `level`, of a kernel that passed at a lower level."""
    return Effect(key, make_evaluation_request(state, key, one.source, one.author, level=level))


def pending_effects(state: RunState, places: list[CandidateSlot]) -> list[Effect]:
    """Return the effects that `places` wait for, each once, in key order, without effects in flight."""
    wanted = {place.waits_for: place for place in places if place.waits_for is not None}
    missing = sorted(key for key in wanted if str(key) not in state.open)
    context = _learning_context(state) if any(_reads_context(state, key) for key in missing) else b""
    return [_MAKERS[key.role](state, key, wanted[key], context) for key in missing]


_ROLES_WITH_CONTEXT = frozenset({Role.PREDICTOR, Role.PLANNER})
"""Roles whose requests carry what the run has learnt."""


def _reads_context(state: RunState, key: EffectKey) -> bool:
    return key.role in _ROLES_WITH_CONTEXT or _works_in_loop(state, key)


def _works_in_loop(state: RunState, key: EffectKey) -> bool:
    """Return whether an effect of a planner or an executor is a session with tools."""
    slot = state.slot_of(key)
    if key.role not in (Role.PLANNER, Role.EXECUTOR) or slot is None:
        return False
    if not is_llm_proposer(slot.planner):
        return slot.planner == AGENT and key.role is Role.EXECUTOR
    role = "repairer" if key.repair > 0 else key.role.value
    return form_of_role(state.config.llm, role) == "loop"


def form_of_role(settings: LlmConfig, role: str) -> RoleForm:
    """Return how planner, executor or repairer work; all others answer questions."""
    match role:
        case "planner":
            return settings.planner_form or "question"
        case "executor":
            return settings.form
        case "repairer":
            return settings.repairer_form or settings.form
    return "question"


def learning_context(state: RunState) -> LearningContext:
    """Return what the run has learnt so far."""
    return LearningContext(
        memory=state.memory,
        reflections=state.reflections,
        attempts=state.attempts,
        credits=state.credits,
        sequences=state.sequences or (),
        others=state.experiences or (),
        techniques=state.techniques or (),
    )


def _learning_context(state: RunState) -> bytes:
    given = {"sequences": state.sequences, "others": state.experiences, "techniques": state.techniques}
    unset = {name for name, found in given.items() if found is None}  # as in logs without these fields
    return canonical_json(learning_context(state).model_dump(mode="json", exclude=unset))


def _look_ahead_effect(state: RunState, key: EffectKey, place: CandidateSlot, context: bytes) -> Effect:
    assert place.slot is not None
    search = strategies.apply_strategy(state.config.search)
    codes = {parent.code for parent in state.parents.values()} | tried_codes(state.attempts)
    request = LookAheadRequest(
        key=str(key),
        role=key.role,
        draw=draw_seed(state.config.seed, key),
        problem=state.problem,
        size=state.config.size,
        target=state.config.target,
        toolchain=state.toolchain,
        parent=place.parent,
        known=tuple(sorted(codes)),
        context=digest_of(context),
        variants=place.slot.plans,
        depth=search.lookahead_depth,
        width=search.lookahead_width,
        drawn=strategies.drawn_sequence_length(search),
        predictions=search.lookahead_predictions,
        instructions=search.lookahead_instructions,
    )
    return Effect(key, request, (context,))


def _plan_effect(state: RunState, key: EffectKey, place: CandidateSlot, context: bytes) -> Effect:
    assert place.slot is not None
    assert state.best is not None
    session = _session_request(state, key, context) if _works_in_loop(state, key) else None
    request = PlanRequest(
        key=str(key),
        role=key.role,
        draw=draw_seed(state.config.seed, key),
        plans=place.slot.plans,
        problem=state.problem,
        size=state.config.size,
        target=state.config.target,
        bounds=state.bounds,
        parent=place.parent,
        best_ms=state.best.latency_ms,
        context=digest_of(context),
        variants=look_ahead_variants(state, place.slot),
        session=session,
        most_plans=min(MOST_PLANS, place.slot.plans - key.plan) if session is not None else 1,
    )
    return Effect(key, request, (context,))


def _implement_effect(state: RunState, key: EffectKey, place: CandidateSlot, context: bytes) -> Effect:
    assert place.plan is not None
    request = ImplementRequest(
        key=str(key),
        role=key.role,
        draw=draw_seed(state.config.seed, key),
        problem=state.problem,
        size=state.config.size,
        target=state.config.target,
        parent=place.parent,
        plan=place.plan,
        failed=tuple(
            FailedTry(
                source=tried.kernel.source,
                error=tried.error,
                verdict=tried.evaluation.verdict if tried.evaluation else None,
            )
            for tried in place.tries
            if tried.kernel is not None and tried.error is not None
        ),
        session=_session_request(state, key, context) if _works_in_loop(state, key) else None,
        unusable=tuple(tried.error for tried in place.tries if tried.is_unusable and tried.error),
    )
    return Effect(key, request, (context,) if request.session is not None else ())


def reserved_agent_usd(config: RunConfig) -> float:
    """Return what is reserved of the run's cap for each plan of a coding agent."""
    share = config.cap_usd * config.llm.session_percent / 100
    return round_usd(share if config.agent.usd is None else config.agent.usd)


def _session_request(state: RunState, key: EffectKey, context: bytes) -> SessionRequest:
    """Return how a session works; its share follows from the run's caps, not from what others spent."""
    config, slot = state.config, state.slot_of(key)
    is_agent = slot is not None and slot.planner == AGENT
    part = config.llm.session_percent / 100
    return SessionRequest(
        cap_usd=reserved_agent_usd(config) if is_agent else config.cap_usd * part,
        cap_tokens=None if config.cap_tokens is None else int(config.cap_tokens * part),
        turns=config.agent.tool_calls if is_agent else config.llm.turns,
        context=digest_of(context),
        bounds=state.bounds,
        within_percent=state.config.search.within_percent,
    )


def _evaluation_effect(state: RunState, key: EffectKey, place: CandidateSlot, context: bytes) -> Effect:
    """Return the evaluation of a proposed kernel on tiles, or on all of it if the gain is suspicious."""
    made = state.outcomes[str(key.for_role(Role.EXECUTOR))]
    assert isinstance(made, KernelProposed)
    return Effect(
        key,
        make_evaluation_request(
            state, key, made.source, made.author, level=Level.SLICES, parent=place.parent
        ),
    )


def make_evaluation_request(
    state: RunState,
    key: EffectKey,
    source: Digest,
    author: str,
    *,
    level: Level,
    parent: Candidate | None = None,
) -> EvaluationRequest:
    """Return the request to judge a kernel with the run's current problem, target and evaluator."""
    return EvaluationRequest(
        candidate=key.candidate_id,
        author=author,
        source=source,
        problem=state.problem,
        size=state.config.size,
        target=state.config.target,
        toolchain=state.toolchain,
        level=level,
        base_ms=parent.latency_ms if parent is not None else None,
        base=parent.source if parent is not None and measures_in_turns(state.config.evaluator) else None,
    )


_MAKERS: dict[Role, Callable[[RunState, EffectKey, CandidateSlot, bytes], Effect]] = {
    Role.PREDICTOR: _look_ahead_effect,
    Role.PLANNER: _plan_effect,
    Role.EXECUTOR: _implement_effect,
    Role.EVALUATOR: _evaluation_effect,
}
