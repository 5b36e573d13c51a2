"""What evaluator and worker tell each other: a job, and the outcome or the failure that comes of it."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from seeds import ProblemSpec
from state.model import Benchmark, ErrorInfo, FormulaIdentity, FrozenModel, PredictedLatency, Verdict

Box = tuple[tuple[int, int], ...]
"""(first, end) along each dimension of an output."""


class OutputPiece(FrozenModel):
    """A part of an output that a host shows: `box` (None: all), as `bins` sums of a sketch (0: as it is)."""

    set: str
    output: int
    box: Box | None
    bins: int
    nbytes: int


class HostOutputs(FrozenModel):
    """What a host showed of the outputs that it computed: `pieces` behind one another in `file`.

    `seed` is that of the sketches. `ended` are the sets, of which there is at most one, on which the kernel
    failed.
    """

    file: str
    pieces: tuple[OutputPiece, ...]
    seed: str
    ended: dict[str, tuple[Verdict, ErrorInfo]] = Field(default_factory=dict)


class DeviceSamples(FrozenModel):
    """What a device measured: samples in milliseconds by round, the last of which is believed."""

    rounds: tuple[tuple[float, ...], ...]
    spread_ratio: float
    """The spread up to which a round is believed."""


class JudgeJob(FrozenModel):
    """What the worker needs beside the tracer's reply.

    `references` are .npy files of whole outputs, per seed judged whole and output, `whole_sets` the same of
    sets that are no seeds, each of which has excerpts too; `tiled_reference` are .npz files of tiles, per
    input set judged on tiles. All are judged in the order given. `expression` is the file of what the
    reference computes, as data; empty where nobody followed the reference. `secret` is what tiles are drawn
    with; no message shows it. `host_outputs` is there where a host ran the kernel: its outputs are judged,
    none are computed. `device`: a real one ran it, so that nothing is predicted, and a program that the
    simulator cannot follow is no fault of the kernel.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    spec: ProblemSpec
    problem: str
    size: str
    target: str
    references: dict[int, tuple[str, ...]]
    whole_sets: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    excerpts: dict[str, str] = Field(default_factory=dict)
    expression: str = ""
    secret: str = Field(default="", repr=False)
    shown: HostOutputs | None = None
    device: bool = False


class PredictJob(FrozenModel):
    """A job of another kind: what the model says of each program in a tracer's replies, and nothing more.

    `size` is None for programs at other dimensions than those of a size, which have no bounds.
    """

    spec: ProblemSpec
    size: str | None
    target: str
    count: int


class LintJob(FrozenModel):
    """A job of a third kind: what kernels' texts say before they are run, the rules' refusal or the code."""

    sources: tuple[str, ...]
    target: str


class TimelineJob(FrozenModel):
    """A job of a fourth kind: when every instruction of the program in a tracer's reply would run."""

    target: str


class CheckJob(FrozenModel):
    """A job of another kind: whether a tracer's program breaks a rule, before a host runs it."""

    spec: ProblemSpec
    size: str
    target: str


class DigestJob(FrozenModel):
    """A job of another kind: the sha256 of each array of input sets, to be compared with a host's."""

    spec: ProblemSpec
    size: str
    sets: tuple[str, ...]


class GrepJob(FrozenModel):
    """A job of another kind: what a user's pattern finds in texts of a host, up to `most` each."""

    pattern: str
    texts: tuple[str, ...]
    most: int


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
    stage_ms: dict[str, float] = Field(default_factory=dict)


class JudgeReply(FrozenModel):
    """An outcome, or positions in `Shown.pieces` that have to be shown in full first, or predictions, or
    why there can be none (`bad_reference`, `worker_failed`).

    `timeline` is a predicted run as Chrome trace events, `rejected` why a program has none.
    """

    outcome: JudgeOutcome | None = None
    unsure: tuple[int, ...] = ()
    forecasts: tuple[PredictedLatency, ...] | None = None
    timeline: str | None = None
    rejected: ErrorInfo | None = None
    digests: dict[str, tuple[str, ...]] | None = None
    matches: tuple[tuple[str, ...], ...] | None = None
    failure: ErrorInfo | None = None
