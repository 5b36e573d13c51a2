"""Plans which tiles are in SBUF at which time.

The compiler accepts programs that need more SBUF than there is. The model walks the instructions in order and
counts the bytes of a partition. If a tile needs room, it evicts the tiles whose next use is farthest away
(Belady) [I], because profiles show how many bytes are saved and read back but not of which tiles. An array of
many computed tiles that does not stay whole is not kept at all: its tiles are `passing` and leave after a few
others of the array have been used [C].
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Sequence
from heapq import heappop, heappush

import numpy as np

from nki_sim.compiler.sbuf_tiles import SbufTiles
from nki_sim.program.ir import Bools

KEPT_PARTS = 4
"""How many parts of an array that is not kept stay for the next use [I]."""

_BRING, _ADVANCE, _PASS = range(3)


def plan_residency(
    tiles: SbufTiles, capacity: int, sites: Sequence[int], passing: Collection[int] = ()
) -> list[int]:
    """Return the evictions and reloads, in order.

    `row` means that the tile of that row leaves between this row and its next one; `~row` means that it comes
    back for that row. `sites[t]` is the declaration of tensor t.
    """
    through = np.zeros(len(tiles.rooms), dtype=bool)
    through[list(passing)] = True
    gaps = _eviction_gaps(tiles, capacity)
    if not gaps.any() and not passing:
        return []
    return _ResidencyWalk(tiles, capacity, sites).run(*_build_agenda(tiles, gaps, through[tiles.tensor]))


def _eviction_gaps(tiles: SbufTiles, capacity: int) -> Bools:
    """Per row, whether the tile may have to leave before its next use, because memory is full meanwhile.

    Memory counts as full where it would be if nothing ever left; elsewhere nothing leaves.
    """
    pressed = tiles.count_overfull(capacity)
    found: Bools = tiles.following >= 0
    rows = np.flatnonzero(found)
    until = tiles.instruction[tiles.following[rows]]
    found[rows] = pressed[until - 1] > pressed[tiles.instruction[rows]]
    return found


def _build_agenda(tiles: SbufTiles, gaps: Bools, passing: Bools) -> tuple[list[int], list[int]]:
    """The list of actions as (kinds, rows); an instruction touches all its tiles before it releases any."""
    before = np.where(tiles.before >= 0, gaps[tiles.before], 1).astype(bool)
    bring = np.flatnonzero(before | passing)
    advance = np.flatnonzero(gaps | (tiles.following < 0))
    leave = np.flatnonzero(passing)
    rows = np.concatenate([bring, advance, leave])
    kinds = np.repeat([_BRING, _ADVANCE, _PASS], [len(bring), len(advance), len(leave)])
    order = np.argsort(tiles.instruction[rows] * 3 + kinds, kind="stable")
    return kinds[order].tolist(), rows[order].tolist()


class _ResidencyWalk:
    """One walk over the touches of tiles with a limit of bytes per partition."""

    def __init__(self, tiles: SbufTiles, capacity: int, sites: Sequence[int]) -> None:
        self._sites = sites
        self._tensor: list[int] = tiles.tensor.tolist()
        self._instruction: list[int] = tiles.instruction.tolist()
        self._following: list[int] = tiles.following.tolist()
        self._rooms: list[int] = tiles.rooms.tolist()
        self._count = len(self._rooms)
        self._free = capacity
        self._here = bytearray(self._count)
        self._away = bytearray(self._count)
        # By tensor, the row of its last use, where it still matters.
        self._latest = [-1] * self._count
        # Tiles by next use, the farthest first, packed in one number; entries of past uses are skipped.
        self._farthest: list[int] = []
        self._recent: dict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._found: list[int] = []

    def run(self, kinds: list[int], rows: list[int]) -> list[int]:
        """Perform the list of actions."""
        tensors, following, here = self._tensor, self._following, self._here
        for kind, row in zip(kinds, rows, strict=True):
            tensor = tensors[row]
            if kind == _BRING:
                if not here[tensor]:
                    self._bring_tile(row, tensor)
                continue
            self._latest[tensor] = row
            if kind == _PASS:
                self._pass_tile(tensor)
            elif following[row] < 0:
                here[tensor] = 0
                self._free += self._rooms[tensor]
            else:
                until = self._instruction[following[row]]
                heappush(self._farthest, tensor - until * self._count)
        return self._found

    def _bring_tile(self, row: int, tensor: int) -> None:
        room = self._rooms[tensor]
        if self._free < room:
            self._make_room(room, self._instruction[row])
        self._free -= room
        self._here[tensor] = 1
        if self._away[tensor]:
            self._away[tensor] = 0
            self._found.append(~row)

    def _make_room(self, wanted: int, at: int) -> None:
        """Evict until there is room, or until only tiles of the instruction itself are left."""
        while self._free < wanted and self._farthest:
            until, tensor = divmod(self._farthest[0], self._count)
            if -until <= at:
                # This tile and all nearer ones belong to the instruction itself, or are past.
                return
            heappop(self._farthest)
            if self._here[tensor]:
                self._evict_tile(tensor)

    def _evict_tile(self, tensor: int) -> None:
        self._here[tensor] = 0
        self._away[tensor] = 1
        self._free += self._rooms[tensor]
        self._found.append(self._latest[tensor])

    def _pass_tile(self, tensor: int) -> None:
        """Evict a tile of an array that is not kept once a few other tiles of it have been used."""
        recent = self._recent[self._sites[tensor]]
        recent[tensor] = None
        recent.move_to_end(tensor)
        if len(recent) > KEPT_PARTS:
            oldest, _ = recent.popitem(last=False)
            if self._here[oldest]:
                self._evict_tile(oldest)
