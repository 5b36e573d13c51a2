"""What runs hand on to later runs: sequences that paid, experiences, techniques; what is alike by what."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from state.model.base import Digest, FrozenModel
from state.model.search import ExperienceKind, RewriteStep, TechniqueCredit, experience_id

Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ProblemTags(FrozenModel):
    """What problems, and the kernels that runs begin with, are compared by; none of it is a name.

    `operators` are the instructions of the initial kernel and the functions that they apply, sorted.
    `dtypes` are those of the inputs, sorted; `extents` the logarithms to base 2 of the problem's dimensions,
    rounded, the largest first.
    """

    target: str
    operators: tuple[str, ...]
    dtypes: tuple[str, ...]
    extents: tuple[int, ...]


class SequenceLeg(FrozenModel):
    """Steps that were carried out on the kernel `source`, one after the other, and judged together.

    `speedup` is what they came to as judged; the speed-ups of the steps are what was predicted of each.
    """

    source: Digest
    steps: tuple[RewriteStep, ...] = Field(min_length=1)
    speedup: Factor


class LearntSequence(FrozenModel):
    """What led from the kernel that a run began with to its best, leg by leg, and where that is to be seen.

    At `run_seq` of `run` the best kernel was kept. `arguments` are what its kernels are called with: shape
    and data type of an array, numbers as they are. `speedup` is that of all legs together, `predicted`
    whether a model of the hardware gave the latencies; None where that was not recorded.
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
        """Where the kernel was kept that it led to, as RUN@SEQ."""
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
        """Of sequences in the same setting one is kept."""
        return [self.tags.model_dump(mode="json"), list(self.arguments)]

    @property
    def strength(self) -> float:
        """Of several the one that has more of it is kept."""
        return self.speedup


class ExperienceContext(FrozenModel):
    """What an experience is about, as it may stand in a file; what is not known is empty.

    `speedup` is the latency of the slow kernel over that of the fast one, `predicted` whether a model of the
    hardware gave these. The tags' target is empty where it holds for any.
    """

    tags: ProblemTags
    kind: ExperienceKind | None = None
    technique: str = ""
    speedup: Factor | None = None
    predicted: bool | None = None
    toolchain: str = ""
    problem: str = ""


class LearntExperience(FrozenModel):
    """What made the difference between two kernels, in words, for other runs to be told.

    `origin` is the run in whose optimisation memory it was, or the name of the file that it was imported
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
        """A name that follows from what it says: the same for the same experience, wherever it is from."""
        return experience_id(self.about.kind, self.about.technique, self.slow, self.fast, self.summary)

    @property
    def tags(self) -> ProblemTags:
        """What it is found by."""
        return self.about.tags

    @property
    def source_digests(self) -> tuple[Digest, ...]:
        """The kernels that it names."""
        return tuple(one for one in (self.slow, self.fast) if one is not None)

    @property
    def retention_key(self) -> JsonValue:
        """Of what runs learnt of a technique in the same setting one is kept; of a file, all that differs."""
        if self.imported:
            return self.id
        return [self.tags.model_dump(mode="json"), self.about.kind, self.about.technique]

    @property
    def strength(self) -> float:
        """Of several the one that has more of it is kept."""
        return self.about.speedup or 1.0


class LearntTechnique(FrozenModel):
    """A technique that a model invented, for other runs to be offered; `technique` is its id, `new:<name>`.

    At `run_seq` of `run` it was proposed first, by `model`, ENDPOINT/MODEL (empty where that is unknown),
    with these `title` and `description`. `credit` is what it brought in that run.
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
        """Where it was proposed first, as RUN@SEQ."""
        return f"{self.run}@{self.run_seq}"

    @property
    def source_digests(self) -> tuple[Digest, ...]:
        """The kernels that it names: none."""
        return ()

    @property
    def retention_key(self) -> JsonValue:
        """Of a technique in the same setting one account is kept."""
        return [self.tags.model_dump(mode="json"), self.technique]

    @property
    def strength(self) -> float:
        """Of several the one that has more of it is kept: what a try brought, on average."""
        return self.credit.log_gain / max(1, self.credit.tries)
