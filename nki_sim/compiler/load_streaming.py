"""Models arrays of loaded tiles that do not fit: each part is loaded into a small tile where it is used [C].

If one access pattern cannot load just the part, the whole tile is loaded there.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import replace

import numpy as np

from nki_sim.compiler.compiled_program import LOAD_AGAIN
from nki_sim.compiler.program_draft import DraftStep, ProgramDraft
from nki_sim.compiler.residency import KEPT_PARTS
from nki_sim.compiler.tile_contents import TileContents
from nki_sim.compiler.tile_cuts import TileBox, access_box, can_narrow, cut_load, narrow_access

_LoadCut = tuple[int, int, int]
"""Form of a load, its offset in the small tile, and its displacement in the source."""

_PartLoad = tuple[int, int, int, int]
"""Form of a load, its source, and the offsets in the tile and in the source."""


def stream_loads(draft: ProgramDraft, tensors: set[int]) -> None:
    """Load the parts of some tiles, which only plain loads write, where they are used."""
    made = _LoadStreamer(draft, tensors)
    made.run()
    draft.replace_operands(made.tensors, made.offsets)
    draft.replace_forms(made.forms)
    draft.splice(made.kept, made.at, made.steps)


class _LoadStreamer:
    """One pass over the instructions that moves the loads of some tiles to their uses."""

    def __init__(self, draft: ProgramDraft, tensors: set[int]) -> None:
        self._draft, cells = draft, draft.cells
        self._contents = TileContents(draft)
        chosen = np.zeros(len(draft.tensor_sites), dtype=bool)
        chosen[list(tensors)] = True
        self._cells = np.flatnonzero(chosen[cells.tensor])
        # By declaration, the parts still in SBUF, by tile and box (None: the whole tile).
        self._recent: dict[int, OrderedDict[tuple[int, TileBox | None], int]] = defaultdict(OrderedDict)
        self._narrow: dict[tuple[int, tuple[int, ...]], int] = {}
        self._boxes: dict[tuple[int, int, int, int], tuple[TileBox | None, int]] = {}
        self._small: dict[tuple[int, int], int] = {}
        self._cuts: dict[tuple[int, int, TileBox], _LoadCut | tuple[()] | None] = {}
        self._forms: list[int] = draft.form_ids.tolist()
        self.forms, self.kept = draft.form_ids.copy(), np.ones(len(draft), dtype=bool)
        self.tensors, self.offsets = cells.tensor.copy(), cells.offset.copy()
        self.at: list[int] = []
        self.steps: list[DraftStep] = []

    def run(self) -> None:
        """Handle one access after another."""
        cells, mine = self._draft.cells, self._cells
        instruction = cells.instruction[mine].tolist()
        columns = (cells.operand[mine], cells.tensor[mine], cells.offset[mine], cells.writes[mine])
        rows = zip(mine.tolist(), instruction, *(column.tolist() for column in columns), strict=True)
        places: list[int] = []
        following = [*instruction[1:], -1]
        for (cell, at, place, tensor, offset, write), after in zip(rows, following, strict=True):
            if write:
                self._defer_load(at)
            elif self._redirect_access(cell, at, place, tensor=tensor, offset=offset):
                places.append(place)
            if after != at:
                if places:
                    self.forms[at] = self._narrow_form(int(self.forms[at]), tuple(places))
                places = []

    def _defer_load(self, at: int) -> None:
        """Defer a load; parts loaded from the tile's earlier contents are no longer valid."""
        tensor = self._contents.record_load(at)
        self.kept[at] = False
        recent = self._recent[self._draft.tensor_sites[tensor]]
        for part in [part for part in recent if part[0] == tensor]:
            del recent[part]

    def _redirect_access(self, cell: int, at: int, place: int, *, tensor: int, offset: int) -> bool:
        """Redirect an access to a part, loading it if needed; return whether the part is a small tile."""
        site = self._draft.tensor_sites[tensor]
        view = self._forms[at], place, site, offset
        if view not in self._boxes:
            self._boxes[view] = self._part_box(*view)
        box, within = self._boxes[view]
        recent = self._recent[site]
        if (tensor, box) not in recent:
            loads = self._part_loads(tensor, box)
            if loads is None:
                box, loads = None, self._part_loads(tensor, None)
            if (tensor, box) not in recent:
                recent[tensor, box] = self._make_part(at, tensor, box, loads or [])
        recent.move_to_end((tensor, box))
        if len(recent) > KEPT_PARTS:
            recent.popitem(last=False)
        self.tensors[cell] = recent[tensor, box]
        if box is not None:
            self.offsets[cell] = within
        return box is not None

    def _part_box(self, form: int, place: int, site: int, offset: int) -> tuple[TileBox | None, int]:
        """The box that an access touches (None if it needs the whole tile), and its offset in that box."""
        item = self._draft.forms[form].operands[place]
        if not can_narrow(item, self._draft.sites[site]):
            return None, offset
        box = access_box(item, offset)
        return box, box.top * box.width + item.reach_below

    def _part_loads(self, tensor: int, box: TileBox | None) -> list[_PartLoad] | None:
        """The loads of a part or of a whole tile; None if one of them cannot be cut."""
        found: list[_PartLoad] = []
        for load in self._contents.current_loads(tensor):
            form, (_, far), (to, place) = self._contents.load_operands(load)
            if box is not None:
                key = form, to, box
                if key not in self._cuts:
                    self._cuts[key] = self._make_cut(*key)
                piece = self._cuts[key]
                if piece is None:
                    return None
                if not piece:
                    continue
                form, to, moved = piece
                place += moved
            found.append((form, far, to, place))
        return found

    def _make_part(self, at: int, tensor: int, box: TileBox | None, loads: list[_PartLoad]) -> int:
        """Make a tile for a part or a whole tile, with the loads that fill it before an instruction."""
        site = self._draft.tensor_sites[tensor]
        if box is None:
            made = self._draft.add_tensor_like(tensor)
        elif (site, box.width) in self._small:
            made = self._draft.add_tensor_like(self._small[site, box.width])
        else:
            wide = self._draft.sites[site]
            made = self._draft.add_tensor(replace(wide, shape=(wide.shape[0], box.width)))
            self._small[site, box.width] = made
        source = int(self._draft.sources[at])
        for form, far, to, place in loads:
            self.at.append(at)
            self.steps.append(DraftStep(form, (made, far), (to, place), source, LOAD_AGAIN))
        return made

    def _make_cut(self, number: int, to: int, box: TileBox) -> _LoadCut | tuple[()] | None:
        """A load cut to a box: () if nothing of it is in the box, None if it cannot be cut."""
        form = self._draft.forms[number]
        dst, src = form.operands
        if access_box(dst, to).intersect(box).is_empty:
            return ()
        found = cut_load(dst, src, to, box)
        if found is None:
            return None
        near, far, place, moved = found
        return self._draft.add_form(replace(form, operands=(near, far))), place, moved

    def _narrow_form(self, number: int, places: tuple[int, ...]) -> int:
        """A form whose operands at some positions are in small tiles."""
        key = number, places
        if key not in self._narrow:
            form = self._draft.forms[number]
            operands = (
                narrow_access(item) if at in places else item for at, item in enumerate(form.operands)
            )
            self._narrow[key] = self._draft.add_form(replace(form, operands=tuple(operands)))
        return self._narrow[key]
