"""What probing a host found: its device, its versions, and what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from remote.ssh.errors import HostProtocolError
from remote.tracing import load_tracer
from state.model import FrozenModel
from targets.registry import find_device

_Name = Annotated[str, StringConstraints(max_length=100)]
_Line = Annotated[str, StringConstraints(max_length=500)]


def _require_known_kind(kind: str) -> str:
    find_device(kind)
    return kind


class DeviceFacts(FrozenModel):
    """A host's device and toolchain, as the probe found them.

    `lacking` says in words what the best device would need and is missing; then another one stands in.
    `packages` are versions by name. `routes` are the ways in which kernels can be compiled, best first;
    `runtime` is what loads and times the result, and where it is if in another environment.
    """

    device_kind: Annotated[str, AfterValidator(_require_known_kind)] = Field(alias="device")
    lacking: tuple[_Line, ...] = Field(default=(), max_length=16)
    python: str = Field(max_length=64)
    packages: dict[_Name, _Name] = Field(default_factory=dict, max_length=64)
    jail: Literal["bubblewrap", "namespaces", "weak", "none"]
    instance_type: str = Field(default="", max_length=64)
    architecture: str = Field(default="", max_length=64)
    cores: int = Field(default=0, ge=0, le=4096)
    routes: tuple[_Line, ...] = Field(default=(), max_length=64)
    runtime: str = Field(default="", max_length=4096)
    profiler: str = Field(default="", max_length=200)

    @property
    def is_predicted(self) -> bool:
        """Whether its latencies are predictions: a simulator stands in for the device."""
        return self._stand_in is not None

    @property
    def _stand_in(self) -> str | None:
        return find_device(self.device_kind)[1].stand_in

    @property
    def has_strong_jail(self) -> bool:
        """Whether kernels that models wrote can be compiled there."""
        return self.jail in {"bubblewrap", "namespaces"}

    @property
    def device(self) -> str:
        """The name of the device in results."""
        if self._stand_in is not None:
            return self._stand_in
        return f"{self.architecture or self.device_kind} ({self.instance_type or 'instance unknown'})"

    @property
    def toolchain(self) -> str:
        """What compiles and times there, with versions: equal texts mean equal answers."""
        if self.is_predicted:
            return f"{load_tracer(find_device(self.device_kind)[0].name).toolchain()} on a host"
        versions = " ".join(f"{name} {version}" for name, version in sorted(self.packages.items()))
        return f"{self.device} {versions}"


def parse_device_facts(answer: Any, address: str) -> DeviceFacts:
    """Return the facts in a probe's answer.

    Raises:
        HostProtocolError: the answer is not one of a probe.
    """
    try:
        return DeviceFacts.model_validate(answer if isinstance(answer, Mapping) else {})
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise HostProtocolError(f"{address}: its probe gave an invalid {where!r}") from error
