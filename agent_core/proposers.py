"""Proposers by the names that a configuration uses; each module is imported when its proposer is made.

ProposerError
├── UnknownProposer    no proposer has this name
└── MissingProposer    the name is kept for a proposer that this version does not have
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


class MissingProposer(ProposerError):  # noqa: N818
    code = "missing_proposer"


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a proposer's `create()` is (None: not in this version).

    `repairs`: it repairs refused kernels. `looks_ahead`: it searches by predictions before it plans.
    """

    module: str | None
    repairs: bool
    looks_ahead: bool = False


_KNOWN = {
    "builtin": _Entry("agent_core.builtin", repairs=False, looks_ahead=True),
    "scripted": _Entry("agent_core.roles.scripted", repairs=True),
    "anthropic": _Entry(None, repairs=True),
    "openai": _Entry(None, repairs=True),
}


def names() -> tuple[str, ...]:
    """Return the names of the proposers that this version has."""
    return tuple(name for name, entry in _KNOWN.items() if entry.module is not None)


def repairs(name: str) -> bool:
    """Return whether the proposer repairs refused kernels; False for a name that is not known."""
    return name in _KNOWN and _KNOWN[name].repairs


def looks_ahead(name: str) -> bool:
    """Return whether the proposer searches by predictions before it plans; False for an unknown name."""
    return name in _KNOWN and _KNOWN[name].looks_ahead


def create(name: str) -> Proposer:
    """Return a new proposer.

    Raises:
        UnknownProposer: no proposer has this name.
        MissingProposer: this version does not have it yet.
    """
    if name not in _KNOWN:
        close = get_close_matches(name, _KNOWN, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownProposer(f"no proposer is called {name!r}{hint}; there are {', '.join(names())}")
    module = _KNOWN[name].module
    if module is None:
        raise MissingProposer(f"the proposer {name!r} is not in this version; there are {', '.join(names())}")
    return cast("Proposer", import_module(module).create())
