"""The tiles that the compiler places in one core's SBUF, and the instructions that touch them."""

from __future__ import annotations

import numpy as np

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.flow.chip_memory import tile_footprint
from nki_sim.program.ir import Bools, Cells, Ints
from nki_sim.targets import Target


class SbufTiles:
    """Touches of tiles in program order, one row for each tile of an instruction.

    A row has the `instruction`, the `tensor`, the rows of the tile's touches `before` and `following` (-1 if
    none), and in `written` the last instruction up to here that wrote the tile (-1 if none). `rows[i]` is the
    row of cell `cells[i]`. Per tensor there are `rooms` (bytes per partition), the `first` and `last` row (-1
    if it is not a tile of this core), and `loaded`: whether only plain loads write it.
    """

    def __init__(self, draft: ProgramDraft, target: Target, core: int) -> None:
        cells = draft.cells
        mine = draft.tensors_in_memory("sbuf", placed=False) & (draft.tensor_cores() == core)
        self.cells = np.flatnonzero(mine[cells.tensor])
        heads = _first_cells(cells, self.cells)
        new = heads == np.arange(len(heads))
        self.rows: Ints = (np.cumsum(new) - 1)[heads]
        self.instruction, self.tensor = (c[self.cells[new]] for c in (cells.instruction, cells.tensor))
        self._link_touches(len(draft.tensor_sites))
        sizes = [tile_footprint(site, target) if site.buffer == "sbuf" else 0 for site in draft.sites]
        self.rooms: Ints = np.array(sizes, dtype=np.int64)[draft.tensor_sites]
        writes = cells.writes[self.cells]
        self.loaded = _find_loaded_tiles(draft, self.cells[writes])
        stamps = np.full(len(self.tensor), -1)
        stamps[self.rows[writes]] = self.instruction[self.rows[writes]]
        self.written = self.carry_forward(stamps)

    def _link_touches(self, tensors: int) -> None:
        rows = np.arange(len(self.tensor))
        self._order = order = np.argsort(self.tensor, kind="stable")
        same = np.concatenate([np.zeros(1, dtype=bool), self.tensor[order[1:]] == self.tensor[order[:-1]]])
        same = same[: len(rows)]
        self._begins: Ints = np.maximum.accumulate(np.where(same, 0, rows))
        self.following, self.before = np.full(len(rows), -1), np.full(len(rows), -1)
        later = np.flatnonzero(same)
        self.following[order[later - 1]] = order[later]
        self.before[order[later]] = order[later - 1]
        self.first, self.last = np.full(tensors, -1), np.full(tensors, -1)
        self.first[self.tensor[::-1]] = rows[::-1]
        self.last[self.tensor] = rows

    def carry_forward(self, marks: Ints) -> Ints:
        """Per row, the latest mark (not -1) of the same tile up to that row, or -1."""
        ordered = marks[self._order]
        latest = np.maximum.accumulate(np.where(ordered >= 0, np.arange(len(ordered)), -1))
        found = np.empty_like(marks)
        found[self._order] = np.where(latest >= self._begins, ordered[latest], -1)
        return found

    def count_overfull(self, capacity: int) -> Ints:
        """Per instruction, how many instructions so far had live tiles of more than `capacity` bytes."""
        change = np.zeros(int(self.instruction[-1]) + 2 if len(self.instruction) else 0, dtype=np.int64)
        begin, end = self.before < 0, self.following < 0
        np.add.at(change, self.instruction[begin], self.rooms[self.tensor[begin]])
        np.subtract.at(change, self.instruction[end] + 1, self.rooms[self.tensor[end]])
        return np.cumsum(np.cumsum(change) > capacity)


def _first_cells(cells: Cells, chosen: Ints) -> Ints:
    """For each chosen cell, the first cell of its instruction with the same tensor, as a position."""
    tensor, instruction = cells.tensor[chosen], cells.instruction[chosen]
    heads = np.arange(len(chosen))
    for lag in range(1, int(cells.operand.max(initial=0)) + 1):
        same = (tensor[lag:] == tensor[:-lag]) & (instruction[lag:] == instruction[:-lag])
        rows = np.flatnonzero(same) + lag
        heads[rows] = rows - lag
    return heads


def _find_loaded_tiles(draft: ProgramDraft, writes: Ints) -> Bools:
    """Per tensor, whether some of these cells write it, all of them in plain loads."""
    cells, loads = draft.cells, plain_loads(draft)
    found, other = np.zeros((2, len(draft.tensor_sites)), dtype=bool)
    found[cells.tensor[writes]] = True
    other[cells.tensor[writes[~loads[cells.instruction[writes]]]]] = True
    return np.asarray(found & ~other, dtype=bool)


def plain_loads(draft: ProgramDraft) -> Bools:
    """Per instruction, whether it is a DMA from an HBM tensor that nothing writes, at a known address."""
    cells = draft.cells
    fixed = draft.tensors_in_memory("hbm", "private_hbm", "shared_hbm")
    fixed[cells.tensor[cells.writes]] = False
    plain = [
        form.op == "dma_copy" and not any(item.index_step for item in form.operands) for form in draft.forms
    ]
    found: Bools = np.array(plain, dtype=bool)[draft.form_ids]
    rows = np.flatnonzero(found)
    found[rows] = fixed[cells.tensor[cells.first[rows] + 1]]
    return found
