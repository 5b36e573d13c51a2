"""Events of effects: plans, executions, evaluations, summaries and reflections."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from state.events.base import EffectEnded, EffectStarted, Event
from state.model import (
    Digest,
    ErrorInfo,
    Evaluation,
    EvaluationHost,
    Experience,
    Key,
    Plan,
    PositiveMs,
    Reflection,
)


class PredictionStarted(EffectStarted):
    type: Literal["PredictionStarted"] = "PredictionStarted"


class PredictionBatch(EffectEnded):
    """What looking ahead from a parent came to, before its plans are made: kernels predicted, none judged.

    `variants` is the blob of what is worth judging, best first, `count` how many there are; None when there
    is nothing to read, with `error` when looking ahead failed. `predicted` counts kernels with a predicted
    latency, `failed` those without, `instructions` are those of all of them.
    """

    type: Literal["PredictionBatch"] = "PredictionBatch"
    variants: Digest | None = None
    best_ms: float | None = None
    count: int = Field(default=0, ge=0)
    predicted: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)
    instructions: int = Field(default=0, ge=0)
    error: ErrorInfo | None = None


class PlanStarted(EffectStarted):
    type: Literal["PlanStarted"] = "PlanStarted"


class PlanProposed(EffectEnded):
    version = 2
    type: Literal["PlanProposed"] = "PlanProposed"
    plan: Plan


class PlanFailed(EffectEnded):
    type: Literal["PlanFailed"] = "PlanFailed"
    error: ErrorInfo


class ExecutionStarted(EffectStarted):
    type: Literal["ExecutionStarted"] = "ExecutionStarted"


class KernelProposed(EffectEnded):
    """A kernel exists. `note` says what was changed (for people), `author` who proposed it."""

    type: Literal["KernelProposed"] = "KernelProposed"
    source: Digest
    note: str = ""
    author: str = "builtin"


class ExecutionFailed(EffectEnded):
    type: Literal["ExecutionFailed"] = "ExecutionFailed"
    error: ErrorInfo


class EvaluationStarted(EffectStarted):
    type: Literal["EvaluationStarted"] = "EvaluationStarted"


class EvaluationCompleted(EffectEnded):
    """The judge's verdict. `cache_key` names (code, problem, toolchain, target); `cached_from` is the
    RUN@SEQ whose verdict was reused, None when the kernel was judged for this event. `predicted_ms` is what
    the simulator predicted where it decides which kernels are measured, `where` the host, if it was one;
    `device_seconds` what it took of a device, None where that follows from `stage_ms`."""

    version = 4
    type: Literal["EvaluationCompleted"] = "EvaluationCompleted"
    evaluation: Evaluation
    cache_key: Digest
    cached_from: str | None = None
    stage_ms: dict[str, float] = Field(default_factory=dict)
    device_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    predicted_ms: PositiveMs | None = None
    where: EvaluationHost | None = None


class EvaluationFailed(EffectEnded):
    """The infrastructure failed, after `tries` tries; never counted against the candidate.

    `device_seconds` are those that it took of a device all the same, as far as that was noted.
    """

    version = 2
    type: Literal["EvaluationFailed"] = "EvaluationFailed"
    error: ErrorInfo
    tries: int = Field(ge=1)
    device_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class ProfileRecorded(Event):
    """The counters of an evaluated kernel, for people and plots; decisions read EvaluationCompleted."""

    type: Literal["ProfileRecorded"] = "ProfileRecorded"
    key: Key
    profile: Digest
    counters: dict[str, float]


class SummaryStarted(EffectStarted):
    type: Literal["SummaryStarted"] = "SummaryStarted"


class ExperienceRecorded(EffectEnded):
    """The summarizer's answer on one (slow, fast) pair; None when it found no optimisation in it."""

    type: Literal["ExperienceRecorded"] = "ExperienceRecorded"
    experience: Experience | None


class ReflectionStarted(EffectStarted):
    type: Literal["ReflectionStarted"] = "ReflectionStarted"


class ReflectionRecorded(EffectEnded):
    type: Literal["ReflectionRecorded"] = "ReflectionRecorded"
    reflection: Reflection
