"""What the search makes and learns: plans, candidates, the beam, experiences, reflections."""

from __future__ import annotations

from enum import StrEnum
from math import log
from typing import Annotated

from pydantic import Field, JsonValue

from state.model.base import Digest, ErrorInfo, FrozenModel, canonical_json, digest_of, is_empty
from state.model.judgement import UNKNOWN_AUTHOR, Benchmark, Level, Verdict

ID_LENGTH = 12
"""Characters of an id that follows from its content."""


class Prediction(FrozenModel):
    """What a plan predicts, written down before the result exists.

    `speedup` is the expected factor over the parent. `counter` names the profile counter that should change,
    and `direction` its sign (-1 falls, +1 rises).
    """

    speedup: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    counter: str | None = None
    direction: int = Field(default=-1, ge=-1, le=1)
    reason: str = ""


class RewriteStep(FrozenModel):
    """One rewrite of a sequence: a technique at a site, in words, with its predicted speed-up.

    `choice` holds its parameters. `speedup` is the factor over the kernel before it; it is below 1 for a step
    that prepares another.
    """

    technique: str
    site: str
    title: str
    choice: dict[str, int | str] = Field(default_factory=dict)
    speedup: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


class Plan(FrozenModel):
    """One intended change: a technique (menu id) at a site, in words, with its prediction.

    `steps` are the rewrites, if the plan is a sequence; `technique` is then that of the step with the largest
    predicted gain.
    """

    technique: str
    site: str
    title: str
    prediction: Prediction
    detail: JsonValue = None
    steps: tuple[RewriteStep, ...] = ()

    @property
    def technique_shares(self) -> dict[str, float]:
        """The part that each technique has in the plan's gain, summing to 1.

        For a sequence these are the shares of the steps' predicted gains (in logarithms; equal if no step
        gains anything).
        """
        if not self.steps:
            return {self.technique: 1.0}
        gains = [max(0.0, log(step.speedup)) for step in self.steps]
        total = sum(gains)
        parts = [gain / total for gain in gains] if total else [1 / len(gains)] * len(gains)
        shares: dict[str, float] = {}
        for step, part in zip(self.steps, parts, strict=True):
            shares[step.technique] = round(shares.get(step.technique, 0.0) + part, 9)
        return shares


class Candidate(FrozenModel):
    """A kernel that the judge found correct, at `level`, and timed."""

    id: str
    parent: str | None
    lineage: str
    round: int
    source: Digest
    code: Digest
    technique: str | None
    title: str
    benchmark: Benchmark
    profile: Digest | None
    bottleneck: str | None
    level: Level = Level.WHOLE
    author: str = UNKNOWN_AUTHOR
    """Who wrote it, as in EvaluationRequest; unknown for kernels from before levels existed."""

    @property
    def latency_ms(self) -> float:
        return self.benchmark.latency_ms


class BeamRole(StrEnum):
    ELITE = "elite"
    EXPLORER = "explorer"


class BeamEntry(FrozenModel):
    candidate: Candidate
    role: BeamRole


class Checkpoint(FrozenModel):
    """The kernel that an explorer lineage returns to when it diverges, kept by the guard."""

    lineage: str
    candidate: Candidate
    depth: int = Field(default=0, ge=0)
    """Rounds in a row in which the lineage did not beat the checkpoint."""


class ExperienceKind(StrEnum):
    POSITIVE = "positive"
    NEGATIVE = "negative"


def experience_id(
    kind: ExperienceKind | None, technique: str, slow: Digest | None, fast: Digest | None, summary: str
) -> str:
    """Return the id of an experience, from its content: the same wherever it comes from."""
    return digest_of(canonical_json([kind, technique, slow, fast, summary]))[:ID_LENGTH]


class Experience(FrozenModel):
    """A slow kernel, a fast kernel and what made the difference: an item of the optimisation memory.

    `cites` are the ids of the candidates that it was distilled from.
    """

    kind: ExperienceKind
    technique: str
    slow: Digest
    fast: Digest
    speedup: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    summary: str
    cites: tuple[str, ...]

    @property
    def id(self) -> str:
        """An id that follows from the content."""
        return experience_id(self.kind, self.technique, self.slow, self.fast, self.summary)


class PredictionGrade(StrEnum):
    """How a prediction fared, computed from prediction and result."""

    CONFIRMED = "confirmed"
    OVERSTATED = "overstated"
    UNDERSTATED = "understated"
    REFUTED = "refuted"
    FAILED = "failed"


class Reflection(FrozenModel):
    """What one attempt taught, by (operator, bottleneck, technique): the prediction and the result."""

    operator: str
    bottleneck: str
    technique: str
    predicted_speedup: float
    actual_speedup: float | None
    grade: PredictionGrade
    lesson: str
    seen: int = Field(default=1, ge=1)
    cites: tuple[str, ...] = ()


def _is_false(value: object) -> bool:
    return value is False


class Attempt(FrozenModel):
    """One line of the attempt history that later proposals read."""

    candidate: str
    parent: str
    technique: str
    site: str
    code: Digest | None
    verdict: Verdict | None
    error: ErrorInfo | None
    speedup: float | None
    """Parent latency divided by this latency; None without a latency."""
    gained: bool = False
    """Whether it counts as a gain: beyond noise, and not a duplicate of another kernel's code."""
    round: int
    shares: dict[str, float] = Field(default_factory=dict)
    """The part that each technique of a sequence has in the gain; empty if `technique` has all of it."""
    in_session: bool = Field(default=False, exclude_if=_is_false)
    """Whether a session only tried this kernel on its way; it did not compete, and earns no credit."""
    title: str = Field(default="", exclude_if=is_empty)
    """The plan's title, with the values that it chose; kept with `run.llm.tell_titles`."""
    duplicate_of: str | None = Field(default=None, exclude_if=is_empty)
    """The kernel whose code this one has; known where titles are."""


class TechniqueCredit(FrozenModel):
    """A technique's results in this run: tries, gains, and the sum of ln(speed-up) of its gains."""

    tries: int = 0
    gains: int = 0
    log_gain: float = 0.0


class SlotAssignment(FrozenModel):
    """What one beam slot does in a round: which parent is improved, by which planner, how often.

    `model` is the planning model, ENDPOINT/MODEL, if the planner asks models.
    """

    slot: int = Field(ge=0)
    parent: str
    planner: str
    model: str | None = None
    plans: int = Field(ge=0)
    implementations: int = Field(ge=1)
    repairs: int = Field(default=0, ge=0)


class RunStatus(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


class PauseCause(StrEnum):
    """What ends a pause: a person, free disk space, or the budget of a new day.

    `provider`: an endpoint refuses everything because of its key or account; a person fixes that and resumes
    the run. `hosts`: there is no host on which kernels could run; the run goes on when one answers.
    `machine`: this machine could not judge, however often; a person mends it and resumes the run.
    """

    PERSON = "person"
    SPACE = "space"
    PROVIDER = "provider"
    DAY = "day"
    HOSTS = "hosts"
    MACHINE = "machine"


class StopReason(StrEnum):
    """Why a run ended; it is in RunCompleted."""

    ROUNDS = "rounds"
    TARGET = "target"
    PLATEAU = "plateau"
    NEAR_BOUND = "near_bound"
    BUDGET = "budget"
    INITIAL_REJECTED = "initial_rejected"
    NO_PROPOSALS = "no_proposals"
    INFRASTRUCTURE = "infrastructure"


class RunEnding(FrozenModel):
    """Why a run ends."""

    reason: StopReason
    detail: str
