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
    TriedKernel,
    is_empty,
)


class PredictionStarted(EffectStarted):
    family = "evaluation"
    type: Literal["PredictionStarted"] = "PredictionStarted"


class PredictionBatch(EffectEnded):
    """The result of looking ahead from a parent, before its plans: kernels are predicted, none judged.

    `variants` is the blob of the kernels worth judging, best first; `count` is their number. `variants` is
    None if there are none, and `error` is set if the lookahead failed. `predicted` counts kernels with a
    predicted latency, `failed` those without, and `instructions` those of all of them.
    """

    family = "evaluation"
    type: Literal["PredictionBatch"] = "PredictionBatch"
    variants: Digest | None = None
    best_ms: float | None = None
    count: int = Field(default=0, ge=0)
    predicted: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)
    instructions: int = Field(default=0, ge=0)
    error: ErrorInfo | None = None


class PlanStarted(EffectStarted):
    family = "plan"
    type: Literal["PlanStarted"] = "PlanStarted"


class PlanProposed(EffectEnded):
    """A plan exists. `beside` is the key of the planner whose session submitted it besides its first plan.

    It then has no start of its own.
    """

    version = 2
    family = "plan"
    type: Literal["PlanProposed"] = "PlanProposed"
    plan: Plan
    beside: Key | None = Field(default=None, exclude_if=is_empty)


class PlanFailed(EffectEnded):
    family = "plan"
    type: Literal["PlanFailed"] = "PlanFailed"
    error: ErrorInfo


class ExecutionStarted(EffectStarted):
    family = "execution"
    type: Literal["ExecutionStarted"] = "ExecutionStarted"


class KernelProposed(EffectEnded):
    """A kernel exists. `note` tells people what was changed, `author` who proposed it.

    `tried` are other kernels that its session had judged. `technique` and `speedup` are what its session said
    of it, where that is not what the plan says. `beside` is the executor's key of the session that submitted
    it besides its first kernel; it then has no start of its own.
    """

    family = "execution"
    type: Literal["KernelProposed"] = "KernelProposed"
    source: Digest
    note: str = ""
    author: str = "builtin"
    tried: tuple[TriedKernel, ...] = Field(default=(), exclude_if=is_empty)
    technique: str | None = Field(default=None, exclude_if=is_empty)
    speedup: float | None = Field(default=None, gt=0, exclude_if=is_empty)
    beside: Key | None = Field(default=None, exclude_if=is_empty)


class ExecutionFailed(EffectEnded):
    family = "execution"
    type: Literal["ExecutionFailed"] = "ExecutionFailed"
    error: ErrorInfo
    tried: tuple[TriedKernel, ...] = Field(default=(), exclude_if=is_empty)


class EvaluationStarted(EffectStarted):
    family = "evaluation"
    type: Literal["EvaluationStarted"] = "EvaluationStarted"


class EvaluationCompleted(EffectEnded):
    """The judge's verdict.

    `cache_key` stands for (code, problem, toolchain, target). `cached_from` is the RUN@SEQ whose verdict was
    reused, None if the kernel was judged for this event. `predicted_ms` is the simulator's prediction, if
    predictions decide which kernels are measured, and `predicted_bound` what bounds the kernel in it. `where`
    is the host, if there was one. `device_seconds` is the time on a device, None if it follows from
    `stage_ms`.
    """

    version = 4
    family = "evaluation"
    type: Literal["EvaluationCompleted"] = "EvaluationCompleted"
    evaluation: Evaluation
    cache_key: Digest
    cached_from: str | None = None
    stage_ms: dict[str, float] = Field(default_factory=dict)
    device_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    predicted_ms: PositiveMs | None = None
    predicted_bound: str | None = Field(default=None, exclude_if=lambda value: value is None)
    where: EvaluationHost | None = None


class EvaluationFailed(EffectEnded):
    """The infrastructure failed, after `tries` tries; this never counts against the candidate.

    `device_seconds` is the time on a device that was used anyway, as far as it is known.
    """

    version = 2
    family = "evaluation"
    type: Literal["EvaluationFailed"] = "EvaluationFailed"
    error: ErrorInfo
    tries: int = Field(ge=1)
    device_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class ProfileRecorded(Event):
    """The counters of an evaluated kernel, for people and plots; decisions use EvaluationCompleted."""

    family = "evaluation"
    type: Literal["ProfileRecorded"] = "ProfileRecorded"
    key: Key
    profile: Digest
    counters: dict[str, float]


class SummaryStarted(EffectStarted):
    family = "learning"
    type: Literal["SummaryStarted"] = "SummaryStarted"


class ExperienceRecorded(EffectEnded):
    """The summarizer's answer on one (slow, fast) pair; None if it found no optimisation in it."""

    family = "learning"
    type: Literal["ExperienceRecorded"] = "ExperienceRecorded"
    experience: Experience | None


class ReflectionStarted(EffectStarted):
    family = "learning"
    type: Literal["ReflectionStarted"] = "ReflectionStarted"


class ReflectionRecorded(EffectEnded):
    family = "learning"
    type: Literal["ReflectionRecorded"] = "ReflectionRecorded"
    reflection: Reflection
