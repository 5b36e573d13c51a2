"""Tracks which loads filled each tile so far."""

from __future__ import annotations

from collections import defaultdict

from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.forms import Operand


class TileContents:
    """By tile, the loads that make up its contents, in order; a load into the same place replaces another."""

    def __init__(self, draft: ProgramDraft) -> None:
        self._draft = draft
        self._forms: list[int] = draft.form_ids.tolist()
        self._first: list[int] = draft.cells.first.tolist()
        self._tensors: list[int] = draft.cells.tensor.tolist()
        self._offsets: list[int] = draft.cells.offset.tolist()
        self._loads: dict[int, dict[tuple[Operand, int], int]] = defaultdict(dict)

    def record_load(self, at: int) -> int:
        """Record that instruction `at` is a load; return the tile that it fills."""
        cell = self._first[at]
        tensor = self._tensors[cell]
        place = self._draft.forms[self._forms[at]].operands[0], self._offsets[cell]
        loads = self._loads[tensor]
        loads.pop(place, None)
        loads[place] = at
        return tensor

    def current_loads(self, tensor: int) -> list[int]:
        """The loads that make up a tile's current contents."""
        return list(self._loads[tensor].values())

    def load_operands(self, at: int) -> tuple[int, tuple[int, int], tuple[int, int]]:
        """Form, tensors and offsets of a load: first of the tile, then of its source."""
        cell = self._first[at]
        (tile, source), (to, place) = self._tensors[cell : cell + 2], self._offsets[cell : cell + 2]
        return self._forms[at], (tile, source), (to, place)
