"""Removes repeated loads and computations, as the legacy compiler does.

The legacy compiler drops a load that the same or an enclosing iteration has done already, and moves invariant
computation out of its loop. It keeps loaded tiles from one iteration to the next if there is room
(`kept_loads`). It hoists nothing if the arrays that a kernel loads do not fit on the chip [C].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from nki_sim.compiler.dead_code import drop_dead_instructions
from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.compiler.value_numbering import ValueNumbering
from nki_sim.program.ir import Bools

# Broadcasts are views until engines are chosen, after hoisting, so they are made where they are used.
_VIEWS = frozenset({"nc_stream_shuffle"})
_LOADS = frozenset({"dma_copy"})


def hoist_computation(draft: ProgramDraft, *, computed: bool) -> dict[int, int]:
    """Merge tiles of equal value (computed ones only if `computed`), then drop dead code.

    Returns the loaded tiles that equal an earlier one and are still loaded, each with the earlier one.
    """
    values = ValueNumbering(draft)
    names, left = _find_replacements(draft, values, computed=computed)
    merge_tiles(draft, _droppable_tiles(draft, names))
    return left


def merge_tiles(draft: ProgramDraft, names: Mapping[int, int]) -> None:
    """Replace tiles by earlier ones that equal them, then drop dead code."""
    merged = _merged_instructions(draft, names)
    draft.rename_tensors(names)
    draft.keep_instructions(~merged)
    drop_dead_instructions(draft)


def _find_replacements(
    draft: ProgramDraft, values: ValueNumbering, *, computed: bool
) -> tuple[dict[int, int], dict[int, int]]:
    """Tiles that an earlier one replaces, and loaded tiles that equal an earlier one but stay."""
    nodes, makers = _IterationTree(draft), _TileWriters(draft)
    # By value, the kept tiles, by the iteration in which they are first written.
    kept: dict[int, dict[int, int]] = defaultdict(dict)
    names: dict[int, int] = {}
    left: dict[int, int] = {}
    for tensor, number in values.numbers.items():
        if number == tensor:
            kept[number][nodes.iteration_of(makers.first[tensor])] = tensor
            continue
        if makers.view[tensor]:
            continue
        if computed and not makers.load[tensor]:
            names[tensor] = number
            continue
        node, tiles = nodes.iteration_of(makers.first[tensor]), kept[number]
        around = next((one for one in nodes.enclosing_iterations(node) if one in tiles), None)
        if around is None:
            tiles[node] = tensor
            if makers.load[tensor]:
                left[tensor] = number
        else:
            names[tensor] = tiles[around]
    return names, left


class _TileWriters:
    """By tensor, the `first` instruction that writes it, and whether one is a `view` and all are loads
    (`load`).
    """

    def __init__(self, draft: ProgramDraft) -> None:
        cells = draft.cells
        rows = np.flatnonzero(cells.writes)
        tensors, writers = cells.tensor[rows], cells.instruction[rows]
        ops = [form.op for form in draft.forms]
        views, loads = (
            np.array([op in chosen for op in ops], dtype=bool)[draft.form_ids][writers]
            for chosen in (_VIEWS, _LOADS)
        )
        first = np.full(len(draft.tensor_sites), -1)
        first[tensors[::-1]] = writers[::-1]
        view, other = np.zeros((2, len(first)), dtype=bool)
        view[tensors[views]] = True
        other[tensors[~loads]] = True
        self.first: list[int] = first.tolist()
        self.view: list[bool] = view.tolist()
        self.load: list[bool] = (~other).tolist()


def _droppable_tiles(draft: ProgramDraft, names: dict[int, int]) -> dict[int, int]:
    """The replacements without tiles whose writing instruction must stay for another result."""
    cells = draft.cells
    while True:
        fills = cells.writes & ~_merged_instructions(draft, names)[cells.instruction]
        stay = names.keys() & set(np.unique(cells.tensor[fills]).tolist())
        if not stay:
            return names
        names = {tensor: twin for tensor, twin in names.items() if tensor not in stay}


def _merged_instructions(draft: ProgramDraft, names: Mapping[int, int]) -> Bools:
    """Per instruction, whether it writes only dropped tiles, and at least one."""
    dropped = np.zeros(len(draft.tensor_sites), dtype=bool)
    dropped[list(names)] = True
    cells = draft.cells
    written, others = np.zeros(len(draft), dtype=bool), np.zeros(len(draft), dtype=bool)
    written[cells.instruction[cells.writes]] = True
    others[cells.instruction[cells.writes & ~dropped[cells.tensor]]] = True
    return np.asarray(written & ~others, dtype=bool)


class _IterationTree:
    """The loop iterations that contain instructions."""

    def __init__(self, draft: ProgramDraft) -> None:
        found = draft.program.iterations
        self._nodes = found.nodes[draft.sources].tolist() if len(found.nodes) else []
        self._parents = found.parents.tolist()

    def iteration_of(self, at: int) -> int:
        """The iteration of an instruction, 0 outside loops."""
        return self._nodes[at] if self._nodes else 0

    def enclosing_iterations(self, node: int) -> Iterator[int]:
        """The iteration, its enclosing ones and 0; nothing if the kernel records no iterations."""
        while node:
            yield node
            node = self._parents[node - 1]
        if self._nodes:
            yield 0
