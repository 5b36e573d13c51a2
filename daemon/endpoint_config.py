"""The configuration of model endpoints: three have sections of their own, others are named at will."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from agent_core.providers.registry import EndpointSettings, ServiceName, Wire
from state.model import FrozenModel


def _check_address(url: str | None) -> str | None:
    """Refuse an address that may contain a secret, because configurations are logged."""
    if url is not None and ("@" in url.partition("//")[2].partition("/")[0] or "?" in url or "#" in url):
        raise ValueError("an address holds no user, no password and no query; a key is given by key_file")
    return url


class EndpointConfig(FrozenModel):
    """How to reach a model endpoint, and how long to wait for its answers."""

    base_url: Annotated[str | None, AfterValidator(_check_address)] = Field(
        default=None, pattern=r"^https?://", description="where the endpoint is; not set: its usual place"
    )
    key_file: str | None = Field(
        default=None,
        description="a file of mode 0600 with the key; else a credential or variable has it",
    )
    calls: int = Field(default=8, ge=1, le=1024, description="questions under way at a time")
    deadline_seconds: float = Field(
        default=900.0, gt=0, le=86_400, description="deadline of one answer, from its first token on"
    )
    patience_seconds: float = Field(
        default=21_600.0, gt=0, le=604_800, description="how long a question that fails is repeated"
    )
    first_token_seconds: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="how long an answer may take to begin; not set: the service's limit, or a learnt one",
    )
    silence_seconds: float = Field(
        default=300.0, gt=0, le=86_400, description="how long an answer that has begun may pause"
    )
    wire: Wire | None = Field(default=None, description="the wire format; not set: the service's usual one")


class NamedEndpointConfig(EndpointConfig):
    """An endpoint with a name of its own: what serves it, and what that service must be told."""

    service: ServiceName | None = Field(
        default=None, description="the kind of service; not set: the one of this name"
    )
    region: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9-]+$",
        description="the cloud's region; not set: what its SDK finds in the environment or a profile",
    )
    profile: str | None = Field(default=None, min_length=1, description="the profile of AWS's credentials")
    project: str | None = Field(default=None, min_length=1, description="Google's project")
    api_version: str | None = Field(default=None, min_length=1, description="Azure's version of its API")

    def settings(self, **more: Any) -> EndpointSettings:
        """Return what a provider needs of this."""
        names = EndpointSettings.model_fields.keys() & self.__class__.model_fields.keys()
        return EndpointSettings(**{name: getattr(self, name) for name in names}, **more)


EndpointName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]

OWN_SECTIONS = ("anthropic", "openai", "local")
"""Endpoints whose settings stand in `daemon.NAME`, as they did before others could be named."""
