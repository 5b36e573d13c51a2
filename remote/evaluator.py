"""What the rest of the program knows of evaluators: one protocol and its answer.

An evaluator reads nothing but the request and blobs, answers the same request with the same evaluation,
and raises only InfrastructureError. `registry` makes one by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from state.model import Digest, Evaluation, EvaluationRequest


class Blobs(Protocol):
    """Where an evaluator reads sources and problem files from; `get_blob` raises state's BlobMissing."""

    def get_blob(self, digest: Digest, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class EvaluationAnswer:
    """An evaluation, the blobs it names (profiles) by digest, and what each stage took in milliseconds.

    The evaluation is the same every time; the times are not, so they are no part of it.
    """

    evaluation: Evaluation
    artefacts: Mapping[Digest, bytes]
    stage_ms: Mapping[str, float]


class Evaluator(Protocol):
    """Judges and times kernels somewhere."""

    @property
    def name(self) -> str:
        """The kind, as in RunConfig.evaluator."""
        ...

    def toolchain(self) -> str:
        """What compiles and times here, with its version; part of the cache key."""
        ...

    async def evaluate(self, request: EvaluationRequest, blobs: Blobs, /) -> EvaluationAnswer:
        """Judge one candidate; cancelling ends all its processes.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        ...

    async def aclose(self) -> None:
        """End all processes; the evaluator is not used again."""
        ...
