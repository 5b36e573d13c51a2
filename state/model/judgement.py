"""What is asked of the judge, and what it says: levels, verdicts, benchmarks, evaluations."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field

from state.model.base import Digest, ErrorInfo, FrozenModel, PositiveMs

PERSON = "person"
"""The author of kernels that people hand in: those that runs start from, and those proposed to runs."""

UNKNOWN_AUTHOR = "unknown"
"""The author of a kernel of which nobody knows who wrote it: nobody trusts it."""

TRUSTED_AUTHORS = frozenset({PERSON, "builtin", "knobs", "scripted"})
"""Who may have written a kernel that runs where only a weak jail holds it; all others are models."""


PREFILTERED = "prefiltered"
"""The code of what is wrong with a kernel that was held back: a model predicts that others are faster."""

PREFILTER_STAGE = "sim_"
"""What the names of stages begin with in which a model looked at a kernel before a device did."""


class Verdict(StrEnum):
    """What the judge says of a candidate. An infrastructure error is no verdict: see EvaluationFailed."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    LINT_ERROR = "lint_error"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    UNSTABLE = "unstable"


class Level(StrEnum):
    """How much of a kernel's outputs the judge compares, least first.

    `slices`: tiles of them, on every input set; `one_seed`: also whole outputs of the first seed; `whole`: of
    every seed.
    """

    SLICES = "slices"
    ONE_SEED = "one_seed"
    WHOLE = "whole"

    def covers(self, other: Level) -> bool:
        """Return whether a kernel judged at this level needs no judging at `other`."""
        order = tuple(Level)
        return order.index(self) >= order.index(other)


RESOLUTION_RATIO = 0.005
"""Predicted latencies that differ by less are too near each other to tell which is lower."""


class Benchmark(FrozenModel):
    """A latency with its interval. `predicted` is true when a model produced it, false when a device did.

    `draws_ms` are the latencies that the model gives with its uncertain constants moved, the same moves in
    the same order for every kernel; empty for what was measured.
    """

    latency_ms: PositiveMs
    lo_ms: PositiveMs
    hi_ms: PositiveMs
    predicted: bool
    samples: int = Field(ge=1)
    draws_ms: tuple[PositiveMs, ...] = ()

    def wins_percent(self, other: Benchmark) -> float | None:
        """Return the share of wins among the draws that tell the two apart: 50 where none does.

        Nearer to each other than `RESOLUTION_RATIO` a draw says nothing, nor does one that only one of the
        two has. None when they share no draw.
        """
        pairs = list(zip(self.draws_ms, other.draws_ms, strict=False))
        told = [mine < theirs for mine, theirs in pairs if _are_distinguishable(mine, theirs)]
        if not pairs:
            return None
        return 100.0 * sum(told) / len(told) if told else 50.0

    @property
    def noise_ratio(self) -> float:
        """Half the interval's width relative to the latency, when the latency was measured.

        A prediction's interval is the model's uncertainty, common to the kernels compared, not
        run-to-run noise: of a prediction it is half of what the model resolves.
        """
        if self.predicted:
            return RESOLUTION_RATIO / 2
        return (self.hi_ms - self.lo_ms) / (2 * self.latency_ms)


def _are_distinguishable(mine: float, theirs: float) -> bool:
    return abs(mine - theirs) > RESOLUTION_RATIO * max(mine, theirs)


class FormulaIdentity(FrozenModel):
    """Whether a correct kernel computes the reference's formula, and not only its numbers.

    `proven`: on `elements` of the outputs, which are `share_percent` of them, the formulas are the same.
    `tested`: the numbers agreed, and `reason` says why no more is known.
    """

    verdict: Literal["proven", "tested"]
    reason: str = ""
    elements: int = Field(default=0, ge=0)
    share_percent: float = Field(default=0.0, ge=0, le=100)


class Evaluation(FrozenModel):
    """The judge's full answer on one candidate.

    `rel_l2` maps each input seed to the relative L2 error of the outputs. `identity` is there where the
    judge got as far as looking at it. `profile` is the blob of the neuron-profile-like counters (JSON),
    `bottleneck` their one-word summary. `code` is the digest of the normalised syntax tree, by which
    duplicates are known. `level` is the one that was asked for, or what a gain too good raised it to; before
    there were levels, everything was compared.
    """

    verdict: Verdict
    stage: str
    code: Digest
    error: ErrorInfo | None = None
    rel_l2: dict[int, float] = Field(default_factory=dict)
    identity: FormulaIdentity | None = None
    benchmark: Benchmark | None = None
    profile: Digest | None = None
    bottleneck: str | None = None
    target: str
    toolchain: str
    level: Level = Level.WHOLE

    @property
    def is_correct(self) -> bool:
        return self.verdict is Verdict.CORRECT


class PredictedLatency(FrozenModel):
    """What the model says of a kernel that was traced and not judged: a latency, or why there is none.

    `instructions` are those of the traced program, the measure of the work that predicting took. `code` is
    the digest by which the judge knows duplicates.
    """

    latency_ms: PositiveMs | None = None
    code: Digest | None = None
    instructions: int = Field(default=0, ge=0)
    error: ErrorInfo | None = None


class ProblemRef(FrozenModel):
    """A problem as a run holds it: its name, the digest of all its files, and the files as blobs."""

    name: str
    digest: Digest
    files: dict[str, Digest]


class LatencyBounds(FrozenModel):
    """Lower bounds on latency: NKIBench's plain roofline, and the tight bound of the target's own table."""

    plain_ms: PositiveMs
    tight_ms: PositiveMs


class EvaluationRequest(FrozenModel):
    """All that an evaluator needs; everything it reads is a blob, so a rerun judges the same bytes.

    `author` is who wrote the kernel: one of TRUSTED_AUTHORS, or the name of a model's proposer. It bears
    on where the kernel may run, never on the verdict. `base_ms`, the latency of the kernel that this one
    was made from, raises the level where the gain is too good.
    """

    candidate: str
    author: str
    source: Digest
    problem: ProblemRef
    size: str
    target: str
    toolchain: str
    level: Level = Level.WHOLE
    base_ms: float | None = Field(default=None, gt=0)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        return cls.model_validate_json(data)
