"""Tiles of values that combine elements: reductions, recurrences, assembled parts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from math import prod

from targets.nki.translation.access import Atom
from targets.nki.translation.layout import blocker
from targets.nki.translation.loads import write_load
from targets.nki.translation.stage import Rows, StageContext, Tile
from targets.nki.translation.text import Lines, float_text
from targets.nki.translation.transposes import add_border, add_copy, enter_loop
from targets.nki.translation.values import Assembled, KeptRows, Load, Number, Part, Reduce, Scan, Value

_LONG_SUM = 2048
"""Elements from which a sum is added up in parts."""
_SHORT_RUN = 8
"""Elements in a row below which a part of a tile is copied by an engine."""
_FEW = 8
"""Elements up to which a reduction over loops that are not innermost is a chain of instructions."""


def make_reduction(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """A value combined over free loops."""
    assert isinstance(value, Reduce)
    if partition is None and (spread := _over_partitions(context, value)) is not None:
        return spread
    data = context.operand(value.value, partition)
    if (value, partition) in context.tiles:
        return context.tiles[value, partition]  # whoever made the elements added them up on the way
    inner = tuple(sorted(value.over, key=context.nest.rank))
    if not data.in_psum and data.free[-len(inner) :] != inner and prod(atom.size for atom in inner) <= _FEW:
        return _make_chain(context, value, data, free)
    lines = context.lines(value)
    width = context.width(partition, data.free)
    tile = context.new_tile(_REDUCED[value.function], partition, free, lines)
    is_row_sum = value.function == "add" and not free and not data.places and len(data.free) == 1
    if is_row_sum and width > _LONG_SUM:
        _add_up_in_parts(context, data, tile, lines=lines)
        return tile
    if is_row_sum and context.prefers_scalar(width):
        _add_up_by_scalar(context, data, tile, lines=lines)
        return tile
    walked = data.walked
    kept = [atom for atom in walked if atom not in value.over]
    last = [atom for atom in walked if atom in value.over]
    with context.rows(lines, partition) as rows:
        view = context.view(data, rows, walked)
        if [*kept, *last] != walked:
            places = [0, *(1 + walked.index(atom) for atom in (*kept, *last))]
            view += f".permute({places})"
        axes = tuple(range(1 + len(kept), 1 + len(kept) + len(last)))
        axis = str(axes[0]) if len(axes) == 1 else str(axes)
        target = context.view(tile, rows, free)
        if not is_row_sum:
            context.busy["vector"] += width
        lines.add(f"nisa.tensor_reduce(dst={target}, op=nl.{value.function}, data={view}, axis={axis})")
    return tile


def make_kept_rows(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """The tile in which an earlier stage left results."""
    assert isinstance(value, KeptRows)
    row, *inside = value.loops
    if partition != row:
        return context.transpose(context, value, partition, free)
    return Tile(value.name, row, tuple(inside), 1)


def _add_up_in_parts(context: StageContext, data: Tile, total: Tile, *, lines: Lines) -> None:
    """Add up each partition's elements in parts, and then those: long sums in float32 lose digits."""
    context.busy["vector"] += context.width(data.partition, data.free)
    (loop,) = data.free
    size = context.nest.width(loop)
    parts = max(part for part in range(1, int(size**0.5) + 1) if size % part == 0)
    sums = Atom(f"{loop.name}o", parts)
    partial = context.new_tile("part_totals", data.partition, (sums,), lines)
    with context.rows(lines, data.partition) as rows:
        source = f"{context.view(data, rows, data.free)}.reshape_dim(1, ({parts}, {size // parts}))"
        between = context.view(partial, rows, (sums,))
        lines.add(f"nisa.tensor_reduce(dst={between}, op=nl.add, data={source}, axis=2)")
        result = context.view(total, rows, ())
        lines.add(f"nisa.tensor_reduce(dst={result}, op=nl.add, data={between}, axis=1)")


def _add_up_by_scalar(context: StageContext, data: Tile, total: Tile, *, lines: Lines) -> None:
    """Add up each partition's elements by ScalarE, which copies them on the way."""
    copies = context.new_tile("copies", data.partition, data.free, lines)
    with context.rows(lines, data.partition) as rows:
        source, target = (context.view(item, rows, data.free) for item in (data, copies))
        result = context.view(total, rows, ())
        lines.add(
            f"nisa.activation_reduce(dst={target}, op=nl.copy, data={source}, reduce_op=nl.add, "
            f"reduce_res={result})"
        )


_REDUCED = {"add": "total", "multiply": "total_product", "maximum": "largest", "minimum": "smallest"}


def _over_partitions(context: StageContext, value: Reduce) -> Tile | None:
    """A reduction to one partition of a value that is long: first in every partition, then over these."""
    rest = [atom for atom in value.over if blocker(value.value, atom) is None]
    longest = max(rest, key=lambda atom: atom.size, default=None)
    if isinstance(value.value, KeptRows):
        longest = value.value.loops[0]
    others = tuple(atom for atom in value.over if atom != longest)
    if longest is None or not others or context.nest.free_atoms(value, None):
        return None
    partial = Reduce(value.node, value.function, value.value, others)
    row = context.transpose(context, partial, None, (longest,))
    lines = context.lines(value)
    tile = context.new_tile(_REDUCED[value.function], None, (), lines)
    lines.add(f"nisa.tensor_reduce(dst={tile.name}, op=nl.{value.function}, data={row.name}, axis=1)")
    return tile


def _make_chain(context: StageContext, value: Reduce, data: Tile, free: tuple[Atom, ...]) -> Tile:
    """A reduction over a few elements: one instruction for each after the first."""
    lines = context.lines(value)
    tile = context.new_tile(_REDUCED[value.function], data.partition, free, lines)
    places = [
        dict(zip(value.over, map(str, at), strict=True))
        for at in product(*(range(atom.size) for atom in value.over))
    ]
    with context.rows(lines, data.partition) as rows:
        target = context.view(tile, rows, free)
        texts = [context.view(data, rows, free, fixed=place) for place in places]
        for at, text in enumerate(texts[1:]):
            before = target if at else texts[0]
            lines.add(
                f"nisa.tensor_tensor(dst={target}, data1={before}, data2={text}, op=nl.{value.function})"
            )
    return tile


def make_scan(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """A recurrence along a free loop, for one element of the other free loops after the other."""
    assert isinstance(value, Scan)
    factor, term = context.tile(value.factor, partition), context.tile(value.term, partition)
    initial = value.initial.number if isinstance(value.initial, Number) else None
    start = None if initial is not None else context.tile(value.initial, partition)
    lines = context.lines(value)
    tile = context.new_tile("states", partition, free, lines)
    others = [atom for atom in free if atom != value.along]
    with context.rows(lines, partition) as rows, ExitStack() as stack:
        fixed = {atom: enter_loop(context, stack, lines, atom) for atom in others}
        texts = [
            context.view(item, rows, (value.along,), fixed={a: v for a, v in fixed.items() if a in item.free})
            for item in (tile, factor, term)
        ]
        first = _column(context, start, rows, fixed=fixed) if start else float_text(initial or 0.0)
        lines.add(
            f"nisa.tensor_tensor_scan(dst={texts[0]}, data0={texts[1]}, data1={texts[2]}, initial={first}, "
            "op0=nl.multiply, op1=nl.add)"
        )
    return tile


def _column(context: StageContext, tile: Tile, rows: Rows, *, fixed: dict[Atom, str]) -> str:
    """One number for each partition, of a tile that may have free loops."""
    boxes = {atom: (fixed[atom], 1) for atom in tile.free}
    return context.view(tile, rows, tile.free, boxes)


def make_assembled(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """Parts put into one tile; loads go straight to their place."""
    assert isinstance(value, Assembled)
    lines = context.lines(value)
    cut = {*context.nest.outer, *([context.nest.row] if context.nest.row_tiles > 1 else [])}
    if any(atom in cut for part in value.parts for atom, _, _ in part.box):
        raise context.stored_needed(value)  # a tile holds some places of the loop only
    tile = context.new_tile("joined", partition, free, lines)
    if value.base is not None:
        for boxes in _around(value):
            with context.rows(lines, partition) as rows:
                target = context.view(tile, rows, free, boxes)
                add_border(lines, target, value.base)
    for part in value.parts:
        is_held = part.value in context.windows
        in_place = _loads_in_place(part, partition, free)
        if isinstance(part.value, Load) and not is_held and in_place:
            write_load(context, part.value, tile, lines, part.box)
            continue
        boxes = {atom: (str(first), own.size) for atom, first, own in part.box}
        owns = {own: atom for atom, _, own in part.box}
        if not isinstance(part.value, Number) and context.lines(part.value) is lines:
            _set_aside(context, tile, part, partition=partition)
        source = None if isinstance(part.value, Number) else context.tile(part.value, partition)
        if (part.value, partition) in context.set_aside and source is context.set_aside[
            part.value, partition
        ]:
            continue
        with context.rows(lines, partition) as rows:
            target = context.view(tile, rows, free, boxes)
            if source is None:
                assert isinstance(part.value, Number)
                add_border(lines, target, part.value.number)
                continue
            inside = {atom: own for own, atom in owns.items()}
            wanted = [inside.get(atom, atom) for atom in free]
            add_copy(
                context, lines, target, context.view(source, rows, wanted), context.width(partition, wanted)
            )
    return tile


def _set_aside(context: StageContext, tile: Tile, part: Part, *, partition: Atom | None) -> None:
    """Have a part's value written to its place in the tile, if it has all of the tile's loops."""
    inside = {atom: own for atom, _, own in part.box}
    free = tuple(inside.get(atom, atom) for atom in tile.free)
    if not context.is_single_use(part.value) or context.nest.free_atoms(part.value, partition) != free:
        return
    starts = tuple((own, first, 1) for _, first, own in part.box)
    context.set_aside[part.value, partition] = replace(tile, free=free, windows=starts)


def _around(value: Assembled) -> list[dict[Atom, tuple[str, str | int]]]:
    """Boxes that hold all that no part covers: the edges around a single part, else everything."""
    if len(value.parts) != 1:
        return [{}]
    found: list[dict[Atom, tuple[str, str | int]]] = []
    for atom, first, own in value.parts[0].box:
        last = first + own.size
        found += [{atom: ("0", first)}] if first else []
        found += [{atom: (str(last), atom.size - last)}] if last < atom.size else []
    return found


def _loads_in_place(part: Part, partition: Atom | None, free: Sequence[Atom]) -> bool:
    """Whether a part is loaded to its place: as float32, and not by single elements that lie apart there."""
    load = part.value
    if not isinstance(load, Load) or load.buffer.dtype != "float32":
        return False
    if any(atom == free[-1] and own.size < _SHORT_RUN for atom, _, own in part.box):
        return False
    if partition is None or load.access.stride(partition) != 1:
        return True
    return not any(stride > 1 for _, stride in load.access.terms)
