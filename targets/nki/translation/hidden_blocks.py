"""Finds blocks of a loop that masks hide from all rows of a tile, so that nothing computes them.

Attention hides keys from queries: where a mask is false, a score is minus infinity or a large negative
number. A maximum ignores it, its exponential is 0, and so is what that adds to a sum. So blocks of keys that
a mask hides from a whole tile of rows may be left out, if every operation that runs over them is such a
maximum or sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom
from targets.nki.translation.layout import PARTITIONS, BlockRange, Nest
from targets.nki.translation.merge import split_rows
from targets.nki.translation.stage import Store
from targets.nki.translation.values import Binary, Contract, Number, Reduce, Select, Table, Unary, Value

LEAST_HIDING = -1e30
"""The largest number that stands for minus infinity: scores of huge inputs are not below it."""

_BOUNDED_HIDING, _FARTHER = -1e6, 1e3
"""A number from which on it may stand for that among bounded scores, and how far it is below them all."""

_FROM_MINUS_ONE_TO_ONE = frozenset({"tanh", "sigmoid", "erf", "sin", "sign"})


_Blocks = NDArray[np.bool_]
"""Which blocks [rows, blocks] a mask shows some of."""


def split_into_blocks(stores: Sequence[Store]) -> tuple[list[Store], tuple[Atom, ...]]:
    """Return stores whose masked sums run over blocks of up to 128 neighbours, and the loops over blocks."""
    found, loops = list(stores), list[Atom]()
    for loop in sorted(_masked_sums(stores), key=lambda atom: atom.name):
        blocks = -(-loop.size // PARTITIONS)
        if blocks == 1 or loop.size % blocks:
            continue
        try:
            found, _, outer = split_rows(found, (), loop, loop.size // blocks)
        except UntranslatableError:
            continue  # boxes of an assembled value that do not end with a block
        loops.append(outer)
    return found, tuple(loops)


def _masked_sums(stores: Sequence[Store]) -> set[Atom]:
    """The loops of sums of products along which a mask of known numbers hides something."""
    items = {item for store in stores for item in store.value.walk()}
    masked = {
        atom
        for item in items
        if isinstance(item, Select) and isinstance(item.condition, Table) and _is_low(item.right)
        for atom in item.condition.atoms
    }
    summed = {atom for item in items if isinstance(item, Contract) for own in item.over for atom in own}
    return masked & summed


def _is_low(value: Value) -> bool:
    return isinstance(value, Number) and value.number <= _BOUNDED_HIDING


def _is_hiding(value: Select) -> bool:
    """Whether a choice hides: its other number is below all scores, of whatever inputs."""
    if not isinstance(value.right, Number) or not _is_low(value.right):
        return False
    size = _find_bound(value.left)
    return value.right.number <= LEAST_HIDING or (size is not None and value.right.number <= -_FARTHER * size)


def _find_bound(value: Value) -> float | None:
    """What a value's magnitude does not exceed for any inputs; None if that is not known."""
    if isinstance(value, Number):
        return abs(value.number)
    if isinstance(value, Unary) and value.function in _FROM_MINUS_ONE_TO_ONE:
        return 1.0
    if isinstance(value, Binary) and value.function in {"multiply", "add", "subtract"}:
        left, right = _find_bound(value.left), _find_bound(value.right)
        if left is None or right is None:
            return None
        return left * right if value.function == "multiply" else left + right
    return None


def find_ranges(stores: Sequence[Store], nest: Nest, loops: Sequence[Atom]) -> dict[Atom, BlockRange]:
    """The blocks of these loops that count in each tile of rows: masks hide all others from its rows."""
    values = [store.value for store in stores]
    items = {item for value in values for item in value.walk()}
    written = frozenset().union(*(store.atoms for store in stores))
    found: dict[Atom, BlockRange] = {}
    for loop in (one for one in loops if one not in {*written, nest.row, *nest.outer}):
        shown = _Masks(loop, nest).find_shown(items)
        if shown is not None and shown.any(axis=1).all():  # rows that see nothing have no softmax
            ranges = [_range_of(tile) for tile in _split_into_tiles(shown, nest)]
            if ranges != [(0, loop.size)] * len(ranges):
                found[loop] = BlockRange(tuple(ranges))
    return found


def _split_into_tiles(shown: NDArray[np.bool_], nest: Nest) -> list[NDArray[np.bool_]]:
    """The rows of each tile of an array [rows, ...]."""
    return [shown[start : start + nest.row_tile] for start in range(0, len(shown), nest.row_tile)]


def _range_of(places: NDArray[np.bool_]) -> tuple[int, int]:
    """The range of blocks in which something is true in [rows, blocks, ...]; else the first."""
    blocks = np.flatnonzero(places.any(axis=tuple(axis for axis in range(places.ndim) if axis != 1)))
    return (int(blocks[0]), int(blocks[-1]) + 1) if blocks.size else (0, 1)


@dataclass(frozen=True, slots=True)
class _Hidden:
    """What a value is in hidden blocks: 0, or else what stands for minus infinity; and which are shown."""

    is_zero: bool
    shown: _Blocks


class _Masks:
    """What values are in the blocks of a loop that masks hide."""

    def __init__(self, loop: Atom, nest: Nest) -> None:
        self._loop, self._nest = loop, nest
        self._found: dict[Value, _Hidden | None] = {}

    def find_shown(self, items: set[Value]) -> _Blocks | None:
        """Return the blocks that an operation over the loop needs; None if one of them needs all blocks."""
        needed: list[_Blocks] = []
        for item in items:
            if self._loop not in item.bound:
                continue
            hidden = self._find_ignored(item)
            if hidden is None:
                return None
            needed.append(hidden.shown)
        return np.logical_or.reduce(needed) if needed else None

    def _find_ignored(self, item: Value) -> _Hidden | None:
        """What an operation over the loop may leave out."""
        if isinstance(item, Reduce):
            hidden = self._hidden(item.value)
            return (
                hidden
                if hidden and {True: "add", False: "maximum"}[hidden.is_zero] == item.function
                else None
            )
        if isinstance(item, Contract) and len(item.pairs) == 1:
            sides = [hidden for side in item.pairs[0] if (hidden := self._hidden(side)) and hidden.is_zero]
            return sides[0] if sides else None
        return None

    def _hidden(self, value: Value) -> _Hidden | None:
        if value not in self._found:
            self._found[value] = self._find_hidden(value)
        return self._found[value]

    def _find_hidden(self, value: Value) -> _Hidden | None:
        if isinstance(value, Select) and isinstance(value.condition, Table):
            return self._find_chosen(value, value.condition)
        if isinstance(value, Unary) and value.function == "exp":
            hidden = self._hidden(value.value)
            return _Hidden(is_zero=True, shown=hidden.shown) if hidden and not hidden.is_zero else None
        if isinstance(value, Binary):
            return self._find_combined(value)
        return None

    def _find_combined(self, value: Binary) -> _Hidden | None:
        left, right = self._hidden(value.left), self._hidden(value.right)
        if value.function == "multiply":
            for hidden, factor in ((left, value.right), (right, value.left)):
                is_scale = isinstance(factor, Number) and factor.number > 0
                if hidden and (hidden.is_zero or is_scale):
                    return hidden
        if value.function in {"add", "subtract"} and left and not left.is_zero and right is None:
            return left
        if value.function == "add" and right and not right.is_zero and left is None:
            return right
        return None

    def _find_chosen(self, value: Select, condition: Table) -> _Hidden | None:
        shown, inner = self._shown(condition), self._hidden(value.left)
        is_zero = isinstance(value.right, Number) and value.right.number == 0.0
        if not is_zero and not _is_hiding(value):
            return None
        if shown is None or (inner is not None and inner.is_zero != is_zero):
            return None
        return _Hidden(is_zero, shown if inner is None else shown & inner.shown)

    def _shown(self, condition: Table) -> _Blocks | None:
        """The blocks that a mask shows to rows; None if it has not these loops."""
        row, loops = self._nest.row, condition.loops
        if self._loop not in loops or row not in loops:
            return None
        at = loops.index(row), loops.index(self._loop)
        others = tuple(axis for axis in range(len(loops)) if axis not in at)
        shown: _Blocks = (condition.numbers != 0).any(axis=others)
        return shown if at[0] < at[1] else shown.T


@dataclass(frozen=True, slots=True)
class TileMasks:
    """What a mask hides in the blocks of each tile of rows in which it hides something.

    `tables` are different ones, [rows, blocks, ...], true where something is hidden; `which` says for each
    tile which one it has. A tile may have fewer blocks than its table.
    """

    blocks: BlockRange
    tables: Sequence[NDArray[np.bool_]]
    which: Sequence[int]


def find_tile_masks(
    condition: Table, nest: Nest, loops: Sequence[Atom], *, counted: BlockRange | None
) -> TileMasks | None:
    """Return what a mask hides in tiles of rows, along loops of which the first is over blocks.

    `counted` are the blocks that count at all. None if the mask has other loops.
    """
    wanted = (nest.row, *loops)
    if {*wanted} != {*condition.loops}:
        return None
    hidden = (condition.numbers == 0).transpose([condition.loops.index(atom) for atom in wanted if atom])
    tiles = _split_into_tiles(hidden, nest)
    ranges, tables, which = list[tuple[int, int]](), list[NDArray[np.bool_]](), list[int]()
    for at, tile in enumerate(tiles):
        start, end = counted.blocks[at] if counted else (0, tile.shape[1])
        first, last = (start + one for one in _range_of(tile[:, start:end]))
        ranges.append((first, last))
        own = np.zeros((nest.row_tile, *tile[0, first:last].shape), np.bool_)
        own[: len(tile)] = tile[:, first:last]
        which.append(_find_table(tables, own))
    return TileMasks(BlockRange(tuple(ranges)), tables, which)


def _find_table(tables: list[NDArray[np.bool_]], own: NDArray[np.bool_]) -> int:
    """The place of a table that begins with these blocks; it is added or made longer if needed."""
    for at, table in enumerate(tables):
        width = min(table.shape[1], own.shape[1])
        if np.array_equal(table[:, :width], own[:, :width]):
            tables[at] = max(table, own, key=lambda item: item.shape[1])
            return at
    tables.append(own)
    return len(tables) - 1
