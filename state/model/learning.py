"""What runs pass on to later ones: sequences, experiences, techniques, and tags to compare problems."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from state.model.base import Digest, FrozenModel
from state.model.search import ExperienceKind, RewriteStep, TechniqueCredit, experience_id

Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ProblemTags(FrozenModel):
    """The properties by which problems and initial kernels are compared; names play no part.

    `operators` are the instructions of the initial kernel and the functions that they apply, sorted. `dtypes`
    are those of the inputs, sorted. `extents` are the logarithms to base 2 of the problem's dimensions,
    rounded, largest first.
    """

    target: str
    operators: tuple[str, ...]
    dtypes: tuple[str, ...]
    extents: tuple[int, ...]


class SequenceLeg(FrozenModel):
    """Steps that were applied to the kernel `source`, one after the other, and judged together.

    `speedup` is their judged result; the speed-ups of the steps are the predictions for each.
    """

    source: Digest
    steps: tuple[RewriteStep, ...] = Field(min_length=1)
    speedup: Factor


class LearntSequence(FrozenModel):
    """The steps from a run's initial kernel to its best one, leg by leg, and where to find them.

    At `run_seq` of `run` the best kernel was kept. `arguments` are those of its kernels: shape and data type
    of an array, numbers as they are. `speedup` is that of all legs together; `predicted` says whether a model
    of the hardware gave the latencies, None if that was not recorded.
    """

    run: str
    run_seq: int = Field(ge=1)
    problem: str
    tags: ProblemTags
    arguments: tuple[JsonValue, ...]
    speedup: Factor
    legs: tuple[SequenceLeg, ...] = Field(min_length=1)
    predicted: bool | None = None

    @property
    def event_id(self) -> str:
        """The RUN@SEQ at which the resulting kernel was kept."""
        return f"{self.run}@{self.run_seq}"

    @property
    def steps(self) -> tuple[RewriteStep, ...]:
        """All steps, in order."""
        return tuple(step for leg in self.legs for step in leg.steps)

    @property
    def source_digests(self) -> tuple[Digest, ...]:
        """The kernels that it names."""
        return tuple(leg.source for leg in self.legs)

    @property
    def retention_key(self) -> JsonValue:
        """Of sequences with the same key, one is kept."""
        return [self.tags.model_dump(mode="json"), list(self.arguments)]

    @property
    def strength(self) -> float:
        """Of several with the same key, the one with the largest strength is kept."""
        return self.speedup


class ExperienceContext(FrozenModel):
    """What an experience is about, in the form of a file; unknown fields are empty.

    `speedup` is the latency of the slow kernel divided by that of the fast one; `predicted` says whether a
    model of the hardware gave them. The tags' target is empty if the experience holds for any target.
    """

    tags: ProblemTags
    kind: ExperienceKind | None = None
    technique: str = ""
    speedup: Factor | None = None
    predicted: bool | None = None
    toolchain: str = ""
    problem: str = ""


class LearntExperience(FrozenModel):
    """What made the difference between two kernels, in words, for other runs.

    `origin` is the run whose optimisation memory it was in, or the name of the file that it was imported
    from. `cites` are candidates of that run.
    """

    origin: str
    imported: bool = False
    about: ExperienceContext
    slow: Digest | None
    fast: Digest | None
    summary: str
    cites: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """An id that follows from the content: the same for the same experience, wherever it comes from."""
        return experience_id(self.about.kind, self.about.technique, self.slow, self.fast, self.summary)

    @property
    def tags(self) -> ProblemTags:
        """The tags by which it is found."""
        return self.about.tags

    @property
    def source_digests(self) -> tuple[Digest, ...]:
        """The kernels that it names."""
        return tuple(one for one in (self.slow, self.fast) if one is not None)

    @property
    def retention_key(self) -> JsonValue:
        """Of experiences with the same key, one is kept; each imported experience has its own key."""
        if self.imported:
            return self.id
        return [self.tags.model_dump(mode="json"), self.about.kind, self.about.technique]

    @property
    def strength(self) -> float:
        """Of several with the same key, the one with the largest strength is kept."""
        return self.about.speedup or 1.0


class LearntTechnique(FrozenModel):
    """A technique that a model invented, for other runs; `technique` is its id, `new:<name>`.

    At `run_seq` of `run` it was first proposed by `model`, ENDPOINT/MODEL (empty if unknown), with this
    `title` and `description`. `credit` is its result in that run.
    """

    technique: str
    title: str
    description: str
    run: str
    run_seq: int = Field(ge=1)
    model: str = ""
    problem: str
    tags: ProblemTags
    credit: TechniqueCredit

    @property
    def event_id(self) -> str:
        """The RUN@SEQ at which it was first proposed."""
        return f"{self.run}@{self.run_seq}"

    @property
    def source_digests(self) -> tuple[Digest, ...]:
        """The kernels that it names: none."""
        return ()

    @property
    def retention_key(self) -> JsonValue:
        """Of entries for a technique with the same key, one is kept."""
        return [self.tags.model_dump(mode="json"), self.technique]

    @property
    def strength(self) -> float:
        """The average gain of a try; of several with the same key, the strongest is kept."""
        return self.credit.log_gain / max(1, self.credit.tries)
