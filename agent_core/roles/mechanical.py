"""Learning without a model: computes a pair's experience and an attempt's graded note by arithmetic."""

from __future__ import annotations

from agent_core.effects import ReflectRequest, SummarizeRequest
from agent_core.roles import ExperienceAnswer, ReadBlob, ReflectionAnswer
from stability import reflexion
from state.model import EffectKey, Experience, ExperienceKind, Reflection


def speedup_of(request: SummarizeRequest) -> float:
    """Return how many times faster the pair's fast kernel is."""
    return request.slow.latency_ms / request.fast.latency_ms


def experience_of(request: SummarizeRequest, summary: str) -> Experience:
    """Return the pair's experience with the text `summary`, citing both kernels."""
    return Experience(
        kind=request.kind,
        technique=request.plan.technique,
        slow=request.slow.source,
        fast=request.fast.source,
        speedup=speedup_of(request),
        summary=summary,
        cites=(request.slow.id, request.fast.id),
    )


def summary_of(request: SummarizeRequest) -> str:
    """Return the pair in one sentence, with what the plan expected."""
    plan, speedup = request.plan, speedup_of(request)
    verb = "sped up" if request.kind is ExperienceKind.POSITIVE else "slowed down"
    return (
        f"{plan.title}: {verb} the kernel {speedup:.3f}x (predicted {plan.prediction.speedup:.3f}x), "
        f"{request.slow.latency_ms:.6g} ms against {request.fast.latency_ms:.6g} ms; "
        f"bottleneck {request.slow.bottleneck or 'unknown'} against {request.fast.bottleneck or 'unknown'}"
    )


def reflection_of(request: ReflectRequest) -> Reflection:
    """Return the mechanical grade of the attempt's prediction, and its lesson."""
    return reflexion.make_reflection(
        operator=request.operator,
        parent=request.parent,
        plan=request.plan,
        evaluation=request.evaluation,
        error=request.error,
        candidate=EffectKey.parse(request.key).candidate_id,
        confidence_percent=request.confidence_percent,
    )


class MechanicalLearner:
    """The summarizer and reflector of proposers that ask no model."""

    async def summarize(self, request: SummarizeRequest, read: ReadBlob) -> ExperienceAnswer:
        """Return the pair in one sentence, with what the plan expected."""
        del read
        return ExperienceAnswer(experience_of(request, summary_of(request)))

    async def reflect(self, request: ReflectRequest, read: ReadBlob) -> ReflectionAnswer:
        """Return the mechanical grade and its lesson."""
        del read
        return ReflectionAnswer(reflection_of(request))
