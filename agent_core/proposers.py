"""The table of proposers, by the names that a configuration uses.

A proposer's module is imported when the proposer is created. Proposers that ask LLMs are named after the
endpoint that serves the model; `llm` is any endpoint. They are built anew for each effect
(`agent_core.roles.llm`), so this module does not create them.

ProposerError
└── UnknownProposer    no proposer has this name
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, cast

from agent_core.providers.registry import endpoint_names
from targets.base import ProposerEntry
from targets.registry import load_families, load_target

if TYPE_CHECKING:
    from agent_core.roles import Proposer


class ProposerError(Exception):
    """Base of this module's errors. `code` is stable."""

    code = "proposer"


class UnknownProposer(ProposerError):  # noqa: N818 - the names of this tree say what happened
    code = "unknown_proposer"


ANY_ENDPOINT = "llm"
"""The proposer that asks models of any endpoint."""


_MODELS = (*endpoint_names(), ANY_ENDPOINT)
"""Proposers that ask LLMs; they are built for each effect. Endpoints that a configuration adds are asked by
the last one."""

AGENT = "agent"
"""The proposer that starts a coding agent for each plan; it is built for each effect, too."""

_NEUTRAL = {
    AGENT: ProposerEntry("", repairs=False, simplifies=True),
    "scripted": ProposerEntry("agent_core.roles.scripted", repairs=True),
    **dict.fromkeys(_MODELS, ProposerEntry("", repairs=True, simplifies=True)),
}
"""Proposers that serve every target."""


def _entries() -> dict[str, ProposerEntry]:
    """Return all proposers by name, those of the targets first."""
    brought = [target.parts.proposers for target in load_families()]
    return {**{name: entry for part in brought for name, entry in part.items()}, **_NEUTRAL}


def proposer_names() -> tuple[str, ...]:
    """Return the names of all proposers."""
    return tuple(_entries())


def is_llm_proposer(name: str) -> bool:
    """Return whether the proposer asks LLMs; False for an unknown name."""
    return name in _MODELS


def is_built_per_effect(name: str) -> bool:
    """Return whether the proposer asks LLMs or starts a coding agent; False for an unknown name."""
    return name == AGENT or is_llm_proposer(name)


def require_known_proposer(name: str, target: str | None = None) -> None:
    """Check that a proposer has this name, and that it serves the target.

    Raises:
        UnknownProposer: no proposer has this name, or it does not serve the target.
    """
    known = proposer_names()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownProposer(f"no proposer is called {name!r}{hint}; there are {', '.join(known)}")
    if target is not None and name not in _NEUTRAL and name not in load_target(target).parts.proposers:
        served = ", ".join((*load_target(target).parts.proposers, *_NEUTRAL))
        raise UnknownProposer(f"the proposer {name!r} does not serve {target}; there are {served}")


def can_repair(name: str) -> bool:
    """Return whether the proposer repairs refused kernels; False for an unknown name."""
    entry = _entries().get(name)
    return entry is not None and entry.repairs


def can_look_ahead(name: str) -> bool:
    """Return whether the proposer searches with predictions before it plans; False for an unknown name."""
    entry = _entries().get(name)
    return entry is not None and entry.looks_ahead


def find_simplifier(target: str, planners: Iterable[str]) -> str | None:
    """Return the target's proposer that simplifies winners of these planners; None if none does.

    All planners must allow it: a kernel that stands for more than its text, such as a point of a space,
    is left as it is.
    """
    own = load_target(target).parts.proposers
    known = {**own, **_NEUTRAL}
    if not all(name in known and known[name].simplifies for name in planners):
        return None
    return next((name for name, entry in own.items() if entry.simplifies), None)


def create_proposer(name: str) -> Proposer:
    """Return a new proposer that asks no LLM.

    Raises:
        UnknownProposer: no proposer has this name.
    """
    require_known_proposer(name)
    module = _entries()[name].module
    assert module, f"{name} is put together for each effect"
    return cast("Proposer", import_module(module).create())
