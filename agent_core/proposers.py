"""Proposers by the names that a configuration uses; each module is imported when its proposer is made.

Those that ask models are named by the endpoint that serves these, `llm` by any of them; they are put together
for each effect (`agent_core.roles.llm`), so that nothing is made of their name alone.

ProposerError
└── UnknownProposer    no proposer has this name
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from agent_core.roles import Proposer


class ProposerError(Exception):
    """Base of this module's errors. `code` is stable."""

    code = "proposer"


class UnknownProposer(ProposerError):  # noqa: N818 - the names of this tree say what happened
    code = "unknown_proposer"


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a proposer's `create()` is (None: it asks models, and is put together for each effect).

    `repairs`: it repairs refused kernels. `looks_ahead`: it searches by predictions before it plans.
    """

    module: str | None
    repairs: bool
    looks_ahead: bool = False


ANY = "llm"
"""The proposer that asks models of any endpoint."""


_KNOWN = {
    "builtin": _Entry("agent_core.builtin", repairs=False, looks_ahead=True),
    "knobs": _Entry("agent_core.knobs.tuning", repairs=False, looks_ahead=True),
    "scripted": _Entry("agent_core.roles.scripted", repairs=True),
    **dict.fromkeys(("anthropic", "openai", "local", ANY), _Entry(None, repairs=True)),
}


def names() -> tuple[str, ...]:
    """Return the names of all proposers."""
    return tuple(_KNOWN)


def asks_models(name: str) -> bool:
    """Return whether the proposer asks models; False for a name that is not known."""
    return name in _KNOWN and _KNOWN[name].module is None


def require(name: str) -> None:
    """Make sure that there is a proposer of this name.

    Raises:
        UnknownProposer: no proposer has this name.
    """
    if name not in _KNOWN:
        close = get_close_matches(name, _KNOWN, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownProposer(f"no proposer is called {name!r}{hint}; there are {', '.join(names())}")


def repairs(name: str) -> bool:
    """Return whether the proposer repairs refused kernels; False for a name that is not known."""
    return name in _KNOWN and _KNOWN[name].repairs


def looks_ahead(name: str) -> bool:
    """Return whether the proposer searches by predictions before it plans; False for an unknown name."""
    return name in _KNOWN and _KNOWN[name].looks_ahead


def create(name: str) -> Proposer:
    """Return a new proposer, one that asks no models.

    Raises:
        UnknownProposer: no proposer has this name.
    """
    require(name)
    module = _KNOWN[name].module
    assert module is not None, f"{name} is put together for each effect"
    return cast("Proposer", import_module(module).create())
