"""What the rest of the program knows of evaluators: one protocol and its answer.

An evaluator reads nothing but the request and blobs, answers the same request with the same evaluation,
and raises only InfrastructureError. `registry` makes one by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from state.model import Digest, Evaluation, EvaluationHost, EvaluationRequest, PredictedLatency, ProblemRef


class BlobReader(Protocol):
    """Where an evaluator reads sources and problem files from; `get_blob` raises state's BlobMissing."""

    def get_blob(self, digest: Digest, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class EvaluationAnswer:
    """An evaluation, the blobs it names (profiles) by digest, and what each stage took in milliseconds.

    The evaluation is the same every time; the times are not, so they are no part of it. `predicted_ms` is
    what a pre-filter predicted before it let the kernel through, or held it back; `where` is the host that
    judged, None where this machine did. `device_seconds` is what it took of a device, nothing where a
    simulator stood in for one; None where the evaluator does not say.
    """

    evaluation: Evaluation
    artefacts: Mapping[Digest, bytes]
    stage_ms: Mapping[str, float]
    predicted_ms: float | None = None
    where: EvaluationHost | None = None
    device_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """Kernels of one author to be predicted, not judged: rewrites of one parent that a search looks at.

    `dims` are dimensions of the problem to predict at, where these are not those of its size.
    """

    author: str
    sources: tuple[str, ...]
    problem: ProblemRef
    size: str
    target: str
    toolchain: str
    dims: Mapping[str, int] | None = None


class Evaluator(Protocol):
    """Judges and times kernels somewhere."""

    @property
    def name(self) -> str:
        """The kind, as in RunConfig.evaluator."""
        ...

    def toolchain(self) -> str:
        """What compiles and times here, with its version; part of the cache key.

        Raises:
            NotReadyError: `prepare` has to find that out first.
        """
        ...

    async def prepare(self) -> None:
        """Find out what `toolchain` says, where that takes more than this process. It may be called again.

        Raises:
            InfrastructureError: there is nothing that could evaluate.
        """
        ...

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate; cancelling ends all its processes.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        ...

    async def predict(self, request: PredictionRequest, blobs: BlobReader, /) -> Sequence[PredictedLatency]:
        """Predict the latency of each kernel by its program alone: no numerics, so it may well be wrong.

        The answers are in the order of the sources. Cancelling ends all processes.

        Raises:
            InfrastructureError: the kernels could not be looked at, through no fault of theirs.
        """
        ...

    async def aclose(self) -> None:
        """End all processes; the evaluator is not used again."""
        ...
