"""What `decide` may ask for: to record decisions, or to run an effect.

A `Record` is a batch of decision events, appended in one transaction. An `Effect` is work with an
outcome: its request is a frozen value that goes into the log whole before the work begins, so that
recovery re-runs what was asked, never what today's code would ask.
"""

from __future__ import annotations

from dataclasses import dataclass

from state.events import (
    EffectStarted,
    EvaluationStarted,
    Event,
    ExecutionStarted,
    PlanStarted,
    PredictionStarted,
    ReflectionStarted,
    SummaryStarted,
)
from state.model import (
    Attempt,
    Candidate,
    Digest,
    EffectKey,
    ErrorInfo,
    Evaluation,
    EvaluationRequest,
    Experience,
    ExperienceKind,
    FrozenModel,
    LatencyBounds,
    LearntExperience,
    LearntSequence,
    LearntTechnique,
    Plan,
    ProblemRef,
    Reflection,
    RewriteStep,
    Role,
    TechniqueCredit,
    Verdict,
)


class LearningContext(FrozenModel):
    """What all proposals of a round may have learnt: frozen at RoundStarted, stored once as a blob.

    `sequences` are what paid in other runs, `others` experiences of other runs and of files, `techniques`
    what models invented in other runs, all the nearest first.
    """

    memory: tuple[Experience, ...]
    reflections: tuple[Reflection, ...]
    attempts: tuple[Attempt, ...]
    credits: dict[str, TechniqueCredit]
    sequences: tuple[LearntSequence, ...] = ()
    others: tuple[LearntExperience, ...] = ()
    techniques: tuple[LearntTechnique, ...] = ()


class LookAheadRequest(FrozenModel):
    """Asks a planner to search over sequences of changes to one parent, by predictions alone.

    It returns `variants` of them, best first, none of a code in `known`. Its work is limited by counts: at
    most `predictions` kernels, of `instructions` instructions in all, in sequences of `depth` changes,
    looking further from `width` kernels at a time. `draw` seeds all its chances. Where `drawn` is not 0,
    sequences of at most so many changes are drawn evenly instead, and with 0 `predictions` taken as drawn.
    """

    key: str
    role: str
    draw: int
    problem: ProblemRef
    size: str
    target: str
    toolchain: str
    parent: Candidate
    known: tuple[Digest, ...]
    context: Digest
    """Blob of a LearningContext."""
    variants: int
    depth: int
    width: int
    predictions: int
    instructions: int
    drawn: int = 0


class Variant(FrozenModel):
    """A kernel found by looking ahead: the changes that lead to it, its source, its predicted latency.

    `latency_ms` is None where it was drawn and not predicted.
    """

    steps: tuple[RewriteStep, ...]
    source: Digest
    latency_ms: float | None


class Variants(FrozenModel):
    """What looking ahead found worth judging, best first; `parent_ms` is the parent as predicted there.

    `reasons` say why there are not more.
    """

    parent_ms: float
    found: tuple[Variant, ...]
    reasons: tuple[str, ...] = ()


class PlanRequest(FrozenModel):
    """Asks a planner for plan number `key.plan` of `plans` on one parent; `draw` seeds all its chances."""

    key: str
    role: str
    draw: int
    plans: int
    problem: ProblemRef
    size: str
    target: str
    bounds: LatencyBounds
    parent: Candidate
    best_ms: float
    context: Digest
    """Blob of a LearningContext."""
    variants: Digest | None = None
    """Blob of the Variants that looking ahead from the parent found; None where nobody did."""


class ImplementRequest(FrozenModel):
    """Asks an executor to carry out a plan; `failed` holds earlier tries of the same place (repair)."""

    key: str
    role: str
    draw: int
    problem: ProblemRef
    size: str
    target: str
    parent: Candidate
    plan: Plan
    failed: tuple[FailedTry, ...] = ()


class FailedTry(FrozenModel):
    """A kernel that the judge refused, and why: what repair works from.

    `verdict` is the class of the error; not known of requests from before it was told.
    """

    source: Digest
    error: ErrorInfo
    verdict: Verdict | None = None


class SummarizeRequest(FrozenModel):
    """Asks for the experience in one (slow, fast) pair."""

    key: str
    role: str
    kind: ExperienceKind
    slow: Candidate
    fast: Candidate
    plan: Plan


class ReflectRequest(FrozenModel):
    """Asks what one attempt taught; `evaluation` is None when no kernel came of the plan.

    A predicted gain counts from `confidence_percent` of the draws on.
    """

    key: str
    role: str
    operator: str
    parent: Candidate
    plan: Plan
    evaluation: Evaluation | None
    error: ErrorInfo | None
    confidence_percent: float = 0.0


Request = (
    LookAheadRequest | PlanRequest | ImplementRequest | EvaluationRequest | SummarizeRequest | ReflectRequest
)

REQUESTS: dict[Role, type[FrozenModel]] = {
    Role.PREDICTOR: LookAheadRequest,
    Role.PLANNER: PlanRequest,
    Role.EXECUTOR: ImplementRequest,
    Role.EVALUATOR: EvaluationRequest,
    Role.VERIFIER: EvaluationRequest,
    Role.AUDITOR: EvaluationRequest,
    Role.SUMMARIZER: SummarizeRequest,
    Role.REFLECTOR: ReflectRequest,
}
"""The request type of each role, by which recovery reads a logged request back."""

STARTED: dict[Role, type[EffectStarted]] = {
    Role.PREDICTOR: PredictionStarted,
    Role.PLANNER: PlanStarted,
    Role.EXECUTOR: ExecutionStarted,
    Role.EVALUATOR: EvaluationStarted,
    Role.VERIFIER: EvaluationStarted,
    Role.AUDITOR: EvaluationStarted,
    Role.SUMMARIZER: SummaryStarted,
    Role.REFLECTOR: ReflectionStarted,
}
"""The event with which each role's effect is admitted."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Work to be run. `blobs` are stored with its start (what the request names and the log may lack)."""

    key: EffectKey
    request: Request
    blobs: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """Decisions to be appended in one transaction."""

    events: tuple[Event, ...]


Decision = Effect | Record
