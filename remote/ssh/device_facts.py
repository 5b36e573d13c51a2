"""What probing a host found: its device, its versions, and what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from remote.ssh.errors import HostProtocolError
from remote.tracing import load_default_tracer
from state.model import FrozenModel

_Name = Annotated[str, StringConstraints(max_length=100)]
_Line = Annotated[str, StringConstraints(max_length=500)]

STAND_IN = "nki_sim (no Neuron SDK on host)"


class DeviceFacts(FrozenModel):
    """A host's device and toolchain, as the probe found them.

    `lacking` says in words what a Neuron device would need and is missing; then the simulator stands in.
    `packages` are versions by name. `routes` are the ways in which kernels can be compiled, best first.
    """

    device_kind: Literal["nki_sim", "neuron"] = Field(alias="device")
    lacking: tuple[_Line, ...] = Field(default=(), max_length=16)
    python: str = Field(max_length=64)
    packages: dict[_Name, _Name] = Field(default_factory=dict, max_length=64)
    jail: Literal["bubblewrap", "namespaces", "weak", "none"]
    instance_type: str = Field(default="", max_length=64)
    architecture: str = Field(default="", max_length=64)
    cores: int = Field(default=0, ge=0, le=4096)
    routes: tuple[_Line, ...] = Field(default=(), max_length=64)
    profiler: str = Field(default="", max_length=200)

    @property
    def is_predicted(self) -> bool:
        """Whether its latencies are predictions: the simulator stands in for the device."""
        return self.device_kind == "nki_sim"

    @property
    def has_strong_jail(self) -> bool:
        """Whether kernels that models wrote can be compiled there."""
        return self.jail in {"bubblewrap", "namespaces"}

    @property
    def device(self) -> str:
        """The name of the device in results."""
        if self.is_predicted:
            return STAND_IN
        return f"{self.architecture or 'neuron'} ({self.instance_type or 'instance unknown'})"

    @property
    def toolchain(self) -> str:
        """What compiles and times there, with versions: equal texts mean equal answers."""
        if self.is_predicted:
            return f"{load_default_tracer().toolchain()} on a host"
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
        raise HostProtocolError(f"{address}: its probe answers with a {where!r} that is none") from error
