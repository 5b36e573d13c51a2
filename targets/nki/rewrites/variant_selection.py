"""Selects the kernels of a search that are worth judging: fast ones that differ from one another."""

from __future__ import annotations

from collections.abc import Sequence

from targets.nki.rewrites.lookahead import MIN_GAIN, SLOWDOWN_LIMIT
from targets.nki.rewrites.search_nodes import SearchNode, node_order


def select_variants(
    found: Sequence[SearchNode], count: int, parent_ms: float, known: frozenset[str]
) -> list[SearchNode]:
    """Return `count` kernels to judge: faster than the parent, preferably different from one another.

    None has a code in `known`, nor more steps than another one that is as fast. If there are fewer, one
    slower kernel is included, because the way forward may lead through it.
    """
    fresh = {one.code: one for one in reversed(found) if one.code not in known}
    ordered = sorted(fresh.values(), key=node_order)
    faster = [one for one in ordered if one.latency_ms < parent_ms]
    chosen: list[SearchNode] = []
    for one in faster:
        if not any(_share_steps(one, other) for other in chosen):
            chosen.append(one)
    rest = [one for one in faster if not any(_is_near_duplicate(one, other) for other in chosen)]
    slower = [one for one in ordered if parent_ms <= one.latency_ms <= SLOWDOWN_LIMIT * parent_ms]
    return [*chosen, *rest, *slower[:1]][:count]


def _share_steps(one: SearchNode, other: SearchNode) -> bool:
    """Whether the steps of one begin with or contain those of the other."""
    mine, theirs = ({(step.technique, step.site) for step in item.steps} for item in (one, other))
    return mine <= theirs or theirs <= mine


def _is_near_duplicate(one: SearchNode, other: SearchNode) -> bool:
    return _share_steps(one, other) and max(one.latency_ms, other.latency_ms) < MIN_GAIN * min(
        one.latency_ms, other.latency_ms
    )
