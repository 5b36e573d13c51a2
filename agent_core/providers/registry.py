"""Endpoints by the names that configurations use; each module, and its SDK, is imported when it is needed.

`anthropic` and `openai` are the vendors' own services, or what speaks like them at another address. `local`
is a server of one's own that speaks like `openai` (vLLM, llama.cpp) and asks for no key.

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
    """Where an endpoint is and how long it may be silent; None as `base_url` is its usual place.

    `connect_seconds` is the most for a connection to be there, `silence_seconds` the most between two pieces
    of an answer, the first one included. The deadline of a whole answer comes with each question.
    """

    base_url: str | None = None
    key: Secret | None = None
    connect_seconds: float = Field(default=10.0, gt=0)
    silence_seconds: float = Field(default=300.0, gt=0)


@dataclass(frozen=True, slots=True)
class _EndpointEntry:
    """Where an endpoint's `create(name, settings)` is, where it usually is, and whether it asks for a key."""

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
    """Return whether the endpoint answers nobody without a key.

    Raises:
        UnknownEndpoint: no endpoint has this name.
    """
    return _find_entry(name).needs_key


def endpoint_address(name: str, base_url: str | None = None) -> str:
    """Return where the endpoint is: `base_url`, else its usual place.

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
