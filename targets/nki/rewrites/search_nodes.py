"""The values of a search over sequences of rewrites: candidates, seeds, and the kernels reached.

Also the two constants that the ranking of single rewrites shares with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state.model import RewriteStep  # only for types: the engine's processes start without pydantic

SIBLING_DISCOUNT = 0.5
"""Discount of each further choice at one site."""
TEMPERATURE = 0.02
"""Difference in log speed-up that makes a rewrite e times likelier to be drawn by exploration."""

RewriteKey = tuple[str, str, str]
"""A technique, its site and its choice."""


@dataclass(frozen=True, slots=True)
class RewriteCandidate:
    """A rewrite of one kernel, carried out: its site, the new source, and its expected value.

    `value` is the expected logarithm of its speed-up. `instructions` is the number of instructions of its
    program, as far as the reader can count them.
    """

    technique: str
    site: str
    choice: Mapping[str, int | str]
    title: str
    source: str
    value: float
    instructions: int

    @property
    def rewrite_key(self) -> RewriteKey:
        return make_rewrite_key(self)


@dataclass(frozen=True, slots=True)
class Expansion:
    """All kernels that one rewrite makes of a kernel, and why there are no more."""

    moves: tuple[RewriteCandidate, ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchSeed:
    """The result of steps of another run's sequence on the kernel, carried out and not yet predicted."""

    steps: tuple[RewriteStep, ...]
    source: str
    instructions: int


@dataclass(frozen=True, eq=False)
class SearchNode:
    """A kernel that was reached, the steps that lead to it, and its predicted latency.

    The first `given` steps are from another run's sequence; the depth limit applies to the others.
    """

    source: str
    steps: tuple[RewriteStep, ...]
    latency_ms: float
    instructions: int
    code: str | None = None
    given: int = 0

    @property
    def depth(self) -> int:
        return len(self.steps) - self.given


def make_rewrite_key(one: RewriteCandidate | RewriteStep) -> RewriteKey:
    return one.technique, one.site, repr(sorted(one.choice.items()))


def node_order(one: SearchNode) -> tuple[float, int, str]:
    """The fastest first; of equals the one with fewer steps."""
    return one.latency_ms, len(one.steps), one.source
