"""Models the buffers that a declaration inside a loop rotates through.

The legacy compiler gives such a declaration a fixed number n of buffers: iteration i waits until iteration i
- n is done with its tile [C]. Tiles that live at the same time have a buffer each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappush, heapreplace

import numpy as np

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.flow.chip_memory import tile_footprint
from nki_sim.targets import Target

TileSpan = tuple[int, int]
"""First and last instruction that uses a tile."""


@dataclass(slots=True)
class _RotatingPlaces:
    """Buffers of one declaration; `ends` is a heap of (last use of the tile in a buffer, its number)."""

    names: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)

    def take_place(self, tensor: int, span: TileSpan, most: int) -> int:
        """Give a tile a buffer, named by its first tile: a new one, or the one that has been free longest."""
        first, last = span
        if len(self.names) < most or self.ends[0][0] >= first:
            heappush(self.ends, (last, len(self.names)))
            self.names.append(tensor)
            return tensor
        at = self.ends[0][1]
        heapreplace(self.ends, (last, at))
        return self.names[at]


def rotate_buffers(draft: ProgramDraft, target: Target) -> None:
    """Replace tiles by buffers, as many as fit on each core."""
    names: dict[int, int] = {}
    # Reloaded tiles may take any free room.
    again = draft.loaded_again_tensors()
    for used in tile_spans(draft):
        lasting = {tensor: span for tensor, span in used.items() if not again[tensor]}
        free = target.sbuf_usable_bytes - _peak_bytes(draft, target, used.keys() - lasting.keys())
        names |= _fitting_places(draft, target, lasting, free)
    draft.rename_tensors(names)


def tile_spans(draft: ProgramDraft) -> list[dict[int, TileSpan]]:
    """By core, the tiles that the compiler places in its SBUF, in the order of their first use."""
    cells = draft.cells
    tensors, firsts = np.unique(cells.tensor, return_index=True)
    tensors = tensors[np.argsort(firsts)]
    tensors = tensors[draft.tensors_in_memory("sbuf", placed=False)[tensors]]
    first, last = draft.tensor_spans()
    cores = draft.tensor_cores()[tensors]
    return [
        dict(zip(mine.tolist(), zip(first[mine].tolist(), last[mine].tolist(), strict=True), strict=True))
        for mine in (tensors[cores == core] for core in draft.cores)
    ]


def assign_places(draft: ProgramDraft, used: Mapping[int, TileSpan], most: int) -> dict[int, int]:
    """Map each tile to the first tile of its buffer, with `most` buffers or as many as live together."""
    places: dict[int, _RotatingPlaces] = defaultdict(_RotatingPlaces)
    return {
        tensor: places[draft.tensor_sites[tensor]].take_place(tensor, span, most)
        for tensor, span in used.items()
    }


def total_tile_bytes(draft: ProgramDraft, target: Target, tensors: Iterable[int]) -> int:
    """Bytes of a partition that these tiles need if none share a buffer."""
    return sum(tile_footprint(draft.site(tensor), target) for tensor in set(tensors))


def _fitting_places(
    draft: ProgramDraft, target: Target, used: Mapping[int, TileSpan], free: int
) -> dict[int, int]:
    """Buffers of tiles, as many as fit for each declaration; none if even one is too many."""
    for most in range(target.legacy_rotation, 0, -1):
        names = assign_places(draft, used, most)
        if total_tile_bytes(draft, target, names.values()) <= free:
            return names
    return {}


def _peak_bytes(draft: ProgramDraft, target: Target, tensors: Iterable[int]) -> int:
    """Peak bytes of a partition that these tiles use at the same time."""
    chosen = np.array(sorted(tensors), dtype=np.int64)
    first, last = (column[chosen] for column in draft.tensor_spans())
    rooms = np.array(
        [tile_footprint(draft.site(tensor), target) for tensor in chosen.tolist()], dtype=np.int64
    )
    change = np.zeros(len(draft) + 1, dtype=np.int64)
    np.add.at(change, first, rooms)
    np.subtract.at(change, last + 1, rooms)
    return int(np.cumsum(change).max())
