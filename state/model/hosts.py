"""Which hosts a run's kernels run on, as a configuration names them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints, WithJsonSchema, model_serializer, model_validator

from state.model.base import FrozenModel

HostTag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""What a host can do, or what it is: `trn2`, `trn2.48xlarge`, or a word of one's own."""


class HostConfig(FrozenModel):
    """A host that is reached over SSH. Where only the address is known, it is written as that text.

    `address` is `[user@]host[:port]`; user, port and jumps that it leaves open are ssh_config's to say.
    `python` is the SDK's interpreter there, `workdir` where files are kept there, `cores` the
    NeuronCores that may be used: what is not set is found out on the host. `slots` is how many evaluations it
    is given at a time at most; not set, as many as it has CPUs.
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
        if isinstance(value, dict):  # what comes from JSON has lists for tuples, which is strict no more here
            return {name: tuple(one) if isinstance(one, list) else one for name, one in value.items()}
        return {"address": value} if isinstance(value, str) else value

    @model_serializer
    def _serialize_compact(self) -> str | dict[str, Any]:
        told = {name: getattr(self, name) for name in type(self).model_fields}
        known = {name: value for name, value in told.items() if value not in (None, ())}
        return self.address if len(known) == 1 else known


class EvaluationHost(FrozenModel):
    """Where a kernel was judged, and what timed it: in words, such as that a simulator stood in.

    `compares` is false where hosts timed the same kernel differently then, and nobody could say which was
    wrong.
    """

    host: str
    device: str
    compares: bool = True


HostEntry = Annotated[HostConfig, WithJsonSchema({"type": "string or table"})]
"""A host in a list of a configuration."""
