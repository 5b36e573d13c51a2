"""Simplification: before a run ends, its best kernel is replaced by a simpler one that is as fast.

A search adds rewrites as long as they bring something, so its winner may hold steps that bring nothing any
more. The target's simplifier proposes one kernel without them. It is judged like any other, with as much of
its outputs as a kernel of the beam, and replaces the best one if it is correct and at most `WITHIN_PERCENT`
slower, and if the run would still end. The audit comes after that.

A run asks once for each end. It does not ask if its best kernel is one that it started from, if no budget is
left, or if nobody simplifies what its planners make.
"""

from __future__ import annotations

from agent_core.effects import Decision, Effect, Record, SimplifyRequest
from agent_core.proposers import find_simplifier
from agent_core.requests import make_evaluation_request
from agent_core.round_view import executor_key, make_candidate, refusal_error
from agent_core.stop import find_ending
from agent_core.verification import VERIFICATION_LEVEL
from state.events import EvaluationCompleted, KernelDiscarded, KernelKept, KernelProposed
from state.fold import RunState
from state.model import (
    BeamRole,
    Candidate,
    EffectKey,
    Role,
    RunConfig,
    RunEnding,
    StopReason,
    is_simplification,
    simplification_key,
)

TECHNIQUE = "simplify"
"""The technique of simplified kernels; it is not on a menu, because no plan may choose it."""
WITHIN_PERCENT = 0.5
"""How much slower than the best kernel a simpler one may be."""
MOST_PREDICTIONS = 96
"""Kernels that are predicted for a simplification, in at most the instructions of a look-ahead."""


def simplify_best(state: RunState, config: RunConfig, ending: RunEnding) -> list[Decision] | None:
    """Return what simplifying the best kernel needs next; None if that is settled, or not wanted."""
    if not _is_wanted(state, config, ending):
        return None
    key = simplification_key(state.round)
    made = state.outcomes.get(str(key))
    if made is None:
        return [] if state.open else [_simplify_effect(state, key)]
    if not isinstance(made, KernelProposed):
        return None
    judged = state.outcomes.get(str(key.for_role(Role.EVALUATOR)))
    if judged is None:
        return [] if state.open else [_evaluation_effect(state, key, made)]
    kept = _replace_best(state, config, key)
    return None if kept is None else [Record((kept,))]


def unused_simplification(state: RunState) -> tuple[KernelDiscarded, ...]:
    """Return why a simplified kernel that was judged is not the run's best, for the record of its end."""
    key = simplification_key(state.round)
    judged = state.outcomes.get(str(key.for_role(Role.EVALUATOR)))
    if judged is None or str(key.for_role(Role.AUDITOR)) in state.outcomes:  # its own audit struck it
        return ()
    if state.best is not None and state.best.id == key.candidate_id:
        return ()
    verdict = None
    if not isinstance(judged, EvaluationCompleted):
        reason = "infrastructure"
    elif judged.evaluation.is_correct:
        reason = "slower"
    else:
        verdict = judged.evaluation.verdict
        reason = verdict.value
    against = None if state.best is None else state.best.id
    return (KernelDiscarded(candidate=key.candidate_id, reason=reason, verdict=verdict, against=against),)


def _is_wanted(state: RunState, config: RunConfig, ending: RunEnding) -> bool:
    best = state.best
    if best is None or best.parent is None or is_simplification(executor_key(best.id)):
        return False
    wanted = config.search.simplify and ending.reason is not StopReason.BUDGET
    return wanted and find_simplifier(config.target, config.planner) is not None


def _simplify_effect(state: RunState, key: EffectKey) -> Effect:
    assert state.best is not None
    request = SimplifyRequest(
        key=str(key),
        problem=state.problem,
        size=state.config.size,
        target=state.config.target,
        toolchain=state.toolchain,
        best=state.best,
        within_percent=WITHIN_PERCENT,
        predictions=MOST_PREDICTIONS,
        instructions=state.config.search.lookahead_instructions,
    )
    return Effect(key, request)


def _evaluation_effect(state: RunState, key: EffectKey, made: KernelProposed) -> Effect:
    judging = key.for_role(Role.EVALUATOR)
    request = make_evaluation_request(
        state, judging, made.source, made.author, level=VERIFICATION_LEVEL, parent=state.best
    )
    return Effect(judging, request)


def _replace_best(state: RunState, config: RunConfig, key: EffectKey) -> KernelKept | None:
    """Return the record of the simplified kernel in the place of the best one; None if it may not take it."""
    best = state.best
    one = _simplified_candidate(state, key)
    if best is None or one is None or str(key.for_role(Role.AUDITOR)) in state.outcomes:
        return None
    is_near = one.latency_ms <= best.latency_ms * (1 + WITHIN_PERCENT / 100)
    if not is_near or find_ending(state.model_copy(update={"best": one}), config) is None:
        return None
    speedup = best.latency_ms / one.latency_ms
    return KernelKept(candidate=one, role=BeamRole.ELITE, speedup=speedup, replaces=best.id)


def _simplified_candidate(state: RunState, key: EffectKey) -> Candidate | None:
    made = state.outcomes.get(str(key))
    judged = state.outcomes.get(str(key.for_role(Role.EVALUATOR)))
    if not isinstance(made, KernelProposed) or not isinstance(judged, EvaluationCompleted):
        return None
    if refusal_error(judged.evaluation) is not None:
        return None
    return make_candidate(
        key,
        source=made.source,
        author=made.author,
        evaluation=judged.evaluation,
        parent=state.best,
        technique=TECHNIQUE,
        title=made.note,
    )
