"""What the search makes and learns: plans, candidates, the beam, experiences, reflections."""

from __future__ import annotations

from enum import StrEnum
from math import log
from typing import Annotated

from pydantic import Field, JsonValue

from state.model.base import Digest, ErrorInfo, FrozenModel, canonical_json, digest_of
from state.model.judgement import UNKNOWN_AUTHOR, Benchmark, Level, Verdict

ID_LENGTH = 12
"""Letters of a name that follows from what it names."""


class Prediction(FrozenModel):
    """What a plan says will happen, written down before its result exists.

    `speedup` is the factor expected over the parent; `counter` names the profile counter expected to
    move and `direction` its sign (-1 falls, +1 rises).
    """

    speedup: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    counter: str | None = None
    direction: int = Field(default=-1, ge=-1, le=1)
    reason: str = ""


class RewriteStep(FrozenModel):
    """One rewrite of a sequence: a technique at a site, in words, and what it is predicted to bring.

    `choice` are its parameters, `speedup` the factor over the kernel before it: below 1 for a step that
    prepares another.
    """

    technique: str
    site: str
    title: str
    choice: dict[str, int | str] = Field(default_factory=dict)
    speedup: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


class Plan(FrozenModel):
    """One intended change: a technique (menu id) at a site, in words, with its prediction.

    `steps` are the rewrites of a plan that is a sequence of them; its `technique` is then that of the step
    that is predicted to bring most.
    """

    technique: str
    site: str
    title: str
    prediction: Prediction
    detail: JsonValue = None
    steps: tuple[RewriteStep, ...] = ()

    @property
    def technique_shares(self) -> dict[str, float]:
        """What part each technique has in the plan's gain, summing to 1.

        Of a sequence these are the shares of the steps' predicted gains (in logarithms; equal where no step
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
    """Who wrote it, as in EvaluationRequest; of kernels from before levels it is not known."""

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
    """The state that an explorer lineage returns to when it diverges (the guard's memory of it)."""

    lineage: str
    candidate: Candidate
    depth: int = Field(default=0, ge=0)
    """Rounds in a row that the lineage went without beating the checkpoint."""


class ExperienceKind(StrEnum):
    POSITIVE = "positive"
    NEGATIVE = "negative"


def experience_id(
    kind: ExperienceKind | None, technique: str, slow: Digest | None, fast: Digest | None, summary: str
) -> str:
    """Return the name of an experience: the same for the same one, wherever it is from."""
    return digest_of(canonical_json([kind, technique, slow, fast, summary]))[:ID_LENGTH]


class Experience(FrozenModel):
    """A slow kernel, a fast kernel and what made the difference: an item of the optimisation memory.

    `cites` are the candidate ids it was distilled from.
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
        """A name that follows from what it says."""
        return experience_id(self.kind, self.technique, self.slow, self.fast, self.summary)


class PredictionGrade(StrEnum):
    """How a prediction fared, decided mechanically from prediction and outcome."""

    CONFIRMED = "confirmed"
    OVERSTATED = "overstated"
    UNDERSTATED = "understated"
    REFUTED = "refuted"
    FAILED = "failed"


class Reflection(FrozenModel):
    """What one attempt taught: keyed by (operator, bottleneck, technique), prediction against outcome."""

    operator: str
    bottleneck: str
    technique: str
    predicted_speedup: float
    actual_speedup: float | None
    grade: PredictionGrade
    lesson: str
    seen: int = Field(default=1, ge=1)
    cites: tuple[str, ...] = ()


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
    """Parent latency over this latency; None when there is no latency."""
    gained: bool = False
    """Whether it counted as a gain: beyond noise, and no other kernel's code."""
    round: int
    shares: dict[str, float] = Field(default_factory=dict)
    """What part each technique of a sequence has in the gain; empty where `technique` has all of it."""


class TechniqueCredit(FrozenModel):
    """What a technique has brought in this run: tries, keeps, and the sum of ln(speed-up) of its gains."""

    tries: int = 0
    gains: int = 0
    log_gain: float = 0.0


class SlotAssignment(FrozenModel):
    """What one beam slot does in a round: whose kernel is improved, by whom, how often.

    `model` is who plans where the planner asks models, ENDPOINT/MODEL.
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
    """What ends a pause: a person, that the disk has space again, or that a new day has a budget again.

    `provider`: an endpoint refuses everything, for its key or its account; a person mends that and lets the
    run go on. `hosts`: no host is left that kernels could run on; it goes on when one answers.
    """

    PERSON = "person"
    SPACE = "space"
    PROVIDER = "provider"
    DAY = "day"
    HOSTS = "hosts"


class StopReason(StrEnum):
    """Why a run ended; RunCompleted says which."""

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
