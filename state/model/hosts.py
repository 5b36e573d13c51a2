"""The hosts on which a run's kernels run, as a configuration names them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints, WithJsonSchema, model_serializer, model_validator

from state.model.base import FrozenModel

HostTag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""A property or name of a host: an instance type, or a word of your own."""


class HostConfig(FrozenModel):
    """A host that is reached over SSH. If only its address is set, it is written as that text.

    `address` is `[user@]host[:port]`; ssh_config supplies a missing user, port or jump host. `python` is the
    SDK's interpreter there, `workdir` the folder for files there, `cores` the cores that may be used;
    what is not set is detected on the host. `slots` is the most evaluations at a time, by default the number
    of CPUs.
    """

    address: str = Field(pattern=r"^[^\s\-][^\s]*$", max_length=300)
    tags: tuple[HostTag, ...] = ()
    python: str | None = Field(default=None, min_length=1, max_length=4096)
    workdir: str | None = Field(default=None, min_length=1, max_length=4096)
    cores: tuple[Annotated[int, Field(ge=0, le=4095)], ...] | None = Field(default=None, min_length=1)
    slots: int | None = Field(default=None, ge=1, le=1024)

    @model_validator(mode="before")
    @classmethod
    def _expand_address(cls, value: Any) -> Any:
        if isinstance(value, dict):  # JSON has lists for tuples, which strict mode refuses
            return {name: tuple(one) if isinstance(one, list) else one for name, one in value.items()}
        return {"address": value} if isinstance(value, str) else value

    @model_serializer
    def _serialize_compact(self) -> str | dict[str, Any]:
        told = {name: getattr(self, name) for name in type(self).model_fields}
        known = {name: value for name, value in told.items() if value not in (None, ())}
        return self.address if len(known) == 1 else known


class EvaluationHost(FrozenModel):
    """Where a kernel was judged, and the device that timed it, in words (a simulator, for example).

    `compares` is false if hosts timed the same kernel differently at that time, and it is unknown which was
    wrong.
    """

    host: str
    device: str
    compares: bool = True


HostEntry = Annotated[HostConfig, WithJsonSchema({"type": "string or table"})]
"""A host in a configuration's list."""
