"""Tiles of packed convolutions: banded weights, and parts of tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, product
from math import prod

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.hbm import Run
from targets.nki.translation.layout import BANK, SHORT_RUN
from targets.nki.translation.loads import write_transfer
from targets.nki.translation.stage import Rows, StageContext, Tile
from targets.nki.translation.text import Lines
from targets.nki.translation.transposes import add_border, add_copy
from targets.nki.translation.values import Band, BandedWeights, Load, TilePart, Value


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


def make_banded_weights(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """Weights where rows of the stack meet rows of the result.

    They are loaded to their places if the result's channels are neighbours in HBM. Else they are transposed
    from these channels. An engine moves nothing from partition to partition but by transposes, so each row's
    weights are first copied to their places along the free dimension.
    """
    assert isinstance(value, BandedWeights)
    nest, lines = context.nest, context.lines(value)
    if partition != value.both or (nest.is_ragged(value.outer) and value.outer == nest.row):
        raise UntranslatableError("weights that are not on the partitions")
    loaded = _load_bands(context, value, lines)
    if loaded is not None:
        return loaded
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


def _load_bands(context: StageContext, value: BandedWeights, lines: Lines) -> Tile | None:
    """All weights of single rows of results, by a transfer for each product; None for short runs in HBM.

    Those of several rows would lie between each other, and their transfers would wait for each other.
    """
    found = _find_even_taps(value)
    if found is None or value.result.size > value.outer.size:
        return None
    first, (by_row, by_place) = found
    count, places = value.inner.size, len(value.taps[0])
    tile = context.new_tile("weights", value.both, (value.groups, value.result), lines)
    if len(value.taps) * places < value.both.size // count * value.groups.size:
        add_border(lines, tile.name, 0.0)
    bands = [(at, band) for at, own in enumerate(value.bands) for band in own]
    for (at, band), (last, _) in _neighbours(bands):
        row, place = Atom("tap_rows", last + 1 - at), Atom(f"{value.groups.name}_{band.group}", places)
        inner = value.inner, first.access.stride(value.inner)
        terms = [(row, by_row), inner, (place, by_place), (value.result, 1)]
        write_transfer(
            context,
            replace(first, access=make_access(first.access.offset + at * by_row, terms)),
            tile,
            lines=lines,
            part=((value.groups, band.group, place),),
            rows=Rows(row.size * count, None, "0", first=band.row * count),
            across=(Run(row, "0", row.size), Run(value.inner, "0", count)),
        )
    return tile


def _find_even_taps(value: BandedWeights) -> tuple[Load, tuple[int, int]] | None:
    """The first tap, and how far the next row's and the next place's are in HBM, if all are evenly apart.

    None if their channels are no long runs there.
    """
    taps = [[tap for tap in own if isinstance(tap, Load)] for own in value.taps]
    places = len(value.taps[0])
    if any(len(own) != places for own in taps):
        return None
    first, last = taps[0][0], taps[-1][-1]
    by_row = (last.access.offset - taps[0][-1].access.offset) // max(1, len(taps) - 1)
    by_place = (last.access.offset - taps[-1][0].access.offset) // max(1, places - 1)
    is_even = all(
        (tap.buffer, tap.access.terms) == (first.buffer, first.access.terms)
        and tap.access.offset == first.access.offset + row * by_row + place * by_place
        for row, own in enumerate(taps)
        for place, tap in enumerate(own)
    )
    is_even &= by_row >= 0 and by_place >= 0
    is_long = first.access.stride(value.outer) == 1 and value.outer.size >= SHORT_RUN
    is_plain = first.buffer.dtype == "float32" and first.atoms == {value.inner, value.outer}
    return (first, (by_row, by_place)) if is_even and is_long and is_plain else None


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
