"""Sums over partitions as products with ones, which leave the sum in every partition.

Statistics of columns, or of everything, are needed by all rows. The sums of columns are a product of the
matrix with ones; with 128 rows of ones, each partition gets them. They need not go through HBM then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from targets.nki.translation.access import Atom
from targets.nki.translation.layout import PARTITIONS, blocker
from targets.nki.translation.merge import LoopRenaming, ValueChange, split_rows
from targets.nki.translation.patterns import Substitution
from targets.nki.translation.products import Bank, bank_parts
from targets.nki.translation.stage import Rows, StageContext, Store, Tile
from targets.nki.translation.transposes import add_copy
from targets.nki.translation.values import KeptRows, Load, Reduce, SpreadSum, Value

_FEWEST_ROWS = 64
"""Rows from which the tensor engine adds them up: fewer leave most of it empty."""


def spread_sums(stores: Sequence[Store], row: Atom) -> list[Store] | None:
    """Return the stores with sums that every row needs as products with ones; None if there are none.

    The sums have loops of their own. Those that go on inside a row, or over several rows of a partition, have
    one step on the partitions for each step of the rows there, as a tile of the rows has.
    """
    for loop in _longer_sums(stores, row.size):
        stores, _, _ = split_rows(stores, (), loop, loop.size // row.size)
    items = {item for store in stores for item in store.value.walk()}
    found: dict[Value, Atom] = {}
    for item in items:
        if isinstance(item, Reduce) and row not in item.atoms:
            along = _loop_on_partitions(item) if item.function == "add" else None
            if along is None:
                return None
            found[item] = along
    if not found:
        return None
    spreading = _Spreading(found)
    return [spreading.store(store) for store in stores]


def with_own_loops(stores: Sequence[Store], row: Atom) -> list[Store]:
    """The stores with another loop in sums over the rows themselves: it has all rows, a tile only some."""
    items = {item for store in stores for item in store.value.walk()}
    renaming = LoopRenaming({row: Atom(f"{row.name}s", row.size)})
    sums = (item for item in items if isinstance(item, Reduce) and row in item.over)
    change = Substitution({item: renaming.value(item) for item in sums})
    return [change.store(store) for store in stores]


def find_neighbours(value: Value) -> set[Atom]:
    """The loops that walk neighbouring elements of an array that other loops walk too."""
    return {
        atom
        for item in value.walk()
        if isinstance(item, Load)
        for atom, stride in item.access.terms
        if stride == 1 and len(item.access.terms) > 1
    }


def _longer_sums(stores: Sequence[Store], rows: int) -> list[Atom]:
    """The loops of sums that have several steps for each row, but not those of rows kept on the chip."""
    items = {item for store in stores for item in store.value.walk()}
    loops = {atom for item in items if isinstance(item, Reduce) for atom in item.over}
    loops -= {atom for item in items if isinstance(item, KeptRows) for atom in item.loops}
    fits = (atom for atom in loops if atom.size > rows and atom.size % rows == 0)
    return sorted(fits, key=lambda atom: atom.name)


def _loop_on_partitions(total: Reduce) -> Atom | None:
    """The loop of a sum that lies on the partitions: the longest along which no elements are neighbours."""
    neighbours = find_neighbours(total)
    fits = [atom for atom in total.over if atom not in neighbours and atom.size >= _FEWEST_ROWS]
    return max(fits, key=lambda atom: (min(atom.size, PARTITIONS), atom.name), default=None)


class _Spreading(ValueChange):
    """Puts products with ones in the place of sums; other loops are added up in each partition before."""

    def __init__(self, found: Mapping[Value, Atom]) -> None:
        super().__init__(frozenset())
        self._along = found

    def is_changed(self, value: Value) -> bool:
        """Whether a value is such a sum, or uses one."""
        return any(item in self._along for item in value.walk())

    def _change(self, value: Value) -> Value:
        along = self._along.get(value)
        if along is None or not isinstance(value, Reduce):
            return super()._change(value)
        summed, others = self.value(value.value), tuple(atom for atom in value.over if atom != along)
        if others:
            summed = Reduce(value.node, "add", summed, others)
        return SpreadSum(value.node, summed, along)


def make_spread_sum(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """The sum in every partition; the same tile serves all loops that may lie there."""
    assert isinstance(value, SpreadSum)
    for (held, at), tile in context.tiles.items():
        if held is value and context.height(at) == context.height(partition):
            return Tile(tile.name, partition, tile.free, 1)
    if (blocking := blocker(value.value, value.along)) is not None:
        raise context.stored_needed(blocking)
    data, lines = context.tile(value.value, value.along), context.lines(value)
    height = context.height(partition)
    ones = context.names.new("ones")
    shape = f"({context.height(value.along)}, {height})"
    lines.add(f"{ones} = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.sbuf)")
    lines.add(f"nisa.memset(dst={ones}, value=1.0, engine=nisa.engine.gpsimd)")
    tile = context.new_tile("total", partition, free, lines, chunks=1)
    rows = Rows(height, None, "0")
    with bank_parts(context, lines, free) as parts:
        bank = Bank(context, lines, partition, rows, free, parts, {})
        target = bank.declare()
        with ExitStack() as stack:
            chunk = stack.enter_context(context.rows(lines, value.along))
            whole = str(chunk.count) == str(context.height(value.along))
            stationary = ones if whole else f"{ones}[0:{chunk.count}, :]"
            moving = context.view(data, chunk, free, bank.box)
            lines.add(f"nisa.nc_matmul(dst={target}, stationary={stationary}, moving={moving})")
        result = context.view(tile, rows, free, bank.box)
        add_copy(context, lines, result, target, context.width(None, free))
    return tile
