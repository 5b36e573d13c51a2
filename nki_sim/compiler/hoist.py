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


def hoist(draft: Draft, *, computed: bool) -> dict[int, int]:
    """Merge tiles of equal value, those of computed values only on demand, then drop what is dead.

    Returns the loaded tiles that equal an earlier one and are still loaded, each with the earlier one.
    """
    values = Values(draft)
    names, left = _names(draft, values, computed=computed)
    merge(draft, _droppable(draft, values, names))
    return left


def merge(draft: Draft, names: Mapping[int, int]) -> None:
    """Put earlier tiles in the place of others that equal them, and drop what is dead then."""
    merged = _merged(draft, names)
    draft.rename(names)
    draft.keep(~merged)
    drop_dead(draft)


def _names(draft: Draft, values: Values, *, computed: bool) -> tuple[dict[int, int], dict[int, int]]:
    """Tiles that an earlier one takes the place of, and loaded ones that equal an earlier one but stay."""
    nodes = _Nodes(draft)
    forms = draft.form_ids.tolist()
    # By value, the tiles that are kept, by the iteration they are first written in.
    kept: dict[int, dict[int, int]] = defaultdict(dict)
    names: dict[int, int] = {}
    left: dict[int, int] = {}
    for tensor, number in values.numbers.items():
        if number == tensor:
            kept[number][nodes.of(values.makers[tensor][0])] = tensor
            continue
        ops = {draft.forms[forms[at]].op for at in values.makers[tensor]}
        if ops & _VIEWS:
            continue
        if computed and ops != {"dma_copy"}:
            names[tensor] = number
            continue
        node, tiles = nodes.of(values.makers[tensor][0]), kept[number]
        around = next((one for one in nodes.around(node) if one in tiles), None)
        if around is None:
            tiles[node] = tensor
            if ops == {"dma_copy"}:
                left[tensor] = number
        else:
            names[tensor] = tiles[around]
    return names, left


def _droppable(draft: Draft, values: Values, names: dict[int, int]) -> dict[int, int]:
    """Without tiles that an instruction fills which has to stay for another result."""
    while True:
        merged = _merged(draft, names)
        stay = {t for t in names if not all(merged[at] for at in values.makers[t])}
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
