"""Adds the transfers for tiles that leave SBUF: they are saved and read back, or loaded again.

A tile whose contents DMA loaded from tensors that nothing writes is loaded again. Any other tile is saved
once after its last change and read back [C].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nki_sim.compiler.compiled_program import LOAD_AGAIN, RELOAD, SAVE
from nki_sim.compiler.program_draft import DraftStep, ProgramDraft
from nki_sim.compiler.sbuf_tiles import SbufTiles
from nki_sim.compiler.tile_contents import TileContents
from nki_sim.dtypes import DTYPES
from nki_sim.forms import Form, Operand, Site


def insert_spills(draft: ProgramDraft, plans: Iterable[tuple[SbufTiles, Sequence[int]]]) -> None:
    """Add the transfers for the evictions and reloads of each core (`residency`); tiles come back renamed."""
    at: list[int] = []
    steps: list[DraftStep] = []
    tensors = draft.cells.tensor.copy()
    for tiles, moves in plans:
        if moves:
            traffic = _SpillTraffic(draft, tiles)
            traffic.run(moves)
            at += traffic.at
            steps += traffic.steps
            names = tiles.carry_forward(traffic.names)[tiles.rows]
            tensors[tiles.cells] = np.where(names >= 0, names, tensors[tiles.cells])
    draft.replace_operands(tensors, draft.cells.offset)
    draft.splice(np.ones(len(draft), dtype=bool), at, steps)


class _SpillTraffic:
    """The instructions `steps[i]` before instruction `at[i]`; by row, the tile's new `names`."""

    def __init__(self, draft: ProgramDraft, tiles: SbufTiles) -> None:
        self._draft, self._tiles = draft, tiles
        self._instruction: list[int] = tiles.instruction.tolist()
        self._tensor: list[int] = tiles.tensor.tolist()
        self._written: list[int] = tiles.written.tolist()
        self._loaded: list[bool] = tiles.loaded.tolist()
        self._sources: list[int] = draft.sources.tolist()
        self._contents = TileContents(draft)
        # By tensor, its copy in HBM, its name, and the instruction that it came back for.
        self._copies: dict[int, int] = {}
        self._name: dict[int, int] = {}
        self._since: dict[int, int] = {}
        self._spills: dict[tuple[int, bool], int] = {}
        self._whole: dict[tuple[int, int, tuple[bool, ...]], bool] = {}
        self.at: list[int] = []
        self.steps: list[DraftStep] = []
        self.names = np.full(len(self._tensor), -1)

    def run(self, moves: Sequence[int]) -> None:
        """Handle one eviction or reload after another."""
        loads = iter(self._loads_to_repeat(moves))
        load = next(loads, None)
        for move in moves:
            if move >= 0:
                self._save_tile(move, self._tensor[move])
                continue
            while load is not None and load < self._instruction[~move]:
                self._contents.record_load(load)
                load = next(loads, None)
            self._bring_back(~move, self._tensor[~move])

    def _loads_to_repeat(self, moves: Sequence[int]) -> list[int]:
        """The loads of the tiles that are loaded again."""
        tiles = self._tiles
        again = np.zeros(len(tiles.loaded), dtype=bool)
        again[[self._tensor[~move] for move in moves if move < 0]] = True
        rows = np.flatnonzero((again & tiles.loaded)[tiles.tensor] & (tiles.written == tiles.instruction))
        return [int(at) for at in tiles.instruction[rows]]

    def _save_tile(self, row: int, tensor: int) -> None:
        written = self._written[row]
        if self._loaded[tensor] or written < self._since.get(tensor, 0):
            return
        if tensor not in self._copies:
            self._copies[tensor] = self._draft.add_tensor(_spill_site(self._draft.site(tensor)))
        self._add_move(written + 1, tensor, self._sources[written], origin=SAVE)

    def _bring_back(self, row: int, tensor: int) -> None:
        at = self._since[tensor] = self._instruction[row]
        self._name[tensor] = self.names[row] = self._draft.add_tensor(self._draft.site(tensor))
        if self._overwrites_tile(at, tensor):
            return
        if tensor in self._copies:
            self._add_move(at, tensor, self._sources[at], origin=RELOAD)
        for load in self._contents.current_loads(tensor):
            form, (_, source), offsets = self._contents.load_operands(load)
            self._add_step(
                at, DraftStep(form, (self._name[tensor], source), offsets, self._sources[at], LOAD_AGAIN)
            )

    def _add_move(self, at: int, tensor: int, source: int, *, origin: int) -> None:
        key = self._draft.tensor_sites[tensor], origin == SAVE
        if key not in self._spills:
            self._spills[key] = self._draft.add_form(
                _spill_form(self._draft.site(tensor), save=origin == SAVE)
            )
        tile, copy = self._name.get(tensor, tensor), self._copies[tensor]
        tensors = (copy, tile) if origin == SAVE else (tile, copy)
        self._add_step(at, DraftStep(self._spills[key], tensors, (0, 0), source, origin))

    def _add_step(self, at: int, step: DraftStep) -> None:
        self.at.append(at)
        self.steps.append(step)

    def _overwrites_tile(self, at: int, tensor: int) -> bool:
        """Whether an instruction writes all of a tile and reads nothing of it."""
        cells, form = self._draft.cells, int(self._draft.form_ids[at])
        mine = tuple((cells.tensor[cells.first[at] : cells.first[at + 1]] == tensor).tolist())
        key = form, self._draft.tensor_sites[tensor], mine
        if key not in self._whole:
            self._whole[key] = self._writes_whole_tile(form, self._draft.site(tensor), mine)
        return self._whole[key]

    def _writes_whole_tile(self, form: int, site: Site, mine: tuple[bool, ...]) -> bool:
        items = self._draft.forms[form].operands
        effects = self._draft.form_effects(form)
        chosen = [(item, effect) for item, effect, own in zip(items, effects, mine, strict=True) if own]
        covers = any(_covers_tile(item, site) for item, _ in chosen)
        return covers and all(write and not read for _, (write, read) in chosen)


def _covers_tile(item: Operand, site: Site) -> bool:
    """Whether an access touches every byte of a tile."""
    dense = item.extent == item.elements and not item.index_step
    return dense and item.nbytes == site.size * DTYPES[site.dtype].itemsize


def _spill_site(site: Site) -> Site:
    return Site(f"{site.name}.spill", (site.shape[0], site.row), site.dtype, "private_hbm", site.line)


def _spill_form(site: Site, *, save: bool) -> Form:
    row = site.row
    far, chip = (
        Operand(role, ((row, site.shape[0]), (1, row)), site.dtype, buffer, row, 0)
        for role, buffer in zip(
            ("dst", "src") if save else ("src", "dst"), ("private_hbm", "sbuf"), strict=True
        )
    )
    return Form("dma_copy", "dma", (far, chip) if save else (chip, far), ())
