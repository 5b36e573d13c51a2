"""The table of model services, and the endpoints that have a name without any configuration.

A service says which SDK client reaches it, which wire formats it speaks, and what it needs. An endpoint is a
name for a service with settings. Each service is an endpoint under its own name (`compatible`, a server of
one's own that speaks like OpenAI, as `local`); `daemon.endpoints.NAME` adds any number of further ones.
Modules and SDKs are imported when needed.

UnknownEndpoint    no endpoint has this name
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field

from agent_core.providers import sdk_clients
from agent_core.providers.keys import Secret
from state.model import FrozenModel, ModelTraits

if TYPE_CHECKING:
    from agent_core.providers.completion import Provider

Wire = Literal["messages", "chat", "responses"]
"""A wire format: Anthropic's Messages, OpenAI's Chat Completions, OpenAI's Responses."""

ServiceName = Literal["anthropic", "openai", "compatible", "bedrock", "bedrock_openai", "azure", "vertex"]


class UnknownEndpoint(ValueError):  # noqa: N818 - the names of this tree say what happened
    """No endpoint has this name. `code` is stable."""

    code = "unknown_endpoint"


class EndpointSettings(FrozenModel):
    """How an endpoint is reached; None means the service's usual value.

    `first_token_seconds` limits the time until an answer begins, None: what was learnt of the model.
    `silence_seconds` limits the time between two events of an answer that has begun. The deadline of an
    answer that has begun comes with each request. `traits` is what is known of the models already; `learnt`
    is called with what is found out, for all that is known of a model then.
    """

    service: ServiceName | None = None
    base_url: str | None = None
    key: Secret | None = None
    region: str | None = None
    profile: str | None = None
    project: str | None = None
    api_version: str | None = None
    wire: Wire | None = None
    connect_seconds: float = Field(default=10.0, gt=0)
    silence_seconds: float = Field(default=300.0, gt=0)
    first_token_seconds: float | None = Field(default=None, gt=0)
    traits: Mapping[str, ModelTraits] = Field(default_factory=dict)
    learnt: Callable[[str, ModelTraits], None] | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """A service of models.

    `client` makes its SDK client. Of `wires`, the first is used; `elsewhere` is used instead
    at an address that is not the service's own, where only imitations are. `address` is its usual one, None
    if the SDK makes it from a region or another setting. `listed_at` is where the price list has its models.
    It needs a key of ours (`needs_key`), or `credentials`, in words, which its SDK
    finds by itself where `has_credentials` says so. `needs`
    are settings with the variables that may have them instead; `package` is what the extra `extra` installs.
    """

    client: Callable[..., Any]
    wires: tuple[Wire, ...]
    address: str | None = None
    listed_at: str | None = None
    elsewhere: Wire | None = None
    needs_key: bool = False
    credentials: str | None = None
    has_credentials: Callable[[EndpointSettings], bool] | None = None
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra: str | None = None
    package: str | None = None
    first_token_seconds: float = 600.0

    def choose_wire(self, settings: EndpointSettings) -> Wire:
        """Return the wire format in which an endpoint with these settings is asked."""
        is_elsewhere = settings.base_url is not None and settings.base_url.rstrip("/") != self.address
        usual = self.elsewhere if is_elsewhere and self.elsewhere is not None else self.wires[0]
        return settings.wire or usual


_AWS_CHAIN = (
    "the usual AWS chain (environment, profile, SSO, the role of the instance), or AWS_BEARER_TOKEN_BEDROCK"
)
_AWS_REGION = {"region": ("AWS_REGION", "AWS_DEFAULT_REGION")}

SERVICES: Mapping[ServiceName, Service] = {
    "anthropic": Service(
        sdk_clients.create_anthropic_client,
        ("messages",),
        address="https://api.anthropic.com",
        needs_key=True,
    ),
    "openai": Service(
        sdk_clients.create_openai_client,
        ("responses", "chat"),
        address="https://api.openai.com/v1",
        elsewhere="chat",
        needs_key=True,
    ),
    "compatible": Service(
        sdk_clients.create_openai_client,
        ("chat", "responses"),
        address="http://127.0.0.1:8000/v1",
        first_token_seconds=1800.0,
    ),
    "bedrock": Service(
        sdk_clients.create_bedrock_client,
        ("messages",),
        listed_at="https://bedrock-runtime.us-east-1.amazonaws.com",
        credentials=_AWS_CHAIN,
        has_credentials=sdk_clients.has_aws_credentials,
        needs=_AWS_REGION,
        extra="bedrock",
        package="boto3",
    ),
    "bedrock_openai": Service(
        sdk_clients.create_bedrock_openai_client,
        ("responses", "chat"),
        listed_at="https://bedrock-runtime.us-east-1.amazonaws.com",
        credentials=_AWS_CHAIN,
        has_credentials=sdk_clients.has_aws_credentials,
        needs=_AWS_REGION,
        extra="bedrock",
        package="boto3",
    ),
    "azure": Service(
        sdk_clients.create_azure_client,
        ("responses", "chat"),
        listed_at="https://azure.openai.azure.com",
        credentials="AZURE_OPENAI_API_KEY, AZURE_OPENAI_AD_TOKEN, or a key file",
        has_credentials=sdk_clients.has_azure_credentials,
        needs={"base_url": ("AZURE_OPENAI_ENDPOINT",), "api_version": ("OPENAI_API_VERSION",)},
    ),
    "vertex": Service(
        sdk_clients.create_vertex_client,
        ("messages",),
        listed_at="https://us-east5-aiplatform.googleapis.com",
        credentials="Google's application default credentials",
        has_credentials=sdk_clients.has_google_credentials,
        needs={"region": ("CLOUD_ML_REGION",)},
        extra="vertex",
        package="google.auth",
    ),
}
"""All services. The price list has no address for some; those of a service's usual one stand for it."""

BUILTIN_ENDPOINTS: Mapping[str, ServiceName] = {
    "local": "compatible",
    **{name: name for name in SERVICES if name != "compatible"},
}
"""The endpoints that need no configuration, by name, each with its service."""

_MODULES: Mapping[Wire, str] = {
    "messages": "agent_core.providers.anthropic",
    "chat": "agent_core.providers.openai",
    "responses": "agent_core.providers.responses",
}


def endpoint_names() -> tuple[str, ...]:
    """Return the names of the endpoints that need no configuration."""
    return tuple(BUILTIN_ENDPOINTS)


def find_service(name: str, settings: EndpointSettings | None = None) -> Service:
    """Return the service of an endpoint: the one in its settings, else that of its name.

    Raises:
        UnknownEndpoint: no endpoint has this name.
    """
    chosen = settings.service if settings is not None else None
    if chosen is None:
        require_endpoint(name, BUILTIN_ENDPOINTS)
        chosen = BUILTIN_ENDPOINTS[name]
    return SERVICES[chosen]


def require_endpoint(name: str, known: Iterable[str]) -> None:
    """Check that an endpoint has this name.

    Raises:
        UnknownEndpoint: none has; the message says which there are.
    """
    names = list(known)
    if name not in names:
        close = get_close_matches(name, names, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownEndpoint(f"no endpoint is called {name!r}{hint}; there are {', '.join(names)}")


def listed_address(name: str, settings: EndpointSettings | None = None) -> str:
    """Return the address under which the price list may have the endpoint's models.

    Raises:
        UnknownEndpoint: no endpoint has this name.
    """
    service = find_service(name, settings)
    own = settings.base_url if settings is not None else None
    return own or service.address or service.listed_at or ""


def find_missing(name: str, settings: EndpointSettings, env: Mapping[str, str]) -> list[str]:
    """Return what the endpoint lacks besides credentials: packages and settings, one line each.

    Raises:
        UnknownEndpoint: no endpoint has this name.
    """
    service = find_service(name, settings)
    missing = []
    if service.package is not None and not _is_installed(service.package):
        missing.append(
            f"{name}: {service.package} is not installed: pip install 'nki-kernel-agent[{service.extra}]'"
        )
    for setting, variables in service.needs.items():
        is_given = getattr(settings, setting) is not None or any(env.get(one) for one in variables)
        if not is_given and not (setting == "region" and settings.profile is not None):
            named = " or ".join(variables)
            missing.append(f"{name}: no {setting}: set daemon.endpoints.{name}.{setting}, or {named}")
    if settings.wire is not None and settings.wire not in service.wires:
        known = ", ".join(service.wires)
        missing.append(f"{name}: the wire format {settings.wire!r} is not spoken there; there are {known}")
    return missing


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def create_provider(name: str, settings: EndpointSettings) -> Provider:
    """Return a new provider for the endpoint; nothing is sent yet.

    Raises:
        UnknownEndpoint: no endpoint has this name.
    """
    service = find_service(name, settings)
    wire = service.choose_wire(settings)
    if settings.base_url is None:
        settings = settings.model_copy(update={"base_url": service.address})
    return cast("Provider", import_module(_MODULES[wire]).create(name, settings, service))
