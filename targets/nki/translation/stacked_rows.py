"""Tiles of stacked rows, which packed convolutions read: loaded, or transposed if channels are neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import prod

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.hbm import Run, array_text, transfer_text
from targets.nki.translation.layout import BANK, PARTITIONS
from targets.nki.translation.loads import MAX_LOOPS, write_load, write_transfer
from targets.nki.translation.stage import Rows, StageContext, Tile
from targets.nki.translation.text import Lines, product_text, slice_text, sum_text
from targets.nki.translation.transposes import add_border, add_copy, enter_loop
from targets.nki.translation.values import StackedRows, Value


def make_stacked_rows(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """Rows of an array above each other: one transfer, and one for each step that lacks some of them."""
    assert isinstance(value, StackedRows)
    if partition != value.both or value.steps in context.nest.outer:
        raise UntranslatableError("stacked rows that are not on the partitions")
    if value.load.access.stride(value.inner) == 1:
        by_rows, by_steps = _TurnedRows(context, value, free), _TurnedSteps(context, value)
        return by_steps.make() if by_steps.is_possible and not by_rows.fills_more else by_rows.make()
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
    def _fits(self) -> list[Atom]:
        own = self.value.load.atoms - {self.value.inner, self.value.rows, *self.context.nest.outer}
        return [atom for atom in own if atom.size <= PARTITIONS]

    @property
    def fills_more(self) -> bool:
        """Whether the loop on the partitions of what is loaded fills as many as the steps would."""
        return bool(self._fits) and self.across.size >= min(PARTITIONS, self.value.steps.size)

    @cached_property
    def across(self) -> Atom:
        """The loop on the partitions of what is loaded."""
        if not self._fits:
            raise UntranslatableError("rows of neighbouring channels along long loops only")
        return max(self._fits, key=lambda atom: (atom.size, atom.name))

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


@dataclass(frozen=True)
class _TurnedSteps:
    """Stacked rows of an array that has no other long loop: steps are loaded, then transposed.

    Its channels are neighbours in HBM. The steps lie on the partitions of what is loaded, each with all its
    rows: what several steps have is loaded for each of them.
    """

    context: StageContext
    value: StackedRows

    @cached_property
    def others(self) -> list[Atom]:
        """The other free loops of what is loaded, as they lie in HBM."""
        value = self.value
        loops = value.load.atoms - {value.inner, value.rows, *self.context.nest.outer}
        return sorted(loops, key=lambda atom: -value.load.access.stride(atom))

    @property
    def is_possible(self) -> bool:
        """Whether a transfer loads a chunk of steps."""
        return not self.value.box and len(self.others) + 3 <= MAX_LOOPS

    def make(self) -> Tile:
        """Return the tile of the stacked rows."""
        context, value, others = self.context, self.value, self.others
        lines, size = context.lines(value), value.steps.size
        chunks = [range(size)[at : at + PARTITIONS] for at in range(0, size, PARTITIONS)]
        data = self._load(chunks, lines)
        tile = context.new_tile(f"{value.load.buffer.name}_rows", value.both, (*others, value.steps), lines)
        side = context.turned_length // PARTITIONS
        with ExitStack() as stack, context.rows(lines, value.both) as rows:
            fixed = {atom: enter_loop(context, stack, lines, atom) for atom in others}
            places = "".join(f"{place}, " for place in fixed.values())
            for first in range(0, len(chunks), side):
                own = chunks[first : first + side]
                bank, begin, width = context.names.new("turned"), own[0].start, own[-1].stop - own[0].start
                lines.add(
                    f"{bank} = nl.ndarray(({value.both.size}, {width}), dtype=nl.float32, buffer=nl.psum)"
                )
                for at, steps in enumerate(own, first):
                    columns = f"{steps.start - begin}:{steps.stop - begin}"
                    block = f"{data}[0:{len(steps)}, {at}, {places}:, :]"
                    lines.add(f"nisa.nc_transpose(dst={bank}[:, {columns}], data={block})")
                target = context.view(tile, rows, (value.steps,), {value.steps: (str(begin), width)}, fixed)
                add_copy(context, lines, target, bank, width * prod(atom.size for atom in others))
        return tile

    def _load(self, chunks: Sequence[range], lines: Lines) -> str:
        """Load the rows of all steps, full chunks of steps by one transfer; the name of their tile."""
        value, height = self.value, self.value.both.size // self.value.inner.size
        on, among = Atom("steps_inside", len(chunks[0])), Atom("steps_outside", len(chunks))
        free = (among, *self.others, Atom("stacked", height), value.inner)
        data = self.context.new_tile(f"{value.load.buffer.name}_tile", on, free, lines).name
        complete = [*_complete_steps([_covered(value, row) for row in range(height)])]
        together = len(self.others) + 4 <= MAX_LOOPS
        loaded = 0
        for at, own in enumerate(chunks):
            groups = [(range(max(s.start, own.start), min(s.stop, own.stop)), rows) for s, rows in complete]
            groups = [(steps, rows) for steps, rows in groups if steps]
            if groups == [(own, range(height))] and len(own) == PARTITIONS:
                if at >= loaded:
                    (last,) = (steps.stop for steps, _ in complete if own.start in steps)
                    loaded = at + ((last - own.start) // PARTITIONS if together else 1)
                    lines.add(self._transfer(data, range(at, loaded), own, range(height)))
                continue
            if sum(len(steps) * len(rows) for steps, rows in groups) < len(own) * height:
                whole = ":, " * len(self.others)
                add_border(lines, f"{data}[:, {at}, {whole}:, :]", value.base)
            for steps, rows in groups:
                lines.add(self._transfer(data, range(at, at + 1), steps, rows))
        return data

    def _transfer(self, data: str, chunks: range, steps: range, rows: range) -> str:
        """The transfer of some rows of steps of a chunk, and of the chunks that follow."""
        value, access = self.value, self.value.load.access
        stride = access.stride(value.rows)
        step, row, chunk = Atom("step", len(steps)), Atom("row", len(rows)), Atom("chunk", len(chunks))
        first = value.first + steps.start * value.stride + rows.start * value.spacing
        by_step = stride * value.stride
        terms = [term for term in access.terms if term[0] != value.rows]
        terms += [(step, by_step), (chunk, by_step * PARTITIONS), (row, stride * value.spacing)]
        loops = (step, *([chunk] if len(chunks) > 1 else []), *self.others, row, value.inner)
        source = array_text(
            value.load.buffer,
            make_access(access.offset + first * stride, terms),
            runs=[Run(atom, "0", atom.size) for atom in loops],
            fixed=self.context.variables,
        )
        begin = steps.start % PARTITIONS
        place = str(chunks.start) if len(chunks) == 1 else f"{chunks.start}:{chunks.stop}"
        texts = [f"{begin}:{begin + len(steps)}", place, *(":" for _ in self.others)]
        return transfer_text(f"{data}[{', '.join(texts)}, {rows.start}:{rows.stop}, :]", source)


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
