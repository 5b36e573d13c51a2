"""The audit: before a run completes, its best kernel is judged on everything, and falls if it is wrong.

Then the next best takes its place and is audited too, down to the initial kernel. What was learnt from a
kernel that fell is taken back, for the run may go on: a target that it reached is not reached any more.
Where the infrastructure fails, the best stays at the level it has, and the run's end says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_core import beam, memory
from agent_core.effects import Decision, Record
from agent_core.requests import compare_more
from agent_core.survey import place_of, refusal
from stability import history, reflexion
from state.events import EvaluationCompleted, EvaluationFailed, KernelRefuted, RunCompleted
from state.fold import RunState
from state.model import Candidate, EffectKey, Ending, Evaluation, Level, Role


def strike(state: RunState) -> Record | None:
    """Return the fall of a kernel that the state holds and an audit refuted; None when there is none."""
    for one in _held(state):
        judged = state.outcomes.get(str(_key(one)))
        if isinstance(judged, EvaluationCompleted) and refusal(judged.evaluation) is not None:
            return Record((_refuted(state, one, judged.evaluation),))
    return None


def complete(state: RunState, ending: Ending) -> list[Decision]:
    """Audit the best kernel, then end the run; nothing while an audit is in flight."""
    if state.open:
        return []
    best = state.best
    if best is None:
        return [_completed(ending, None)]
    judged = state.outcomes.get(str(_key(best)))
    if judged is None and best.level is not Level.WHOLE:
        return [compare_more(state, _key(best), best, Level.WHOLE)]
    if isinstance(judged, EvaluationFailed):
        doubt = f"the best kernel was not audited: {judged.error.code}: {judged.error.message}"
        return [_completed(ending, best.level, doubt)]
    return [_completed(ending, best.level)]


def _completed(ending: Ending, level: Level | None, doubt: str = "") -> Record:
    detail = "; ".join(filter(None, (ending.detail, doubt)))
    return Record((RunCompleted(reason=ending.reason, detail=detail, level=level),))


def _key(one: Candidate) -> EffectKey:
    return place_of(one.id).for_role(Role.AUDITOR)


def _held(state: RunState) -> Iterator[Candidate]:
    """Yield every kernel that is or may become the best or a parent; some more than once."""
    if state.best is not None:
        yield state.best
    yield from reversed(state.former)
    yield from (entry.candidate for entry in state.beam)
    yield from (mark.candidate for mark in state.checkpoints.values())


def _refuted(state: RunState, wrong: Candidate, evaluation: Evaluation) -> KernelRefuted:
    error = refusal(evaluation)
    assert error is not None
    others = [one for one in _held(state) if one.id != wrong.id]
    best = min(others, key=lambda one: one.latency_ms, default=None)
    entries, checkpoints = beam.without(wrong, state.beam, state.checkpoints, best=best)
    attempts, credits_ = history.retracted(state.attempts, state.credits, evaluation, error)
    copies = frozenset({wrong.id, *(one.candidate for one in attempts if one.code == wrong.code)})
    return KernelRefuted(
        candidate=wrong.id,
        verdict=evaluation.verdict,
        error=error,
        best=best,
        beam=entries,
        checkpoints=checkpoints,
        memory=memory.forget(state.memory, copies),
        reflections=reflexion.forget(state.reflections, copies),
        attempts=attempts,
        credits=credits_,
    )
