"""What `decide` may ask for: a record of decisions, or an effect to run.

A `Record` is a batch of decision events, appended in one transaction. An `Effect` is work with an outcome.
Its request is a frozen value that is logged completely before the work begins, so recovery runs the request
as it was, not as today's code would make it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

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
    TRANSLATION_KEY,
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
    is_empty,
    is_simplification,
    is_unset,
)


class LearningContext(FrozenModel):
    """What all proposals of a round may use from earlier ones; frozen at RoundStarted, stored once as a blob.

    `sequences` are those that paid in other runs, `others` are experiences of other runs and of files,
    `techniques` are those that models invented in other runs; all with the most relevant first.
    """

    memory: tuple[Experience, ...]
    reflections: tuple[Reflection, ...]
    attempts: tuple[Attempt, ...]
    credits: dict[str, TechniqueCredit]
    sequences: tuple[LearntSequence, ...] = ()
    others: tuple[LearntExperience, ...] = ()
    techniques: tuple[LearntTechnique, ...] = ()


class LookAheadRequest(FrozenModel):
    """Asks a planner to search sequences of changes to one parent, with predictions alone.

    It returns at most `variants` of them, best first, none with a code in `known`. Its work is limited by
    counts: at most `predictions` kernels, with `instructions` instructions in all, in sequences of `depth`
    changes, expanding `width` kernels at a time. `draw` seeds all its random choices. If `drawn` is not 0,
    sequences of at most `drawn` changes are drawn evenly instead; if `predictions` is 0 as well, they are
    used as drawn.
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
    """A kernel that the lookahead found: the changes that lead to it, its source, its predicted latency.

    `latency_ms` is None if the kernel was drawn and not predicted.
    """

    steps: tuple[RewriteStep, ...]
    source: Digest
    latency_ms: float | None


class Variants(FrozenModel):
    """What the lookahead found worth judging, best first; `parent_ms` is the parent's predicted latency.

    `reasons` say why there are not more.
    """

    parent_ms: float
    found: tuple[Variant, ...]
    reasons: tuple[str, ...] = ()


class SessionRequest(FrozenModel):
    """How a planner or an executor works in a loop with tools: `turns` at most, and what tools may read.

    `context` is the blob of a LearningContext. A kernel within `within_percent` of the model bound is enough.
    It may spend `cap_usd` and `cap_tokens`; None is no limit of its own.
    """

    turns: int
    context: Digest
    bounds: LatencyBounds
    within_percent: float
    cap_usd: float | None = Field(default=None, exclude_if=is_unset)
    cap_tokens: int | None = Field(default=None, exclude_if=is_unset)


class PlanRequest(FrozenModel):
    """Asks a planner for plan number `key.plan` of `plans` on one parent; `draw` seeds its random choices.

    With `session`, it works in a loop with tools, and may submit up to `most_plans` plans: this one, and
    those that follow it.
    """

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
    """Blob of the Variants that the lookahead found; None if there was no lookahead."""
    session: SessionRequest | None = Field(default=None, exclude_if=is_unset)
    most_plans: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)


class ImplementRequest(FrozenModel):
    """Asks an executor to carry out a plan; `failed` holds earlier kernels of the same slot, for repair.

    `unusable` are the faults of earlier repairs whose answers were no kernels. With `session`, it works in a
    loop with tools.
    """

    key: str
    role: str
    draw: int
    problem: ProblemRef
    size: str
    target: str
    parent: Candidate
    plan: Plan
    failed: tuple[FailedTry, ...] = ()
    session: SessionRequest | None = Field(default=None, exclude_if=is_unset)
    unusable: tuple[ErrorInfo, ...] = Field(default=(), exclude_if=is_empty)


class TranslateRequest(FrozenModel):
    """Asks for a kernel that computes the formula of a problem's reference; predictions choose its layout."""

    key: str
    problem: ProblemRef
    size: str
    target: str
    toolchain: str


class SimplifyRequest(FrozenModel):
    """Asks for a simpler kernel that is predicted to be at most `within_percent` slower than `best`.

    At most `predictions` kernels with `instructions` instructions in all are predicted. The rewrites that led
    to `best` are in the log; they never change, so the request does not repeat them.
    """

    key: str
    problem: ProblemRef
    size: str
    target: str
    toolchain: str
    best: Candidate
    within_percent: float
    predictions: int
    instructions: int


class FailedTry(FrozenModel):
    """A kernel that the judge refused, and why; repair starts from it.

    `verdict` is the class of the error; it is None in requests of older versions.
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
    """Asks what one attempt taught; `evaluation` is None if the plan led to no kernel.

    A predicted gain counts if it is at least `confidence_percent` sure.
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
    LookAheadRequest
    | PlanRequest
    | ImplementRequest
    | TranslateRequest
    | SimplifyRequest
    | EvaluationRequest
    | SummarizeRequest
    | ReflectRequest
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
"""The request type of each role, but for a translation and a simplification."""


def request_type(key: EffectKey) -> type[FrozenModel]:
    """Return the request type of an effect; recovery uses it to decode a logged request."""
    if key.role is Role.EXECUTOR and is_simplification(key):
        return SimplifyRequest
    return TranslateRequest if key == TRANSLATION_KEY else REQUESTS[key.role]


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
"""The event that admits each role's effect."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Work to run. `blobs` are stored with its start: those that the request names and the log may lack."""

    key: EffectKey
    request: Request
    blobs: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """Decisions to append in one transaction."""

    events: tuple[Event, ...]


Decision = Effect | Record
