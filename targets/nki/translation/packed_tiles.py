"""Tiles of packed convolutions: stacked rows of the input, banded weights, and parts of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.loads import write_transfer
from targets.nki.translation.stage import Rows, StageContext, Tile
from targets.nki.translation.text import Lines
from targets.nki.translation.transposes import add_border, add_copy
from targets.nki.translation.values import BandedWeights, StackedRows, TilePart, Value


def make_part(context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]) -> Tile:
    """A part of a tile."""
    assert isinstance(value, TilePart)
    tile = context.tile(value.whole, partition)
    names = {span: own for span, own, _, _ in value.windows}
    return replace(
        tile,
        free=tuple(names.get(atom, atom) for atom in tile.free),
        places=value.places,
        windows=tuple((own, start, step) for _, own, start, step in value.windows),
    )


def make_stacked_rows(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """Rows of an array above each other: a transfer for each row of the stack."""
    assert isinstance(value, StackedRows)
    if partition != value.both or value.steps in context.nest.outer:
        raise UntranslatableError("stacked rows that are not on the partitions")
    load, lines = value.load, context.lines(value)
    stride, row_stride = value.load.access.stride, value.load.access.stride(value.rows)
    owns = {span: own for span, _, own in value.box}
    order = {value.steps: row_stride * value.stride} | {
        atom: stride(owns.get(atom, atom)) for atom in free if atom != value.steps
    }
    free = tuple(sorted(free, key=lambda atom: -order[atom]))
    tile = context.new_tile(f"{load.buffer.name}_rows", partition, free, lines)
    covered = [_covered(value, row) for row in range(value.both.size // value.inner.size)]
    with context.rows(lines, partition) as rows:
        for span, start, count in _edges(value, covered):
            target = context.view(tile, rows, free, {span: (str(start), count)})
            add_border(lines, target, value.base)
    for row, steps in enumerate(covered):
        if not steps:
            continue
        part = Atom(f"{value.steps.name}_{row}", len(steps))
        first = value.first + steps.start * value.stride + row * value.spacing
        terms = [
            (partition if atom == value.inner else atom, by)
            for atom, by in load.access.terms
            if atom != value.rows
        ]
        access = make_access(
            load.access.offset + first * row_stride, [*terms, (part, row_stride * value.stride)]
        )
        box = ((value.steps, steps.start, part), *value.box)
        rows = Rows(value.inner.size, None, "0", first=row * value.inner.size)
        write_transfer(context, replace(load, access=access), tile, lines=lines, part=box, rows=rows)
    return tile


def _covered(value: StackedRows, row: int) -> range:
    """The steps at which the array has a row of the stack."""
    first = value.first + row * value.spacing
    low = max(0, -(first // value.stride))
    last = (value.rows.size - 1 - first) // value.stride
    return range(low, max(low, min(value.steps.size, last + 1)))


def _edges(value: StackedRows, covered: Sequence[range]) -> list[tuple[Atom, int, int]]:
    """Where a number is around the array: the loop, the first place, and how many."""
    begin, end = max(own.start for own in covered), min(own.stop for own in covered)
    size = value.steps.size
    found = [(value.steps, 0, min(begin, size))] if begin else []
    found += [(value.steps, max(end, begin), size - max(end, begin))] if max(end, begin) < size else []
    for span, start, own in value.box:
        last = start + own.size
        found += [(span, 0, start)] if start else []
        found += [(span, last, span.size - last)] if last < span.size else []
    return found


def make_banded_weights(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """Weights where rows of the stack meet rows of the result: gathered once, then copied to their places."""
    assert isinstance(value, BandedWeights)
    nest, lines = context.nest, context.lines(value)
    if partition != value.both or (nest.is_ragged(value.outer) and value.outer == nest.row):
        raise UntranslatableError("weights that are not on the partitions")
    places = len(value.taps[0])
    width = nest.width(value.outer)
    gathered = _gather_taps(context, value, lines)
    tile = context.new_tile("weights", partition, (value.groups, value.result), lines)
    count = value.inner.size
    blocks = {(band.row, band.step, band.group) for own in value.bands for band in own}
    results = value.result.size // value.outer.size
    height = value.both.size // count
    if len(blocks) * places < height * value.groups.size * results:
        lines.add(f"nisa.memset(dst={tile.name}, value=0.0)")
    for at, own in enumerate(value.bands):
        for band in own:
            rows = Rows(count, None, "0", first=band.row * count)
            box = {
                value.groups: (str(band.group), places),
                value.result: (str(band.step * width), width),
            }
            target = context.view(tile, rows, (value.groups, value.result), box)
            lines.add(f"nisa.dma_copy(dst={target}, src={gathered}[:, {at}, :, :])")
    return tile


def _gather_taps(context: StageContext, value: BandedWeights, lines: Lines) -> str:
    """All weights in one tile: channels on the partitions, then taps, then the result's channels."""
    depth, places, width = len(value.taps), len(value.taps[0]), context.nest.width(value.outer)
    name = context.names.new("taps")
    sizes = (value.inner.size, depth, places, width)
    context.used_bytes += 4 * prod(sizes[1:])
    shape = ", ".join(map(str, sizes))
    lines.add(f"{name} = nl.ndarray(({shape}), dtype=nl.float32, buffer=nl.sbuf)")
    for at, own in enumerate(value.taps):
        for place, tap in enumerate(own):
            target = f"{name}[:, {at}, {place}, :]"
            if tap is None:
                lines.add(f"nisa.memset(dst={target}, value=0.0)")
                continue
            made = context.tile(tap, value.inner)
            with context.rows(lines, value.inner) as rows:
                add_copy(context, lines, target, context.view(made, rows, (value.outer,)), width)
    return name
