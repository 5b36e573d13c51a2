"""What the legacy compiler moves between SBUF and HBM because a program needs more SBUF than there is.

`neuronx-cc` does not refuse such programs: it saves tiles to HBM and loads them again. The model walks the
program in order with the usable bytes of a partition; when a tile needs room, the tiles whose next use is
farthest away leave first (Belady). A tile that holds only what DMA loaded from tensors that nobody writes is
not saved: it is loaded again. Everything else is saved once per change and reloaded. What the compiler does
beyond that, and the time it all takes, is not modelled; PSUM that overflows is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from nki_sim.dtypes import DTYPES
from nki_sim.program.ir import Bools, Ints, Program
from nki_sim.targets import Target
from nki_sim.timing.memory import lifetimes, size

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Spills:
    """Bytes over all partitions: tiles saved, tiles reloaded from their copies, loads done again."""

    save_bytes: int = 0
    reload_bytes: int = 0
    load_again_bytes: int = 0


def spills(program: Program, target: Target) -> Spills:
    """Traffic that a program's SBUF tiles beyond the capacity cause; none in the current namespace."""
    if program.dialect != "neuronxcc":
        return Spills()
    saved = reloaded = again = 0
    for core in np.unique(program.tensor_cores).tolist():
        part = _Residency(program, target, core).run()
        saved, reloaded, again = (
            saved + part.save_bytes, reloaded + part.reload_bytes, again + part.load_again_bytes,
        )  # fmt: skip
    return Spills(saved, reloaded, again)


def _in_sbuf(program: Program, core: int) -> Bools:
    """Tensors that the compiler places in the SBUF of a core."""
    chosen = np.array([site.buffer == "sbuf" and site.address is None for site in program.sites], dtype=bool)
    return np.asarray(chosen[program.tensor_sites] & (program.tensor_cores == core), dtype=bool)


def _loaded(program: Program) -> Bools:
    """Tensors of which every write is a DMA from an HBM tensor that nobody writes."""
    cells, count = program.cells, len(program.tensor_sites)
    written = np.zeros(count, dtype=bool)
    written[cells.tensor[cells.writes]] = True
    loads = np.array([form.op == "dma_copy" and form["src"].in_hbm for form in program.forms], dtype=bool)
    sources = np.flatnonzero(~cells.writes & loads[program.form_ids[cells.instruction]])
    fixed = np.zeros(len(program), dtype=bool)
    fixed[cells.instruction[sources]] = ~written[cells.tensor[sources]]
    found = np.ones(count, dtype=bool)
    found[cells.tensor[cells.writes & ~fixed[cells.instruction]]] = False
    return found


class _Residency:
    """Which tiles of one core are in SBUF, instruction by instruction."""

    def __init__(self, program: Program, target: Target, core: int) -> None:
        mine = _in_sbuf(program, core)
        self._program = program
        cells = np.flatnonzero(mine[program.cells.tensor])
        # Within an instruction all reads come before the writes.
        self._cells = cells[np.lexsort((program.cells.writes[cells], program.cells.instruction[cells]))]
        sites = [program.sites[number] for number in program.tensor_sites.tolist()]
        self._room = [size(site, target) if mine[tensor] else 0 for tensor, site in enumerate(sites)]
        self._bytes = [site.size * DTYPES[site.dtype].itemsize for site in sites]
        self._elements = [site.size for site in sites]
        self._loaded = _loaded(program).tolist()
        self._last = lifetimes(program).last.tolist()
        self._free = target.sbuf_usable_bytes
        self._resident: dict[int, int] = {}
        self._dirty: set[int] = set()
        self._away: set[int] = set()
        # Tiles by their next use, the farthest first; entries of past uses are skipped.
        self._farthest: list[tuple[int, int]] = []
        self._save = self._reload = self._again = 0

    def run(self) -> Spills:
        cells, items = self._program.cells, self._program.operands
        whole = [item.elements for item in items]
        tensors, numbers = cells.tensor[self._cells], cells.instruction[self._cells]
        uses = _next_uses(tensors, numbers)
        columns = (tensors, numbers, uses, cells.operand[self._cells], cells.writes[self._cells],
                   cells.reads[self._cells])  # fmt: skip
        busy: set[int] = set()
        current = -1
        for tensor, number, following, operand, write, read in zip(
            *(c.tolist() for c in columns), strict=True
        ):
            if number != current:
                self._retire(busy, current)
                busy, current = set(), number
            busy.add(tensor)
            if tensor not in self._resident:
                self._make_room(self._room[tensor], busy)
                fresh = write and not read and whole[operand] == self._elements[tensor]
                self._fetch(tensor, fresh=fresh)
            self._resident[tensor] = following
            heappush(self._farthest, (-following, tensor))
            if write:
                self._dirty.add(tensor)
        return Spills(self._save, self._reload, self._again)

    def _retire(self, tensors: set[int], number: int) -> None:
        """Tiles that nothing uses any more give their room back."""
        for tensor in tensors:
            if self._last[tensor] == number:
                del self._resident[tensor]
                self._free += self._room[tensor]

    def _make_room(self, wanted: int, busy: set[int]) -> None:
        """Evict until there is room, or until only tiles of the instruction itself are left."""
        kept = []
        while self._free < wanted and self._farthest:
            following, tensor = heappop(self._farthest)
            if self._resident.get(tensor) != -following:
                continue
            if tensor in busy:
                kept.append((following, tensor))
                continue
            self._evict(tensor)
        for entry in kept:
            heappush(self._farthest, entry)

    def _evict(self, tensor: int) -> None:
        del self._resident[tensor]
        self._free += self._room[tensor]
        self._away.add(tensor)
        if tensor in self._dirty and not self._loaded[tensor]:
            self._save += self._bytes[tensor]
        self._dirty.discard(tensor)

    def _fetch(self, tensor: int, *, fresh: bool) -> None:
        self._free -= self._room[tensor]
        if tensor not in self._away:
            return
        self._away.discard(tensor)
        if fresh:
            return
        if self._loaded[tensor]:
            self._again += self._bytes[tensor]
        else:
            self._reload += self._bytes[tensor]


def _next_uses(tensors: Ints, numbers: Ints) -> Ints:
    """For each access, the instruction that touches the tensor next, or `_NEVER`."""
    order = np.lexsort((np.arange(len(tensors)), tensors))
    found = np.full(len(tensors), _NEVER, dtype=np.int64)
    same = np.flatnonzero(tensors[order[1:]] == tensors[order[:-1]])
    found[order[same]] = numbers[order[same + 1]]
    return found
