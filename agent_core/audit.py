"""The audit: before a run completes, its best kernel is judged on everything, and dropped if it is wrong.

The next best kernel then takes its place and is audited too, down to the initial kernel. What was learnt from
a dropped kernel is taken back, because the run may go on: a target that the kernel reached is then not
reached any more. If the infrastructure fails, the best kernel keeps its level, and the run's end says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_core import beam, memory
from agent_core.effects import Decision, Record
from agent_core.requests import evaluate_at_level
from agent_core.round_view import executor_key, refusal_error
from agent_core.simplification import unused_simplification
from stability import attempt_history, reflexion
from state.events import EvaluationCompleted, EvaluationFailed, KernelRefuted, RunCompleted
from state.fold import RunState
from state.model import Candidate, EffectKey, Evaluation, Level, Role, RunEnding


def drop_refuted_kernel(state: RunState) -> Record | None:
    """Return the removal of a kernel that an audit proved wrong; None if the state holds none."""
    for one in _held_candidates(state):
        judged = state.outcomes.get(str(_audit_key(one)))
        if isinstance(judged, EvaluationCompleted) and refusal_error(judged.evaluation) is not None:
            return Record((_kernel_refuted(state, one, judged.evaluation),))
    return None


def complete_run(state: RunState, ending: RunEnding) -> list[Decision]:
    """Audit the best kernel, then end the run; return nothing while effects are in flight."""
    if state.open:
        return []
    best = state.best
    if best is None:
        return [_run_completed(state, ending, None)]
    judged = state.outcomes.get(str(_audit_key(best)))
    if judged is None and best.level is not Level.WHOLE:
        return [evaluate_at_level(state, _audit_key(best), best, Level.WHOLE)]
    if isinstance(judged, EvaluationFailed):
        doubt = f"the best kernel was not audited: {judged.error.code}: {judged.error.message}"
        return [_run_completed(state, ending, best.level, doubt=doubt)]
    return [_run_completed(state, ending, best.level)]


def _run_completed(state: RunState, ending: RunEnding, level: Level | None, *, doubt: str = "") -> Record:
    detail = "; ".join(filter(None, (ending.detail, doubt)))
    completed = RunCompleted(reason=ending.reason, detail=detail, level=level)
    return Record((*unused_simplification(state), completed))


def _audit_key(one: Candidate) -> EffectKey:
    return executor_key(one.id).for_role(Role.AUDITOR)


def _held_candidates(state: RunState) -> Iterator[Candidate]:
    """Yield every kernel that is or may become the best or a parent; some more than once."""
    if state.best is not None:
        yield state.best
    yield from reversed(state.former)
    yield from (entry.candidate for entry in state.beam)
    yield from (mark.candidate for mark in state.checkpoints.values())


def _kernel_refuted(state: RunState, wrong: Candidate, evaluation: Evaluation) -> KernelRefuted:
    error = refusal_error(evaluation)
    assert error is not None
    others = [one for one in _held_candidates(state) if one.id != wrong.id]
    best = min(others, key=lambda one: one.latency_ms, default=None)
    entries, checkpoints = beam.remove_candidate(wrong, state.beam, state.checkpoints, best=best)
    attempts, credits_ = attempt_history.retract_attempts(state.attempts, state.credits, evaluation, error)
    copies = frozenset({wrong.id, *(one.candidate for one in attempts if one.code == wrong.code)})
    return KernelRefuted(
        candidate=wrong.id,
        verdict=evaluation.verdict,
        error=error,
        best=best,
        beam=entries,
        checkpoints=checkpoints,
        memory=memory.forget_candidates(state.memory, copies),
        reflections=reflexion.forget_reflections(state.reflections, copies),
        attempts=attempts,
        credits=credits_,
    )
