"""Finds arrays: tiles of one declaration that live at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.compiler.sbuf_tiles import SbufTiles

_UNROLLED = 8
"""Fewer tiles than this are handled one by one, like the tiles of an unrolled loop [I]."""


def find_split_tiles(
    draft: ProgramDraft, tiles: SbufTiles, moves: Iterable[int], *, loaded: bool
) -> set[int]:
    """The tiles of all arrays of loaded or computed tiles that evictions and reloads break up."""
    left = {int(tiles.tensor[move]) for move in moves if move >= 0}
    evicted = {tensor for tensor in left if tiles.loaded[tensor] == loaded}
    by_site: dict[int, list[int]] = defaultdict(list)
    wanted = {draft.tensor_sites[tensor] for tensor in evicted}
    if wanted:
        for tensor in np.flatnonzero((tiles.first >= 0) & (tiles.loaded == loaded)).tolist():
            by_site[draft.tensor_sites[tensor]].append(tensor)
    return {
        tensor
        for site in wanted
        for group in _group_by_lifetime(by_site[site], tiles)
        if len(group) >= _UNROLLED and evicted.intersection(group)
        for tensor in group
    }


def _group_by_lifetime(tensors: list[int], tiles: SbufTiles) -> Iterator[list[int]]:
    """Groups of tiles whose lifetimes form one stretch."""
    spans = [(int(tiles.first[tensor]), int(tiles.last[tensor]), tensor) for tensor in tensors]
    group: list[int] = []
    end = -1
    for first, last, tensor in sorted(spans):
        if tiles.instruction[first] > end and group:
            yield group
            group = []
        group.append(tensor)
        end = max(end, int(tiles.instruction[last]))
    yield group
