"""How effects end: builds the events of each outcome, and the blobs that they name.

Every failure of a role and every verdict of an evaluator has an outcome here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent_core.effects import (
    ImplementRequest,
    LookAheadRequest,
    PlanRequest,
    ReflectRequest,
    SummarizeRequest,
)
from agent_core.roles import KernelAnswer, PlanAnswer, RoleError
from agent_core.roles.mechanical import reflection_of
from agent_core.round_view import further_keys
from daemon.profiles import parse_counters
from remote.evaluator import EvaluationAnswer
from state.events import (
    EvaluationCompleted,
    EvaluationFailed,
    Event,
    ExecutionFailed,
    ExperienceRecorded,
    KernelProposed,
    PlanFailed,
    PlanProposed,
    PredictionBatch,
    ProfileRecorded,
    ReflectionRecorded,
)
from state.fold import RunState
from state.model import EffectKey, ErrorInfo, Evaluation, Role, Usage, digest_of


@dataclass(frozen=True, slots=True)
class EffectOutcome:
    """The events that end an effect, with the blobs that they name."""

    events: tuple[Event, ...]
    blobs: tuple[bytes, ...] = ()


def proposed_plans(key: EffectKey, answer: PlanAnswer) -> EffectOutcome:
    """Return the outcome of a planner: its plan, and those that its session submitted besides."""
    further = (
        PlanProposed(key=str(key._replace(plan=key.plan + number)), plan=plan, beside=str(key))
        for number, plan in enumerate(answer.further, 1)
    )
    return EffectOutcome((PlanProposed(key=str(key), plan=answer.plan, usage=answer.usage), *further))


def proposed_kernels(state: RunState, key: EffectKey, answer: KernelAnswer, author: str) -> EffectOutcome:
    """Return the outcome of an executor: its kernel, and those that its session submitted besides."""
    made = list(zip(further_keys(state, key), (answer, *answer.further), strict=False))
    proposed = (
        KernelProposed(
            key=str(place),
            source=digest_of(one.source.encode()),
            note=one.note,
            author=author,
            usage=one.usage,
            technique=one.technique,
            speedup=one.speedup,
            beside=None if place == key else str(key),
        )
        for place, one in made
    )
    return EffectOutcome(tuple(proposed), tuple(one.source.encode() for _, one in made))


@dataclass(frozen=True, slots=True)
class InfrastructureFailure:
    """Why there is no answer, after how many tries, and whether another one may help.

    `of_machine`: what is missing is missing for every effect of the run.
    """

    error: ErrorInfo
    retryable: bool
    tries: int = 1
    device_seconds: float = 0.0
    of_machine: bool = False

    @classmethod
    def of_role(cls, error: RoleError) -> InfrastructureFailure:
        """Return the failure of an evaluation for which nothing is left of a budget."""
        return cls(error.info, retryable=False)


EvaluationEnd = EvaluationAnswer | InfrastructureFailure
"""How an evaluation ends. The value grows on its way (the level, the device time); events are made last."""


@dataclass(frozen=True, slots=True)
class FoundVerdict:
    """How an evaluation ended, under its cache key; `cached_from` is set if the verdict was known already."""

    cache_key: str
    end: EvaluationEnd
    cached_from: str | None = None


def verdict_outcome(key: EffectKey, found: FoundVerdict, read: Callable[[str], bytes]) -> EffectOutcome:
    """Return the events of an evaluation's end, and the blobs that they name; `read` knows older ones."""
    end = found.end
    if isinstance(end, InfrastructureFailure):
        failed = EvaluationFailed(
            key=str(key), error=end.error, tries=end.tries, device_seconds=end.device_seconds
        )
        return EffectOutcome((failed,))
    completed = EvaluationCompleted(
        key=str(key),
        evaluation=end.evaluation,
        cache_key=found.cache_key,
        cached_from=found.cached_from,
        stage_ms=dict(end.stage_ms),
        predicted_ms=end.predicted_ms,
        predicted_bound=end.predicted_bound,
        where=end.where,
        device_seconds=end.device_seconds,
    )
    profile = profile_events(
        key, end.evaluation, lambda digest: end.artefacts[digest] if digest in end.artefacts else read(digest)
    )
    return EffectOutcome((*profile, completed), tuple(end.artefacts.values()))


def profile_events(key: EffectKey, evaluation: Evaluation, read: Callable[[str], bytes]) -> tuple[Event, ...]:
    """Return the event with a kernel's counters, if it has a profile; only its first evaluation emits one."""
    if evaluation.profile is None or key.role is not Role.EVALUATOR:
        return ()
    counters = parse_counters(read(evaluation.profile))
    return (ProfileRecorded(key=str(key), profile=evaluation.profile, counters=counters),)


def internal_error(error: Exception) -> ErrorInfo:
    """Describe a bug. It ends the effect, so that the run goes on; the traceback is in our log."""
    return ErrorInfo(code="internal", message=f"{type(error).__name__}: {error}")


def machine_failure(error: OSError | MemoryError) -> InfrastructureFailure:
    """Describe what this process lacked: space, file handles, memory, another process. It may come back."""
    info = ErrorInfo(code="machine", message=f"{type(error).__name__}: {error}")
    return InfrastructureFailure(info, retryable=True, of_machine=True)


def role_failure(key: EffectKey, asked: Any, error: ErrorInfo, usage: Usage) -> EffectOutcome:
    """Return how an effect ends whose role could not answer."""
    return EffectOutcome((_ROLE_FAILURES[key.role](key, asked, error, usage),))


def _prediction_failure(key: EffectKey, asked: LookAheadRequest, error: ErrorInfo, usage: Usage) -> Event:
    return PredictionBatch(key=str(key), error=error, usage=usage)


def _plan_failure(key: EffectKey, asked: PlanRequest, error: ErrorInfo, usage: Usage) -> Event:
    return PlanFailed(key=str(key), error=error, usage=usage)


def _execution_failure(key: EffectKey, asked: ImplementRequest, error: ErrorInfo, usage: Usage) -> Event:
    return ExecutionFailed(key=str(key), error=error, usage=usage)


def _summary_failure(key: EffectKey, asked: SummarizeRequest, error: ErrorInfo, usage: Usage) -> Event:
    return ExperienceRecorded(key=str(key), experience=None, usage=usage)


def _mechanical_reflection(key: EffectKey, asked: ReflectRequest, error: ErrorInfo, usage: Usage) -> Event:
    """Fall back to the reflection that needs no model: its grade is computed the same way."""
    return ReflectionRecorded(key=str(key), reflection=reflection_of(asked), usage=usage)


_ROLE_FAILURES: dict[Role, Callable[[EffectKey, Any, ErrorInfo, Usage], Event]] = {
    Role.PREDICTOR: _prediction_failure,
    Role.PLANNER: _plan_failure,
    Role.EXECUTOR: _execution_failure,
    Role.SUMMARIZER: _summary_failure,
    Role.REFLECTOR: _mechanical_reflection,
}
