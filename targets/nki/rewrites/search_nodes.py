"""What a search over sequences of rewrites comes upon: rewrites carried out, and kernels reached by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from state.model import RewriteStep

RewriteKey = tuple[str, str, str]
"""A technique, the site and the choice made there."""


@dataclass(frozen=True, slots=True)
class RewriteCandidate:
    """A rewrite of one kernel, carried out: its place, the new source, and what is thought of it before.

    `value` is the expected logarithm of its speed-up, `instructions` how many its program has, as far as the
    reader can count them.
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
    """All that one rewrite makes of a kernel, and why there is not more."""

    moves: tuple[RewriteCandidate, ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchSeed:
    """What steps of another run's sequence make of the kernel, carried out and not predicted."""

    steps: tuple[RewriteStep, ...]
    source: str
    instructions: int


@dataclass(frozen=True, eq=False)
class SearchNode:
    """A kernel that was reached, by which steps, and how long it is predicted to take.

    The first `given` steps are of another run's sequence; the limit of depth is for those that were searched.
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
    """The fastest first, of equal ones the one with fewer steps."""
    return one.latency_ms, len(one.steps), one.source
