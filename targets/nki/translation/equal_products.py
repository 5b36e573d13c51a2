"""Takes the tile of a product for the same product along other loops, or a part of that tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from targets.nki.translation.access import Atom
from targets.nki.translation.layout import partition_of_sum
from targets.nki.translation.stage import StageContext, Tile
from targets.nki.translation.values import Binary, Contract, Select, Unary, Value


def find_equal(context: StageContext, value: Value, partition: Atom | None) -> Tile | None:
    """Return a product as the tile of the same one along other loops, or as the present rows of that tile."""
    assert isinstance(value, Contract)
    nest = context.nest
    level, fixed = nest.level(value), {*nest.outer, *context.ranges}
    for other, names in context.alike.get(value, ()):
        is_moved = any(own != atom and fixed & {own, atom} for own, atom in names.items())
        if is_moved or nest.level(other) > level:
            continue
        tile = _rename(context, other, names, partition, is_around=nest.level(other) < level)
        if tile is not None and tile.free == nest.free_atoms(value, partition):
            return tile
    return None


def _rename(
    context: StageContext,
    other: Contract,
    names: Mapping[Atom, Atom],
    partition: Atom | None,
    *,
    is_around: bool,
) -> Tile | None:
    """The tile of a product with other names for its loops, if it is there or will be.

    `is_around`: whether it is made outside of the loop over tiles of rows, of which it may have all.
    """
    row = context.nest.row
    on = next((atom for atom in other.atoms if names[atom] == partition), None)
    is_part = context.nest.row_tiles > 1 and any(names[atom] == row != atom for atom in other.atoms)
    if (on is None) != (partition is None) or (row in other.atoms and names[row] != row):
        return None
    if is_part and (partition == row or not is_around):
        return None
    if (other, on) not in context.tiles and not (is_part and on in _summed_along(context, other)):
        return None
    tile = context.tile(other, on)
    if tile.places or tile.windows:
        return None
    return replace(
        tile,
        partition=partition,
        free=tuple(names[atom] for atom in tile.free),
        windows=((row, context.row_start(), 1),) if is_part and row is not None else (),
        padded=frozenset(names[atom] for atom in tile.padded),
    )


def _summed_along(context: StageContext, value: Value) -> set[Atom]:
    """The loops of sums of products that a value is an operand of, as they lie on the partitions."""
    found, seen, todo = set[Atom](), set[Value](), [value]
    while todo:
        item = todo.pop()
        for reader in context.readers.get(item, ()):
            if isinstance(reader, Contract):
                sums = zip(reader.pairs, reader.over, strict=True)
                found |= {partition_of_sum(over) for pair, over in sums if item in pair}
            elif isinstance(reader, Unary | Binary | Select) and reader not in seen:
                seen.add(reader)
                todo.append(reader)
    return found
