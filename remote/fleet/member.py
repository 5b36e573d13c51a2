"""What a fleet needs of a host, however that is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from remote.evaluator import BlobReader, EvaluationAnswer
from state.model import EvaluationRequest

LOGIN = "logging in"
"""The first step of reaching a host."""


@dataclass(frozen=True, slots=True)
class HostDescription:
    """What a host said of itself when it was reached.

    `device` is what times kernels there, in words; `toolchain` what compiles and times, with versions;
    `slots` how many evaluations it takes at a time; `targets` the devices whose kernels run there, None for
    all (a simulator); `tags` what else is known of it, such as its instance type. `any_author`: its jail may
    hold kernels of any author, not only those that come with the program or that a person wrote. `short` are
    codes of what it could do with, and can be used without (`remedies.py`).
    """

    device: str
    toolchain: str
    slots: int
    targets: frozenset[str] | None = None
    tags: frozenset[str] = field(default_factory=frozenset)
    any_author: bool = True
    short: tuple[str, ...] = ()


class FleetMember(Protocol):
    """One host. Every method may raise InfrastructureError; a HostError says that the host is at fault."""

    @property
    def address(self) -> str:
        """How the user names it."""
        ...

    @property
    def took_s(self) -> Mapping[str, float]:
        """How long each step of reaching it took the last time, also one that was broken off."""
        ...

    async def prepare(self) -> HostDescription:
        """Reach the host, again if need be, and ask what it is; one attempt, without patience."""
        ...

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate there; cancelling ends all that runs for it."""
        ...

    async def calibrate(self) -> float:
        """Time the kernel that all hosts time, in milliseconds."""
        ...

    async def aclose(self) -> None:
        """Let go of the host."""
        ...
