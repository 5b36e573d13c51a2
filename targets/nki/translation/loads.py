"""Tiles of elements that are loaded from HBM: as they lie, backwards, or over two loops of the partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.hbm import Run, array_text, transfer_text
from targets.nki.translation.layout import PARTITIONS
from targets.nki.translation.stage import Box, Rows, StageContext, Tile
from targets.nki.translation.text import Lines, product_text, slice_text, sum_text
from targets.nki.translation.values import Contract, Load, Moments, PairedLoad, Value

MAX_LOOPS = 4
"""Loops that an instruction walks in each partition."""
_MOST_PARTS = 32
_LONG_PART = 512
"""Parts of a tile, and float32 in one partition of each, up to and from which they are loaded one by one."""
_MOST_FIRST = 4096
"""float32 per partition up to which rows of products are loaded before all other operands."""
_MOST_SAME = 64
"""float32 per partition up to which all rows are loaded at once, if they are the same in outer loops."""


def make_load(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """Elements of an array in HBM; the same ones in all partitions if the loop there does not move them."""
    assert isinstance(value, Load)
    if value.access.backward:
        return make_turned(context, context.forward_load(value), value.access.backward, partition, free)
    if (whole := context.whole_runs(value, partition, free)) is not None:
        tile = context.tile(whole[0], partition)
        return tile.at(*whole[1:])
    free = tuple(sorted(free, key=lambda atom: -value.access.stride(atom)))  # in runs, as they lie in HBM
    is_held = partition == context.nest.row and (
        _is_same_outside(context, value, free) or _is_first_of_products(context, value, free)
    )
    lines = context.levels[0] if is_held else context.lines(value)
    tile = context.new_tile(
        f"{value.buffer.name}_tile",
        partition,
        free,
        lines,
        dtype=value.buffer.dtype,
        chunks=context.nest.row_tiles if is_held else None,
    )
    write_load(context, value, tile, lines, around=_read_in_parts(context, value, free))
    return tile if value.buffer.dtype == "float32" else _widened(context, value, tile)


def _read_in_parts(context: StageContext, load: Value, free: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """The outermost loop of a long tile if statistics are taken of one part of it after the other.

    Each part may then come alone, and the first ones are worked on while the others come.
    """
    is_even = len(free) > 1 and free[0].size <= _MOST_PARTS and context.width(None, free[1:]) >= _LONG_PART
    is_read = any(isinstance(reader, Moments) for reader in context.readers.get(load, ()))
    return free[:1] if is_even and is_read else ()


def _is_same_outside(context: StageContext, load: Load, free: tuple[Atom, ...]) -> bool:
    """Whether a few numbers in each row do not vary with the outer loops: all rows are then loaded once."""
    nest = context.nest
    if nest.row not in load.atoms or load.atoms & {*nest.outer} or not nest.outer:
        return False
    return nest.row_tiles > 1 and nest.row_tiles * prod(nest.width(atom) for atom in free) <= _MOST_SAME


def _is_first_of_products(context: StageContext, load: Load, free: tuple[Atom, ...]) -> bool:
    """Whether products need some rows at once, and other operands before the loop over rows.

    All rows are then loaded first: they would wait for all of these operands otherwise.
    """
    nest, readers = context.nest, context.readers.get(load, ())
    if nest.row not in load.atoms or nest.outer or nest.row_tiles == 1 or nest.row_tile != PARTITIONS:
        return False
    is_short = nest.row_tiles * prod(nest.width(atom) for atom in free) <= _MOST_FIRST
    is_operand = bool(readers) and all(isinstance(reader, Contract) for reader in readers)
    return is_operand and is_short and any(map(_is_before_rows(context, load), readers))


@contextmanager
def _enter_groups(context: StageContext, lines: Lines, chunks: int, width: int) -> Iterator[tuple[str, int]]:
    """Go through chunks in groups that are long together; yield the first chunk of a group, and how many.

    A transpose or a product of the first ones then begins while others are loaded.
    """
    most = max(1, _LONG_PART // width)
    count = max(group for group in range(1, most + 1) if chunks % group == 0)
    if 2 * count <= most or count == chunks:
        yield "0", chunks
        return
    name = context.names.new("i_part")
    with lines.loop(name, chunks // count):
        yield product_text(name, count), count


def _is_before_rows(context: StageContext, load: Load) -> Callable[[Value], bool]:
    return lambda reader: any(
        operand is not load and context.nest.level(operand) == 0 for operand in reader.operands
    )


def make_paired_load(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """A load over two loops that are one on the partitions."""
    assert isinstance(value, PairedLoad)
    if partition != value.both or value.load.buffer.dtype != "float32":
        raise UntranslatableError("loops that share the partitions, and are not on them")
    load, inner, lines = value.load, value.inner, context.lines(value)
    free = tuple(sorted(free, key=lambda atom: -load.access.stride(atom)))
    tile = context.new_tile(f"{load.buffer.name}_tile", partition, free, lines)
    count = context.nest.row_tile // inner.size
    first = product_text("i_row", count) if context.nest.row_tiles > 1 else "0"
    across = (Run(value.outer, first, count), Run(inner, "0", inner.size))
    with context.rows(lines, partition) as rows:
        around = _read_in_parts(context, value, free)
        write_transfer(context, load, tile, lines=lines, part=(), rows=rows, across=across, around=around)
    return tile


def make_turned(
    context: StageContext,
    value: Value,
    loops: frozenset[Atom],
    partition: Atom | None,
    free: tuple[Atom, ...],
) -> Tile:
    """A value with some loops going the other way; an engine reads them backwards."""
    data = context.tile(value, partition)
    return turn_tile(context, data, loops, context.lines(value), free)


def turn_tile(
    context: StageContext, data: Tile, loops: frozenset[Atom], lines: Lines, free: tuple[Atom, ...]
) -> Tile:
    """A tile's elements in a tile of its own, with some loops going the other way."""
    if data.partition in loops or context.nest.row in loops or data.places:
        raise UntranslatableError("rows that are read backwards")
    tile = context.new_tile("turned_around", data.partition, free, lines)
    sizes = [context.nest.width(atom) for atom in data.free]
    strides = [prod(sizes[at + 1 :]) for at in range(len(sizes))]
    whole = prod(sizes) * data.chunks
    with context.rows(lines, data.partition) as rows:
        offset = sum(
            stride * (size - 1)
            for atom, stride, size in zip(data.free, strides, sizes, strict=True)
            if atom in loops
        )
        chunk = rows.chunk if rows.chunk and data.chunks > 1 else "0"
        start = sum_text(offset, product_text(chunk, prod(sizes)))
        by_atom = dict(zip(data.free, strides, strict=True))
        pairs = "".join(
            f", [{-by_atom[atom] if atom in loops else by_atom[atom]}, {context.nest.width(atom)}]"
            for atom in free
        )
        source = f"{data.name}.ap([[{whole}, {rows.count}]{pairs}], offset={start})"
        lines.add(f"nisa.tensor_copy(dst={context.view(tile, rows, free)}, src={source})")
    return tile


def _widened(context: StageContext, value: Load, tile: Tile) -> Tile:
    """The same elements as float32: all arithmetic is done in it."""
    lines = context.lines(value)
    wide = context.new_tile(f"{value.buffer.name}_wide", tile.partition, tile.free, lines)
    with context.rows(lines, tile.partition) as rows:
        target, source = (context.view(item, rows, tile.free) for item in (wide, tile))
        lines.add(f"nisa.tensor_copy(dst={target}, src={source})")
    return wide


def write_load(
    context: StageContext,
    load: Load,
    tile: Tile,
    lines: Lines,
    part: tuple[tuple[Atom, int, Atom], ...] = (),
    *,
    around: tuple[Atom, ...] = (),
) -> None:
    """Load a value into a tile, or into a part of it: by loop the first element, and the part's own loop.

    One transfer walks only a few loops: the outermost of more, and those `around`, are loops of the kernel.
    """
    is_long = context.width(None, tile.free) >= _LONG_PART
    columns = _columns_of_products(context, load, tile)
    if columns is not None and not part:
        name = context.names.new("i_part")
        with lines.loop(name, columns.size // _LONG_PART), context.rows(lines, tile.partition) as rows:
            limits = {columns: (product_text(name, _LONG_PART), _LONG_PART)}
            own = replace(rows, limits={**rows.limits, **limits})
            write_transfer(context, load, tile, lines=lines, part=part, rows=own, around=around)
        return
    if is_long and tile.chunks > 1 and tile.partition == context.nest.row:
        _write_rows_first(context, load, tile, lines, part=part)
        return
    if tile.chunks == 1 or is_long:
        with context.rows(lines, tile.partition) as rows:
            write_transfer(context, load, tile, lines=lines, part=part, rows=rows, around=around)
        return
    assert tile.partition is not None
    full, rest = divmod(tile.partition.size, PARTITIONS)
    chunk = Atom(f"{tile.partition.name}_chunk", full)
    step = PARTITIONS * load.access.stride(tile.partition)
    whole = replace(load, access=make_access(load.access.offset, [*load.access.terms, (chunk, step)]))
    with _enter_groups(context, lines, full, context.width(None, tile.free)) as (first, count):
        chunks = Rows(PARTITIONS, slice_text(first, count, -1), "0")
        runs = (Run(chunk, first, count),)
        write_transfer(context, whole, tile, lines=lines, part=part, rows=chunks, chunks=runs)
    if rest:
        last = Rows(rest, str(full), str(full * PARTITIONS))
        write_transfer(context, load, tile, lines=lines, part=part, rows=last)


def _write_rows_first(
    context: StageContext,
    load: Load,
    tile: Tile,
    lines: Lines,
    *,
    part: tuple[tuple[Atom, int, Atom], ...],
) -> None:
    """Load all tiles of rows, before the loop over them."""
    assert tile.partition is not None
    full, rest = divmod(tile.partition.size, PARTITIONS)
    name = context.names.new("i_chunk")
    with lines.loop(name, full):
        rows = Rows(PARTITIONS, name, product_text(name, PARTITIONS))
        write_transfer(context, load, tile, lines=lines, part=part, rows=rows)
    if rest:
        rows = Rows(rest, str(full), str(full * PARTITIONS))
        write_transfer(context, load, tile, lines=lines, part=part, rows=rows)


def _columns_of_products(context: StageContext, load: Load, tile: Tile) -> Atom | None:
    """The columns of a long operand of products, which need all of its chunks for one part of them first."""
    readers = context.readers.get(load, ())
    if tile.chunks == 1 or len(tile.free) != 1 or not readers:
        return None
    (columns,) = tile.free
    is_cut = columns.size > _LONG_PART and columns.size % _LONG_PART == 0 and columns != context.nest.row
    return columns if is_cut and all(isinstance(reader, Contract) for reader in readers) else None


def write_transfer(
    context: StageContext,
    load: Load,
    tile: Tile,
    *,
    lines: Lines,
    part: tuple[tuple[Atom, int, Atom], ...],
    rows: Rows,
    chunks: tuple[Run, ...] = (),
    across: tuple[Run, ...] = (),
    around: tuple[Atom, ...] = (),
) -> None:
    """Write one transfer, and loops around it if it would walk too many, or has some anyway.

    `across` has the loops that are one on the partitions, if there are several.
    """
    boxes: Box = {**rows.limits, **{atom: (str(first), own.size) for atom, first, own in part}}
    owns = {atom: own for atom, _, own in part}
    with ExitStack() as stack:
        whole = [atom for atom in tile.free if atom not in owns and atom != context.nest.row]
        most = max(len(around), len(tile.free) + len(chunks) + len(across[1:]) - MAX_LOOPS)
        fixed = {atom: context.names.new("i_load") for atom in whole[:most]}
        for atom, name in fixed.items():
            stack.enter_context(lines.loop(name, atom.size))
        walked = tuple(atom for atom in tile.free if atom not in fixed)
        runs: list[Run | int] = [*(across or _partition_runs(load, tile, rows)), *chunks]
        runs += [
            Run(owns[atom], "0", owns[atom].size) if atom in owns else context.run(atom, boxes)
            for atom in walked
        ]
        runs += [1] if not tile.free else []
        source = array_text(load.buffer, load.access, runs=runs, fixed={**context.variables, **fixed})
        target = context.view(tile, rows, walked, boxes, fixed)
        lines.add(transfer_text(target, source))


def _partition_runs(load: Load, tile: Tile, rows: Rows) -> list[Run | int]:
    """How a transfer walks the partitions."""
    if tile.partition is None:
        return [1]
    return [Run(tile.partition, rows.start if tile.partition in load.atoms else "0", rows.count)]
