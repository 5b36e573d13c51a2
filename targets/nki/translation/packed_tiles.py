"""Tiles of packed convolutions: stacked rows of the input, banded weights, and parts of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from math import prod

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.hbm import Run
from targets.nki.translation.layout import BANK, PARTITIONS
from targets.nki.translation.loads import write_load, write_transfer
from targets.nki.translation.stage import Rows, StageContext, Tile
from targets.nki.translation.text import Lines, product_text, slice_text, sum_text
from targets.nki.translation.transposes import add_border, add_copy, enter_loop
from targets.nki.translation.values import Band, BandedWeights, StackedRows, TilePart, Value


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
    """Rows of an array above each other: one transfer, and one for each step that lacks some of them."""
    assert isinstance(value, StackedRows)
    if partition != value.both or value.steps in context.nest.outer:
        raise UntranslatableError("stacked rows that are not on the partitions")
    if value.load.access.stride(value.inner) == 1:
        return _TurnedRows(context, value, free).make()
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
    for steps, present in _complete_steps(covered):
        part = Atom(f"{value.steps.name}_{steps.start}", len(steps))
        row = Atom(f"{value.steps.name}_rows", len(present))
        first = value.first + steps.start * value.stride + present.start * value.spacing
        terms = [term for term in load.access.terms if term[0] != value.rows]
        terms += [(part, row_stride * value.stride), (row, row_stride * value.spacing)]
        access = make_access(load.access.offset + first * row_stride, terms)
        count = value.inner.size
        write_transfer(
            context,
            replace(load, access=access),
            tile,
            lines=lines,
            part=((value.steps, steps.start, part), *value.box),
            rows=Rows(row.size * count, None, "0", first=present.start * count),
            across=(Run(row, "0", row.size), Run(value.inner, "0", count)),
        )
    return tile


@dataclass(frozen=True)
class _TurnedRows:
    """Stacked rows of an array whose channels are neighbours in HBM: rows are loaded, then transposed.

    Another loop of the array lies on the partitions of what is loaded. A block of it has all rows and
    channels of a step, next to each other.
    """

    context: StageContext
    value: StackedRows
    free: tuple[Atom, ...]

    @cached_property
    def across(self) -> Atom:
        """The loop on the partitions of what is loaded."""
        own = self.value.load.atoms - {self.value.inner, self.value.rows, *self.context.nest.outer}
        fits = [atom for atom in own if atom.size <= PARTITIONS]
        if not fits:
            raise UntranslatableError("rows of neighbouring channels along one loop only")
        return max(fits, key=lambda atom: (atom.size, atom.name))

    @cached_property
    def starts(self) -> dict[Atom, tuple[Atom, int]]:
        """By loop of the array, the loop of the tile and the place in it where the array begins."""
        found = {atom: (atom, 0) for atom in self.value.load.atoms}
        return found | {own: (span, start) for span, start, own in self.value.box}

    @cached_property
    def others(self) -> list[Atom]:
        """The other free loops of what is loaded, as they lie in HBM."""
        fixed = {self.value.inner, self.value.rows, self.across, *self.context.nest.outer}
        return sorted(self.value.load.atoms - fixed, key=lambda a: -self.value.load.access.stride(a))

    def make(self) -> Tile:
        """Return the tile of the stacked rows."""
        context, value, lines = self.context, self.value, self.context.lines(self.value)
        place, start = self.starts[self.across]
        stride = value.load.access.stride
        order = {self.starts[atom][0]: stride(atom) for atom in (*self.others, self.across)}
        order[value.steps] = stride(value.rows) * value.stride
        free = tuple(sorted(order, key=lambda atom: -order[atom]))
        tile = context.new_tile(f"{value.load.buffer.name}_rows", value.both, free, lines)
        for span, first, count in _edges(value, [range(value.steps.size)]):
            with context.rows(lines, value.both) as rows:
                add_border(lines, context.view(tile, rows, free, {span: (str(first), count)}), value.base)
        data, size = self._load(lines), self.across.size
        side = max(one for one in range(1, BANK // size + 1) if value.steps.size % one == 0)
        with ExitStack() as stack:
            loops = {atom: enter_loop(context, stack, lines, atom) for atom in self.others}
            part = enter_loop(context, stack, lines, Atom("part", value.steps.size // side))
            bank = context.names.new("turned")
            shape = f"({value.both.size}, {side}, {size})"
            lines.add(f"{bank} = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.psum)")
            step = context.names.new("i_side")
            with lines.loop(step, side):
                begin = product_text(sum_text(product_text(part, side), step), value.stride)
                rows_text = slice_text(begin, value.both.size // value.inner.size, -1, value.spacing)
                block = ", ".join([":", *loops.values(), rows_text, ":"])
                lines.add(f"nisa.nc_transpose(dst={bank}[:, {step}, :], data={data}[{block}])")
            box = {value.steps: (product_text(part, side), side), place: (str(start), size)}
            fixed = {self.starts[a][0]: sum_text(name, self.starts[a][1]) for a, name in loops.items()}
            with context.rows(lines, value.both) as rows:
                target = context.view(tile, rows, (value.steps, place), box, fixed)
                add_copy(context, lines, target, bank, value.steps.size * size)
        return tile

    def _load(self, lines: Lines) -> str:
        """Load all rows that the steps need, with a border where the array has none."""
        context, value, load = self.context, self.value, self.value.load
        height = value.both.size // value.inner.size
        whole = Atom(
            f"{value.steps.name}_whole",
            (value.steps.size - 1) * value.stride + (height - 1) * value.spacing + 1,
        )
        low, high = max(0, -value.first), min(whole.size, value.rows.size - value.first)
        free = (*self.others, whole, value.inner)
        data = context.new_tile(f"{load.buffer.name}_tile", self.across, free, lines)
        with context.rows(lines, self.across) as rows:
            for first, last in ((0, low), (high, whole.size)):
                if first < last:
                    target = context.view(data, rows, free, {whole: (str(first), last - first)})
                    add_border(lines, target, value.base)
        part = Atom(f"{whole.name}_inside", high - low)
        stride = load.access.stride(value.rows)
        terms = [(part if atom == value.rows else atom, by) for atom, by in load.access.terms]
        access = make_access(load.access.offset + (value.first + low) * stride, terms)
        write_load(context, replace(load, access=access), data, lines, part=((whole, low, part),))
        return data.name


def _complete_steps(covered: Sequence[range]) -> Iterator[tuple[range, range]]:
    """Successive steps that have the same rows, and these rows; steps without any are left out."""
    begin = min((own.start for own in covered if own), default=0)
    end = max((own.stop for own in covered if own), default=0)
    rows = [[row for row, own in enumerate(covered) if step in own] for step in range(begin, end)]
    for present, group in groupby(range(begin, end), key=lambda step: rows[step - begin]):
        steps = [*group]
        if present:
            yield range(steps[0], steps[-1] + 1), range(present[0], present[-1] + 1)


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
    """Weights where rows of the stack meet rows of the result, transposed from the result's channels.

    An engine moves nothing from partition to partition but by transposes. So each row's weights are first
    copied to their places along the free dimension.
    """
    assert isinstance(value, BandedWeights)
    nest, lines = context.nest, context.lines(value)
    if partition != value.both or (nest.is_ragged(value.outer) and value.outer == nest.row):
        raise UntranslatableError("weights that are not on the partitions")
    width, count = nest.width(value.outer), value.both.size
    bands = _write_bands(context, value, lines)
    tile = context.new_tile("weights", partition, (value.groups, value.result), lines)
    side = max(1, BANK // value.result.size)
    for first in range(0, value.groups.size, side):
        groups = range(first, min(first + side, value.groups.size))
        bank = context.names.new("turned")
        shape = f"({count}, {len(groups)}, {value.result.size})"
        lines.add(f"{bank} = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.psum)")
        for group, step in product(groups, range(value.result.size // value.outer.size)):
            target = f"{bank}[:, {group - first}, {step * width}:{step * width + width}]"
            lines.add(f"nisa.nc_transpose(dst={target}, data={bands}[:, {step}, {group}, :, :])")
        place = f"{tile.name}[:, {first}:{groups.stop}, :]"
        add_copy(context, lines, place, bank, len(groups) * value.result.size)
    return tile


def _write_bands(context: StageContext, value: BandedWeights, lines: Lines) -> str:
    """The weights at their places: the result's channels on the partitions, then steps, groups and rows."""
    width, count, places = context.nest.width(value.outer), value.inner.size, len(value.taps[0])
    steps, height = value.result.size // value.outer.size, value.both.size // value.inner.size
    walked = (Atom("tap_places", places), Atom("tap_rows", len(value.taps)))
    source = _find_taps(context, value, walked) or _gather_taps(context, value, lines, walked)
    name = context.names.new("bands")
    sizes = (width, steps, value.groups.size, height, count)
    context.used_bytes += 4 * prod(sizes[1:])
    lines.add(f"{name} = nl.ndarray({sizes}, dtype=nl.float32, buffer=nl.sbuf)")
    if sum(map(len, value.bands)) * places < steps * height * value.groups.size:
        lines.add(f"nisa.memset(dst={name}, value=0.0)")
    for step in range(steps):
        found = [(at, band) for at, own in enumerate(value.bands) for band in own if band.step == step]
        for (at, band), (last, end) in _neighbours(found):
            groups = f"{band.group}:{band.group + places}"
            target = f"{name}[:, {step}, {groups}, {band.row}:{end.row + 1}, :]"
            box = {walked[1]: (str(at), last + 1 - at)}
            with context.rows(lines, value.outer) as rows:
                taken = context.view(source, rows, (*walked, value.inner), box)
                add_copy(context, lines, target, taken, places * (last + 1 - at) * count)
    return name


def _find_taps(context: StageContext, value: BandedWeights, walked: tuple[Atom, Atom]) -> Tile | None:
    """All weights as parts of one tile, if its loops walk the places and rows of taps in even steps."""
    taps = [[context.tile(tap, value.outer) for tap in own if tap is not None] for own in value.taps]
    first, at = taps[0][0] if taps[0] else None, [[dict(tile.places) for tile in own] for own in taps]
    if first is None or any(len(own) != walked[0].size for own in taps):
        return None
    if any(replace(tile, places=first.places) != first for own in taps for tile in own):
        return None
    windows: dict[Atom, tuple[Atom, int, int]] = {}
    for loop, start in first.places:
        if not isinstance(start, int) or any(not isinstance(one.get(loop), int) for own in at for one in own):
            return None
        places = [[int(one[loop]) - start for one in own] for own in at]
        steps = places[0][-1] // max(1, walked[0].size - 1), places[-1][0] // max(1, walked[1].size - 1)
        is_even = all(
            place == column * steps[0] + row * steps[1]
            for row, own in enumerate(places)
            for column, place in enumerate(own)
        )
        if not is_even or min(steps) < 0 or all(steps):
            return None
        for own_loop, step in zip(walked, steps, strict=True):
            if step:
                windows[loop] = own_loop, start, step
    owns = {own for own, _, _ in windows.values()}
    if len(owns) != len(windows) or any(own.size > 1 and own not in owns for own in walked):
        return None
    return replace(
        first,
        free=tuple(windows[atom][0] if atom in windows else atom for atom in first.free),
        places=tuple(place for place in first.places if place[0] not in windows),
        windows=(*first.windows, *windows.values()),
    )


def _neighbours(found: Sequence[tuple[int, Band]]) -> Iterator[tuple[tuple[int, Band], tuple[int, Band]]]:
    """The first and the last of successive taps that meet successive rows of one group."""

    def key(place: int) -> tuple[int, int]:
        at, band = found[place]
        return at - band.row, band.group

    for _, places in groupby(range(len(found)), key=key):
        own = [*places]
        yield found[own[0]], found[own[-1]]


def _gather_taps(
    context: StageContext, value: BandedWeights, lines: Lines, walked: tuple[Atom, Atom]
) -> Tile:
    """All weights in one tile: the result's channels on the partitions, then places, taps and channels."""
    width, count = context.nest.width(value.outer), value.inner.size
    name = context.names.new("taps")
    sizes = (width, *(loop.size for loop in walked), count)
    context.used_bytes += 4 * prod(sizes[1:])
    lines.add(f"{name} = nl.ndarray({sizes}, dtype=nl.float32, buffer=nl.sbuf)")
    for at, own in enumerate(value.taps):
        for place, tap in enumerate(own):
            target = f"{name}[:, {place}, {at}, :]"
            if tap is None:
                add_border(lines, target, 0.0)
                continue
            made = context.tile(tap, value.outer)
            with context.rows(lines, value.outer) as rows:
                add_copy(context, lines, target, context.view(made, rows, (value.inner,)), count)
    return Tile(name, value.outer, (*walked, value.inner), 1)
