"""The evaluator protocol: what the rest of the program knows of evaluators.

An evaluator reads nothing but the request and blobs, returns the same evaluation for the same request, and
raises only InfrastructureError. `registry` makes one by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from state.model import (
    Digest,
    Evaluation,
    EvaluationHost,
    EvaluationRequest,
    KernelExplanation,
    PredictedLatency,
    ProblemRef,
)

if TYPE_CHECKING:
    from remote.judge.job import JudgeOutcome


class BlobReader(Protocol):
    """Where an evaluator reads sources and problem files; `get_blob` raises state's BlobMissing."""

    def get_blob(self, digest: Digest, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class EvaluationAnswer:
    """An evaluation, the blobs it names (profiles) by digest, and the milliseconds each stage took.

    A verdict grows on its way, and each type has what is known there. A worker's `JudgeOutcome` is about a
    program: it has the profile's text, and knows neither source nor level nor toolchain. `Evaluation` is what
    the log keeps, the same in equal runs. This type adds what differs from run to run; the daemon's
    `FoundVerdict` adds the cache key, and may be a failure. `make_answer` and `verdict_outcome` lead from one
    to the next.

    `predicted_ms` is the pre-filter's prediction, whether it let the kernel through or held it back, and
    `predicted_bound` what bounds the kernel in it. `where` is the host that judged, None for this machine.
    `device_seconds` is the device time used: 0 where a simulator stood in for a device, None where the
    evaluator does not say.
    """

    evaluation: Evaluation
    artefacts: Mapping[Digest, bytes]
    stage_ms: Mapping[str, float]
    predicted_ms: float | None = None
    predicted_bound: str | None = None
    where: EvaluationHost | None = None
    device_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """Kernels of one author to predict without judging: rewrites of one parent that a search considers.

    `dims` are the problem's dimensions to predict at, where they differ from those of its size. `canonical`
    asks for each kernel's canonical form as well, if the target has one.
    """

    author: str
    sources: tuple[str, ...]
    problem: ProblemRef
    size: str
    target: str
    toolchain: str
    dims: Mapping[str, int] | None = None
    canonical: bool = False


@dataclass(frozen=True, slots=True)
class ExplanationRequest:
    """Asks why a kernel takes the time it is predicted to take, on `topics` of the target's `ToolParts`."""

    author: str
    source: Digest
    problem: ProblemRef
    size: str
    target: str
    topics: tuple[str, ...]


class Explainer(Protocol):
    """Checks and explains kernels by their programs alone, for tools of models and people."""

    async def explain(
        self, request: ExplanationRequest, blobs: BlobReader, /
    ) -> KernelExplanation | JudgeOutcome:
        """Return the explanation, or the outcome for a kernel that is refused before its outputs are judged.

        Raises:
            InfrastructureError: the kernel could not be traced or timed, through no fault of its own.
        """
        ...


class Evaluator(Protocol):
    """Judges and times kernels somewhere."""

    @property
    def name(self) -> str:
        """The kind, as in RunConfig.evaluator."""
        ...

    def toolchain(self) -> str:
        """What compiles and times here, with its version; part of the cache key.

        Raises:
            NotReadyError: only `prepare` can find that out.
        """
        ...

    async def prepare(self) -> None:
        """Find out what `toolchain` returns, where that takes more than this process. Can be called again.

        Raises:
            InfrastructureError: nothing here can evaluate.
        """
        ...

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate; cancelling ends all its processes.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        ...

    async def predict(self, request: PredictionRequest, blobs: BlobReader, /) -> Sequence[PredictedLatency]:
        """Predict each kernel's latency from its program alone; its outputs may be wrong.

        The answers are in the order of the sources. Cancelling ends all processes.

        Raises:
            InfrastructureError: the kernels could not be predicted, through no fault of theirs.
        """
        ...

    async def aclose(self) -> None:
        """End all processes; the evaluator cannot be used afterwards."""
        ...
