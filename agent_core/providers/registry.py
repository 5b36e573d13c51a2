"""The table of endpoints, by the names that configurations use. Modules and SDKs are imported when needed.

`anthropic` and `openai` are the vendors' own services, or compatible ones at another address. `local` is a
self-hosted server that speaks like `openai` (vLLM, llama.cpp) and needs no key.

UnknownEndpoint    no endpoint has this name
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, cast

from pydantic import Field

from agent_core.providers.keys import Secret
from state.model import FrozenModel

if TYPE_CHECKING:
    from agent_core.providers.completion import Provider


class UnknownEndpoint(ValueError):  # noqa: N818 - the names of this tree say what happened
    """No endpoint has this name. `code` is stable."""

    code = "unknown_endpoint"


class EndpointSettings(FrozenModel):
    """An endpoint's address and time limits; `base_url` None means its default address.

    `connect_seconds` limits the time to connect. `silence_seconds` limits the time between two pieces of an
    answer, and before the first one. The deadline of a whole answer comes with each request.
    """

    base_url: str | None = None
    key: Secret | None = None
    connect_seconds: float = Field(default=10.0, gt=0)
    silence_seconds: float = Field(default=300.0, gt=0)


@dataclass(frozen=True, slots=True)
class _EndpointEntry:
    """An endpoint's module with `create(name, settings)`, its address, and whether it needs a key."""

    module: str
    base_url: str
    needs_key: bool


_ENDPOINTS = {
    "anthropic": _EndpointEntry(
        "agent_core.providers.anthropic", "https://api.anthropic.com", needs_key=True
    ),
    "openai": _EndpointEntry("agent_core.providers.openai", "https://api.openai.com/v1", needs_key=True),
    "local": _EndpointEntry("agent_core.providers.openai", "http://127.0.0.1:8000/v1", needs_key=False),
}


def endpoint_names() -> tuple[str, ...]:
    """Return the names of all endpoints."""
    return tuple(_ENDPOINTS)


def needs_key(name: str) -> bool:
    """Return whether the endpoint needs a key.

    Raises:
        UnknownEndpoint: no endpoint has this name.
    """
    return _find_entry(name).needs_key


def endpoint_address(name: str, base_url: str | None = None) -> str:
    """Return the endpoint's address: `base_url` if given, else its default.

    Raises:
        UnknownEndpoint: no endpoint has this name.
    """
    return base_url or _find_entry(name).base_url


def create_provider(name: str, settings: EndpointSettings) -> Provider:
    """Return a new provider for the endpoint; nothing is sent yet.

    Raises:
        UnknownEndpoint: no endpoint has this name.
    """
    placed = settings.model_copy(update={"base_url": endpoint_address(name, settings.base_url)})
    return cast("Provider", import_module(_find_entry(name).module).create(name, placed))


def _find_entry(name: str) -> _EndpointEntry:
    if name not in _ENDPOINTS:
        close = get_close_matches(name, _ENDPOINTS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownEndpoint(f"no endpoint is called {name!r}{hint}; there are {', '.join(_ENDPOINTS)}")
    return _ENDPOINTS[name]
