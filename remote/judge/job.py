"""The messages between evaluator and worker: one type for each job, one for its reply, and the failure."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field

from seeds import ProblemSpec
from state.model import (
    Benchmark,
    ErrorInfo,
    FormulaIdentity,
    FrozenModel,
    KernelExplanation,
    NumericalStability,
    PredictedLatency,
    Verdict,
)
from state.model.calibration import ConstantValue

Box = tuple[tuple[int, int], ...]
"""(first, end) along each dimension of an output."""


class OutputPiece(FrozenModel):
    """A part of an output that a host shows: `box` (None: all), as `bins` sums of a sketch (0: the bytes)."""

    set: str
    output: int
    box: Box | None
    bins: int
    nbytes: int


class HostOutputs(FrozenModel):
    """What a host showed of the outputs that it computed: `pieces` one after the other in `file`.

    `seed` is that of the sketches. `ended` holds the sets, at most one, on which the kernel failed.
    """

    file: str
    pieces: tuple[OutputPiece, ...]
    seed: str
    ended: dict[str, tuple[Verdict, ErrorInfo]] = Field(default_factory=dict)


class JudgeJob(FrozenModel):
    """What the worker needs besides the tracer's reply.

    `references` are .npy files of whole outputs, per seed judged whole and output. `whole_sets` are the same
    for sets that are not seeds; each of these is in `excerpts` too. One of them may be compared
    `instead_of_seeds`, which are then compared only if it cannot be. `excerpts` are .npz files of tiles, per
    input set judged on tiles. All are judged in the order given. `expression` is the file of the reference's
    formula; empty if it could not be traced. `secret` decides which tiles are drawn; no message shows it.
    `shown` is set if a host ran the kernel: its outputs are judged, none are computed. `device`: a real
    device ran the kernel. Then nothing is predicted, and a program that the simulator cannot follow is no
    fault of the kernel. `constants` are calibrated ones of the target's model. `parts` were judged before, by
    another worker with the same job (`judged_parts`).
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    type: Literal["judge"] = "judge"
    spec: ProblemSpec
    problem: str
    size: str
    target: str
    references: dict[int, tuple[str, ...]]
    whole_sets: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    instead_of_seeds: str = ""
    excerpts: dict[str, str] = Field(default_factory=dict)
    expression: str = ""
    secret: str = Field(default="", repr=False)
    shown: HostOutputs | None = None
    device: bool = False
    constants: dict[str, ConstantValue] = Field(default_factory=dict)
    parts: dict[str, Any] = Field(default_factory=dict)


class PredictJob(FrozenModel):
    """Asks for the model's latency of each program in a tracer's replies, and nothing more.

    `size` is None for programs at dimensions that no size has; these have no bounds. `sources` are the
    kernels of the programs, if their canonical forms are wanted too.
    """

    type: Literal["predict"] = "predict"
    spec: ProblemSpec
    size: str | None
    target: str
    count: int
    sources: tuple[str, ...] = ()
    constants: dict[str, ConstantValue] = Field(default_factory=dict)


class LintJob(FrozenModel):
    """Asks what the static rules say about kernels' texts: the refusal, or the digest of the code."""

    type: Literal["lint"] = "lint"
    sources: tuple[str, ...]
    target: str


class TimelineJob(FrozenModel):
    """Asks when every instruction of the program in a tracer's reply would run."""

    type: Literal["timeline"] = "timeline"
    target: str
    constants: dict[str, ConstantValue] = Field(default_factory=dict)


class ExplainJob(FrozenModel):
    """Asks whether the program in a tracer's reply keeps the rules, and why it takes the time it takes.

    `topics` are those of the target's `ToolParts` to be explained.
    """

    type: Literal["explain"] = "explain"
    spec: ProblemSpec
    size: str
    target: str
    source: str
    topics: tuple[str, ...]


class CheckJob(FrozenModel):
    """Asks whether a tracer's program breaks a rule, before a host runs it."""

    type: Literal["check"] = "check"
    spec: ProblemSpec
    size: str
    target: str


class DigestJob(FrozenModel):
    """Asks for the sha256 of each array of input sets, to compare with a host's."""

    type: Literal["digest"] = "digest"
    spec: ProblemSpec
    size: str
    sets: tuple[str, ...]


class GrepJob(FrozenModel):
    """Asks for the matches of a user's pattern in texts from a host, up to `most` in each."""

    type: Literal["grep"] = "grep"
    pattern: str
    texts: tuple[str, ...]
    most: int


Job: TypeAlias = Annotated[
    JudgeJob | PredictJob | LintJob | TimelineJob | ExplainJob | CheckJob | DigestJob | GrepJob,
    Field(discriminator="type"),
]
"""What a worker can be asked."""


class JudgeOutcome(FrozenModel):
    """A verdict on a program; `profile` is the text of the profile's blob."""

    verdict: Verdict
    stage: str
    error: ErrorInfo | None = None
    rel_l2: dict[int, float] = Field(default_factory=dict)
    identity: FormulaIdentity | None = None
    benchmark: Benchmark | None = None
    profile: str | None = None
    bottleneck: str | None = None
    stability: NumericalStability | None = None
    warnings: tuple[ErrorInfo, ...] = ()
    stage_ms: dict[str, float] = Field(default_factory=dict)


class PiecesNeeded(FrozenModel):
    """What a host showed is too little: pieces at `places` of `HostOutputs.pieces` must be shown in full."""

    places: tuple[int, ...] = Field(min_length=1)


class JudgeReply(FrozenModel):
    """Answers a `JudgeJob`."""

    type: Literal["judge"] = "judge"
    result: JudgeOutcome | PiecesNeeded


class PartsReply(FrozenModel):
    """Comes before the `JudgeReply`: parts that were judged since the one before. The first one has none."""

    type: Literal["parts"] = "parts"
    parts: dict[str, Any]


class PredictReply(FrozenModel):
    """Answers a `PredictJob`: one prediction for each program whose turn came."""

    type: Literal["predict"] = "predict"
    predictions: tuple[PredictedLatency, ...]


class LintReply(FrozenModel):
    """Answers a `LintJob`: for each text the refusal, or the digest of its code."""

    type: Literal["lint"] = "lint"
    readings: tuple[PredictedLatency, ...]


class TimelineReply(FrozenModel):
    """Answers a `TimelineJob`: the predicted run as Chrome trace events, or why the program has none."""

    type: Literal["timeline"] = "timeline"
    result: str | ErrorInfo


class ExplainReply(FrozenModel):
    """Answers an `ExplainJob`: the explanation, or the outcome for a program that breaks a rule."""

    type: Literal["explain"] = "explain"
    result: KernelExplanation | JudgeOutcome


class CheckReply(FrozenModel):
    """Answers a `CheckJob`: the outcome for a program that breaks a rule, None for the others."""

    type: Literal["check"] = "check"
    refusal: JudgeOutcome | None


class DigestReply(FrozenModel):
    """Answers a `DigestJob`: the digests of each set's arrays."""

    type: Literal["digest"] = "digest"
    digests: dict[str, tuple[str, ...]]


class GrepReply(FrozenModel):
    """Answers a `GrepJob`: the matches in each text."""

    type: Literal["grep"] = "grep"
    matches: tuple[tuple[str, ...], ...]


class FailureReply(FrozenModel):
    """Answers any job that failed through no fault of the kernel; codes: `bad_reference`, `worker_failed`."""

    type: Literal["failure"] = "failure"
    error: ErrorInfo


Reply: TypeAlias = Annotated[
    JudgeReply
    | PartsReply
    | PredictReply
    | LintReply
    | TimelineReply
    | ExplainReply
    | CheckReply
    | DigestReply
    | GrepReply
    | FailureReply,
    Field(discriminator="type"),
]
"""What a worker can answer."""
