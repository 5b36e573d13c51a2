"""Arrays: tiles of one declaration that live at the same time."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from nki_sim.compiler.draft import Draft
from nki_sim.compiler.residency import Plan, Tile

_UNROLLED = 8
"""Fewer tiles than this are handled one by one, as those of a loop that is unrolled [I]."""


def split(draft: Draft, plan: Plan, tiles: dict[int, Tile], *, loaded: bool) -> set[int]:
    """The tiles of all arrays of loaded, or of computed, tiles that a plan takes apart."""
    by_site: dict[int, list[int]] = defaultdict(list)
    for tensor, tile in tiles.items():
        if bool(tile.loads) == loaded:
            by_site[draft.tensor_sites[tensor]].append(tensor)
    evicted = {tensor for tensor in plan.evicted if bool(tiles[tensor].loads) == loaded}
    found: set[int] = set()
    for site in {draft.tensor_sites[tensor] for tensor in evicted}:
        for group in _together(by_site[site], tiles):
            if len(group) >= _UNROLLED and evicted.intersection(group):
                found.update(group)
    return found


def _together(tensors: list[int], tiles: dict[int, Tile]) -> list[list[int]]:
    """Tiles in groups whose lifetimes form one stretch."""
    ordered = sorted(tensors, key=lambda tensor: tiles[tensor].uses[0])
    groups = [ordered[:1]]
    last = tiles[ordered[0]].uses[-1]
    for _, tensor in pairwise(ordered):
        if tiles[tensor].uses[0] > last:
            groups.append([])
        groups[-1].append(tensor)
        last = max(last, tiles[tensor].uses[-1])
    return groups
