"""What a fleet needs from a host, however the host is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from remote.evaluator import BlobReader, EvaluationAnswer
from state.model import EvaluationRequest

LOGIN = "logging in"
"""The first step of connecting to a host."""


@dataclass(frozen=True, slots=True)
class HostDescription:
    """What a host said about itself when it was reached.

    `device` names what times kernels there, in words; `toolchain` what compiles and times, with versions.
    `slots` is the number of evaluations it takes at a time. `targets` are the devices whose kernels run
    there, None for all (a simulator). `tags` are other known facts, such as the instance type. `any_author`:
    its jail may hold kernels of any author, not only those that come with the program or that a person wrote.
    `short` holds codes of what it lacks but can be used without (`fleet_host.REMEDIES`).
    """

    device: str
    toolchain: str
    slots: int
    targets: frozenset[str] | None = None
    tags: frozenset[str] = field(default_factory=frozenset)
    any_author: bool = True
    short: tuple[str, ...] = ()


class FleetMember(Protocol):
    """One host. Every method may raise InfrastructureError; a HostError means that the host is at fault."""

    @property
    def address(self) -> str:
        """The host's name as the user wrote it."""
        ...

    @property
    def took_s(self) -> Mapping[str, float]:
        """Seconds that each step of the last connection took, including a step that was broken off."""
        ...

    async def prepare(self) -> HostDescription:
        """Connect to the host, again if needed, and read its description; one attempt, no retries."""
        ...

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate there; cancelling ends everything that runs for it."""
        ...

    async def calibrate(self) -> float:
        """Time the calibration kernel that all hosts time, in milliseconds."""
        ...

    async def aclose(self) -> None:
        """Disconnect from the host."""
        ...
