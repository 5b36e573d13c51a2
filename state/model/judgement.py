"""Requests to the judge and its answers: levels, verdicts, benchmarks, evaluations."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field

from state.model.base import Digest, ErrorInfo, FrozenModel, PositiveMs, is_empty

PERSON = "person"
"""The author of kernels from people: those that runs start from, and those proposed to runs."""

UNKNOWN_AUTHOR = "unknown"
"""The author of a kernel whose author is unknown; it is not trusted."""

TRUSTED_AUTHORS = frozenset({PERSON, "builtin", "knobs", "scripted", "translation"})
"""Authors whose kernels may run in a weak jail; all other authors are models."""


PREFILTERED = "prefiltered"
"""The error code of a kernel that was held back because others are predicted to be faster."""

PREFILTER_STAGE = "sim_"
"""The prefix of stages in which a model looked at a kernel before a device did."""


class Verdict(StrEnum):
    """The judge's verdict on a candidate. An infrastructure error is not a verdict: see EvaluationFailed."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    LINT_ERROR = "lint_error"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    UNSTABLE = "unstable"


class Level(StrEnum):
    """How much of a kernel's outputs the judge compares, least first.

    `slices`: tiles of them, on every input set. `one_seed`: also whole outputs for the first seed, or for the
    set on which most is rounded away, if the kernel may round. `whole`: for every seed, and two more sets.
    """

    SLICES = "slices"
    ONE_SEED = "one_seed"
    WHOLE = "whole"

    def covers(self, other: Level) -> bool:
        """Return whether a kernel judged at this level needs no judging at `other`."""
        order = tuple(Level)
        return order.index(self) >= order.index(other)


RESOLUTION_RATIO = 0.005
"""Predicted latencies that differ by less than this ratio are too close to tell which is lower."""


class Benchmark(FrozenModel):
    """A latency with its interval. `predicted` is true if a model produced it, false if a device did.

    `draws_ms` are the latencies that the model gives when its uncertain constants are varied, in the same way
    and order for every kernel; empty for a measured latency. `order_confidence` holds, for rising percents,
    how many times as long another kernel must be predicted to take so that it was slower in that percentage
    of measured pairs. `unlike` says why no measured kernel resembles this one. Both are written only where
    there are any: older logs keep their hashes, and decide by draws alone.
    """

    latency_ms: PositiveMs
    lo_ms: PositiveMs
    hi_ms: PositiveMs
    predicted: bool
    samples: int = Field(ge=1)
    draws_ms: tuple[PositiveMs, ...] = ()
    order_confidence: tuple[tuple[float, float], ...] = Field(default=(), exclude_if=is_empty)
    unlike: str = Field(default="", exclude_if=is_empty)

    def wins_percent(self, other: Benchmark) -> float | None:
        """Return how sure it is, in percent, that this kernel is faster; None if they share no draw.

        Draws say it first: the percentage of wins among those that tell the two kernels apart, 50 if none
        does. A draw in which they differ by less than `RESOLUTION_RATIO`, or that only one of them has, does
        not count. If most draws agree, measured pairs limit it: all draws together are as sure as pairs whose
        predictions were as far apart turned out to be, and draws that disagree lower it towards 50.
        """
        pairs = list(zip(self.draws_ms, other.draws_ms, strict=False))
        told = [mine < theirs for mine, theirs in pairs if _are_distinguishable(mine, theirs)]
        if not pairs:
            return None
        share = sum(told) / len(told) if told else 0.5
        if share <= 0.5 or not self.order_confidence:
            return 100.0 * share
        return 50.0 + (self._pair_percent(other) - 50.0) * (2 * share - 1)

    def _pair_percent(self, other: Benchmark) -> float:
        """The percentage of measured pairs this far apart whose order was as predicted."""
        reached = (
            percent for percent, ratio in self.order_confidence if other.latency_ms >= ratio * self.latency_ms
        )
        return max(reached, default=50.0)

    @property
    def noise_ratio(self) -> float:
        """Half the interval's width relative to the latency, for a measured latency.

        A prediction's interval is the model's uncertainty, which the compared kernels share, and not noise
        from run to run. For a prediction this is half of the model's resolution.
        """
        if self.predicted:
            return RESOLUTION_RATIO / 2
        return (self.hi_ms - self.lo_ms) / (2 * self.latency_ms)


def _are_distinguishable(mine: float, theirs: float) -> bool:
    return abs(mine - theirs) > RESOLUTION_RATIO * max(mine, theirs)


class FormulaIdentity(FrozenModel):
    """Whether a correct kernel computes the reference's formula, and not only its numbers.

    `proven`: the formulas are the same on `elements` of the outputs, which are `share_percent` of them.
    `tested`: the numbers agree, and `reason` says why no more is known.
    """

    verdict: Literal["proven", "tested"]
    reason: str = ""
    elements: int = Field(default=0, ge=0)
    share_percent: float = Field(default=0.0, ge=0, le=100)


class NumericalStability(FrozenModel):
    """How a correct kernel fares on inputs that lie far from zero for their spread.

    `rel_l2` is its error there, against the reference in float64. It is `stable` if that is below
    `tolerance`, which is the problem's, or what a float32 evaluation of the reference needs if that is more.
    """

    verdict: Literal["stable", "unstable"]
    rel_l2: float = Field(ge=0, allow_inf_nan=False)
    tolerance: float = Field(gt=0, allow_inf_nan=False)


class Evaluation(FrozenModel):
    """The judge's full answer on one candidate.

    `rel_l2` maps each input seed to the relative L2 error of the outputs. `identity` is set if the judge came
    to that stage: it is about the formula, `stability` about what rounding makes of it (None where inputs far
    from zero say nothing). `profile` is the blob of the counters (JSON), `bottleneck` their one-word summary.
    `code` is the digest of the normalised syntax tree, which identifies duplicates. `level` is the requested
    one, or a higher one if the gain was suspiciously large; before levels existed, everything was compared.
    `warnings` say what a person should look at although the verdict stands. They and the stability are
    written only where there are any: older logs keep their hashes.
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
    stability: NumericalStability | None = Field(default=None, exclude_if=is_empty)
    warnings: tuple[ErrorInfo, ...] = Field(default=(), exclude_if=is_empty)

    @property
    def is_correct(self) -> bool:
        return self.verdict is Verdict.CORRECT


class CanonicalKernel(FrozenModel):
    """A kernel in its target's canonical form, which is made from what the kernel does.

    `source` is None if the kernel has no such form; `reason` says why. Kernels with the same `program` do the
    same, instruction by instruction. If it is `ported`, the kernel's own compiler rewrites what the kernel
    does, and the canonical form has another one: times differ, and instructions may.
    """

    program: Digest
    source: str | None = None
    reason: str = ""
    ported: bool = False


class PredictedLatency(FrozenModel):
    """The model's prediction for a kernel that was traced and not judged: a latency, or an error.

    `instructions` counts those of the traced program, which measures the work of predicting. `code` is the
    digest by which the judge identifies duplicates. `canonical` is set if it was asked for and the target has
    a canonical form.
    """

    latency_ms: PositiveMs | None = None
    code: Digest | None = None
    instructions: int = Field(default=0, ge=0)
    error: ErrorInfo | None = None
    canonical: CanonicalKernel | None = None


class KernelExplanation(FrozenModel):
    """Why a kernel that keeps all rules takes its predicted latency; whether it is right is not judged.

    `error` says why the model cannot time it, `unlike` why no measured kernel resembles it. `topics` are
    texts for people and models, by the names of the target's topics. `canonical` is set if it was asked for
    instead.
    """

    latency_ms: PositiveMs | None = None
    lo_ms: PositiveMs | None = None
    hi_ms: PositiveMs | None = None
    instructions: int = Field(default=0, ge=0)
    bottleneck: str | None = None
    unlike: str = Field(default="", exclude_if=is_empty)
    error: ErrorInfo | None = None
    topics: dict[str, str] = Field(default_factory=dict)
    canonical: CanonicalKernel | None = Field(default=None, exclude_if=is_empty)


class ProblemRef(FrozenModel):
    """A problem as a run holds it: its name, the digest of all its files, and the files as blobs."""

    name: str
    digest: Digest
    files: dict[str, Digest]


class LatencyBounds(FrozenModel):
    """Lower bounds on latency, both from the target: its plain roofline, and its model bound."""

    plain_ms: PositiveMs
    tight_ms: PositiveMs


class EvaluationRequest(FrozenModel):
    """All that an evaluator needs; everything it reads is a blob, so a rerun judges the same bytes.

    `author` is who wrote the kernel: one of TRUSTED_AUTHORS, or the name of a model's proposer. It affects
    where the kernel may run, never the verdict. `base_ms`, the latency of the kernel that this one was made
    from, raises the level if the gain is suspiciously large. `base` is that kernel's source, for evaluators
    that measure the two in turns; None for others, and in requests of older versions.
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
    base: Digest | None = Field(default=None, exclude_if=is_empty)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        return cls.model_validate_json(data)
