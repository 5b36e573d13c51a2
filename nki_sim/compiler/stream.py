"""Arrays of loaded tiles that do not fit: each part is loaded where it is used, into a small tile [C].

Where one access pattern cannot load the part alone, the whole tile is loaded there.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import replace

import numpy as np

from nki_sim.compiler.compiled import LOAD_AGAIN
from nki_sim.compiler.cut import Box, box_of, can_narrow, cut, narrowed
from nki_sim.compiler.draft import Draft, Step
from nki_sim.compiler.loads import Contents
from nki_sim.compiler.residency import KEPT_PARTS

_Cut = tuple[int, int, int]
"""Form of a load, its offset in the small tile, and how much later in the source it begins."""


def stream(draft: Draft, tensors: set[int]) -> None:
    """Load the parts of some tiles, written by plain loads alone, where they are used."""
    made = _Stream(draft, tensors)
    made.run()
    draft.repoint(made.tensors, made.offsets)
    draft.reform(made.forms)
    draft.splice(made.kept, made.at, made.steps)


class _Stream:
    """One pass over the instructions that takes the loads of some tiles to where they are used."""

    def __init__(self, draft: Draft, tensors: set[int]) -> None:
        self._draft, cells = draft, draft.cells
        self._contents = Contents(draft)
        chosen = np.zeros(len(draft.tensor_sites), dtype=bool)
        chosen[list(tensors)] = True
        self._cells = np.flatnonzero(chosen[cells.tensor])
        # By declaration the parts that are still there, by tile and box (None: the whole tile).
        self._recent: dict[int, OrderedDict[tuple[int, Box | None], int]] = defaultdict(OrderedDict)
        self._narrow: dict[tuple[int, tuple[int, ...]], int] = {}
        self._cuts: dict[tuple[int, int, Box], _Cut | tuple[()] | None] = {}
        self._forms: list[int] = draft.form_ids.tolist()
        self.forms, self.kept = draft.form_ids.copy(), np.ones(len(draft), dtype=bool)
        self.tensors, self.offsets = cells.tensor.copy(), cells.offset.copy()
        self.at: list[int] = []
        self.steps: list[Step] = []

    def run(self) -> None:
        """Take one access after the other."""
        cells, mine = self._draft.cells, self._cells
        instruction = cells.instruction[mine].tolist()
        columns = (cells.operand[mine], cells.tensor[mine], cells.offset[mine], cells.writes[mine])
        rows = zip(mine.tolist(), instruction, *(column.tolist() for column in columns), strict=True)
        places: list[int] = []
        following = [*instruction[1:], -1]
        for (cell, at, place, tensor, offset, write), after in zip(rows, following, strict=True):
            if write:
                self._load(at)
            elif self._use(cell, at, place, tensor, offset):
                places.append(place)
            if after != at:
                if places:
                    self.forms[at] = self._narrowed(int(self.forms[at]), tuple(places))
                places = []

    def _load(self, at: int) -> None:
        """A load is put off; what was loaded before into the tile is not what it holds any more."""
        tensor = self._contents.note(at)
        self.kept[at] = False
        recent = self._recent[self._draft.tensor_sites[tensor]]
        for part in [part for part in recent if part[0] == tensor]:
            del recent[part]

    def _use(self, cell: int, at: int, place: int, tensor: int, offset: int) -> bool:
        """Let an access go to a part, loaded unless it is there; whether the part is a small tile."""
        item = self._draft.forms[self._forms[at]].operands[place]
        box = box_of(item, offset) if can_narrow(item, self._draft.site(tensor)) else None
        recent = self._recent[self._draft.tensor_sites[tensor]]
        if box is not None and (tensor, box) not in recent and not self._can_cut(tensor, box):
            box = None
        part = tensor, box
        if part in recent:
            recent.move_to_end(part)
        else:
            recent[part] = self._part(at, tensor, box)
            if len(recent) > KEPT_PARTS:
                recent.popitem(last=False)
        self.tensors[cell] = recent[part]
        if box is not None:
            self.offsets[cell] = box.top * box.width + item.below
        return box is not None

    def _can_cut(self, tensor: int, box: Box) -> bool:
        return all(self._cut(load, box) is not None for load in self._contents.of(tensor))

    def _part(self, at: int, tensor: int, box: Box | None) -> int:
        """The tile with a part, or a whole tile, and the loads that fill it in front of an instruction."""
        draft, source = self._draft, int(self._draft.sources[at])
        if box is None:
            made = draft.like(tensor)
        else:
            site = draft.site(tensor)
            made = draft.tensor(replace(site, shape=(site.shape[0], box.width)))
        for load in self._contents.of(tensor):
            form, (_, far), (to, place) = self._contents.load(load)
            if box is not None:
                found = self._cut(load, box)
                if not found:
                    continue
                form, to, moved = found
                place += moved
            self.at.append(at)
            self.steps.append(Step(form, (made, far), (to, place), source, LOAD_AGAIN))
        return made

    def _cut(self, load: int, box: Box) -> _Cut | tuple[()] | None:
        """A load of what it has in a box: nothing where that is nothing, None where it cannot be cut."""
        form, _, (to, _) = self._contents.load(load)
        key = form, to, box
        if key not in self._cuts:
            self._cuts[key] = self._new_cut(form, to, box)
        return self._cuts[key]

    def _new_cut(self, number: int, to: int, box: Box) -> _Cut | tuple[()] | None:
        form = self._draft.forms[number]
        dst, src = form.operands
        if box_of(dst, to).common(box).empty:
            return ()
        found = cut(dst, src, to, box)
        if found is None:
            return None
        near, far, place, moved = found
        return self._draft.form(replace(form, operands=(near, far))), place, moved

    def _narrowed(self, number: int, places: tuple[int, ...]) -> int:
        """A form whose operands in some places are in small tiles."""
        key = number, places
        if key not in self._narrow:
            form = self._draft.forms[number]
            operands = (narrowed(item) if at in places else item for at, item in enumerate(form.operands))
            self._narrow[key] = self._draft.form(replace(form, operands=tuple(operands)))
        return self._narrow[key]
