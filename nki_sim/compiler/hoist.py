"""Dropping what is computed twice.

The legacy compiler leaves out a load that an enclosing or the same iteration has done already, and moves
computation that does not change out of its loop. Loads themselves it keeps from one iteration to the next
where there is room for that (`keep`). It hoists nothing where the arrays a kernel loads do not fit on the
chip [C].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from nki_sim.compiler.dead import drop_dead
from nki_sim.compiler.draft import Draft
from nki_sim.compiler.values import Values
from nki_sim.program.ir import Bools

# Broadcasts are views until engines are chosen, after hoisting: they are made where they are used.
_VIEWS = frozenset({"nc_stream_shuffle"})
_LOADS = frozenset({"dma_copy"})


def hoist(draft: Draft, *, computed: bool) -> dict[int, int]:
    """Merge tiles of equal value, those of computed values only on demand, then drop what is dead.

    Returns the loaded tiles that equal an earlier one and are still loaded, each with the earlier one.
    """
    values = Values(draft)
    names, left = _names(draft, values, computed=computed)
    merge(draft, _droppable(draft, names))
    return left


def merge(draft: Draft, names: Mapping[int, int]) -> None:
    """Put earlier tiles in the place of others that equal them, and drop what is dead then."""
    merged = _merged(draft, names)
    draft.rename(names)
    draft.keep(~merged)
    drop_dead(draft)


def _names(draft: Draft, values: Values, *, computed: bool) -> tuple[dict[int, int], dict[int, int]]:
    """Tiles that an earlier one takes the place of, and loaded ones that equal an earlier one but stay."""
    nodes, makers = _Nodes(draft), _Makers(draft)
    # By value, the tiles that are kept, by the iteration they are first written in.
    kept: dict[int, dict[int, int]] = defaultdict(dict)
    names: dict[int, int] = {}
    left: dict[int, int] = {}
    for tensor, number in values.numbers.items():
        if number == tensor:
            kept[number][nodes.of(makers.first[tensor])] = tensor
            continue
        if makers.view[tensor]:
            continue
        if computed and not makers.load[tensor]:
            names[tensor] = number
            continue
        node, tiles = nodes.of(makers.first[tensor]), kept[number]
        around = next((one for one in nodes.around(node) if one in tiles), None)
        if around is None:
            tiles[node] = tensor
            if makers.load[tensor]:
                left[tensor] = number
        else:
            names[tensor] = tiles[around]
    return names, left


class _Makers:
    """By tensor the `first` instruction that writes it, whether one makes a `view`, and all `load`."""

    def __init__(self, draft: Draft) -> None:
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


def _droppable(draft: Draft, names: dict[int, int]) -> dict[int, int]:
    """Without tiles that an instruction fills which has to stay for another result."""
    cells = draft.cells
    while True:
        fills = cells.writes & ~_merged(draft, names)[cells.instruction]
        stay = names.keys() & set(np.unique(cells.tensor[fills]).tolist())
        if not stay:
            return names
        names = {tensor: twin for tensor, twin in names.items() if tensor not in stay}


def _merged(draft: Draft, names: Mapping[int, int]) -> Bools:
    """By instruction whether it writes, and nothing but tiles that are dropped."""
    dropped = np.zeros(len(draft.tensor_sites), dtype=bool)
    dropped[list(names)] = True
    cells = draft.cells
    written, others = np.zeros(len(draft), dtype=bool), np.zeros(len(draft), dtype=bool)
    written[cells.instruction[cells.writes]] = True
    others[cells.instruction[cells.writes & ~dropped[cells.tensor]]] = True
    return np.asarray(written & ~others, dtype=bool)


class _Nodes:
    """The loop iterations that instructions are in."""

    def __init__(self, draft: Draft) -> None:
        found = draft.program.iterations
        self._nodes = found.nodes[draft.sources].tolist() if len(found.nodes) else []
        self._parents = found.parents.tolist()

    def of(self, at: int) -> int:
        """The iteration of an instruction, 0 outside of loops."""
        return self._nodes[at] if self._nodes else 0

    def around(self, node: int) -> Iterator[int]:
        """An iteration, those around it, and 0; nothing where the kernel says nothing about iterations."""
        while node:
            yield node
            node = self._parents[node - 1]
        if self._nodes:
            yield 0
