"""Tiles that the tensor engine transposes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom
from targets.nki.translation.layout import PARTITIONS, blocker, is_scattered
from targets.nki.translation.stage import Rows, StageContext, Tile
from targets.nki.translation.text import Lines, float_text, product_text, sum_text
from targets.nki.translation.values import Contract, Load, Value


def make_transposed(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """A value made with another loop on the partitions, and transposed by the tensor engine."""
    source_loop = other_partition(context, value, partition)
    data = context.tile(value, source_loop)
    lines = context.lines(value)
    readers = context.readers.get(value, ())
    if readers and source_loop in free and all(isinstance(reader, Contract) for reader in readers):
        # The tensor engine takes one place of the other loops at a time: let each be a run.
        free = (*(atom for atom in free if atom != source_loop), source_loop)
    tile = context.result_tile(value, "transposed", partition, free)
    _write_transposes(context, data, tile, source=source_loop, lines=lines)
    return tile


def turn_across(context: StageContext, data: Tile, loop: Atom, lines: Lines) -> Tile:
    """Return a tile transposed, with a free loop of it on the partitions."""
    assert data.partition is not None
    tile = context.new_tile("transposed", loop, (data.partition,), lines)
    _write_transposes(context, data, tile, source=data.partition, lines=lines)
    return tile


def make_stacked_transpose(
    context: StageContext,
    value: Value,
    both: Atom,
    free: tuple[Atom, ...],
    *,
    source: Atom,
    pair: tuple[Atom, Atom, Atom],
) -> Tile:
    """A transposed tile whose partitions hold two steps of a loop.

    `pair` has that loop, the one over pairs of its steps, and the one inside.
    """
    data, lines = context.tile(value, source), context.lines(value)
    tile = context.new_tile("stacked", both, free, lines)
    _write_transposes(context, data, tile, source=source, lines=lines, pair=pair)
    return tile


def _write_transposes(
    context: StageContext,
    data: Tile,
    tile: Tile,
    *,
    source: Atom,
    lines: Lines,
    pair: tuple[Atom, Atom, Atom] | None = None,
) -> None:
    """Fill a tile with blocks of another one that lies across it."""
    partition = tile.partition
    others = [atom for atom in tile.free if atom != source]
    inside, split = _loops_in_bank(context, others, partition, source=source)
    with ExitStack() as stack:
        around = [atom for atom in others if atom not in inside]
        fixed = {atom: enter_loop(context, stack, lines, atom) for atom in around}
        limits = context.limits_at(lines)
        parts = {atom: (*limits[atom], context.nest.width(atom)) for atom in inside if atom in limits}
        if split is not None:
            loop, count = split
            parts[loop] = enter_parts(context, stack, lines, loop, count)
        turn = _Transpose(context, lines, data, tile, source, inside, fixed, parts, pair)
        nest = context.nest
        if nest.chunks(source) > 1:
            turn.write_source_chunks()
        elif partition is None or nest.chunks(partition) == 1:
            turn.write_blocks()
        else:
            turn.write_target_chunks(partition)


def _side(context: StageContext, count: int) -> int:
    """How many blocks lie in a bank: as many as may, if all banks then have as many."""
    return max(
        (side for side in range(1, context.turned_length // PARTITIONS + 1) if count % side == 0), default=1
    )


def _loops_in_bank(
    context: StageContext, others: Sequence[Atom], partition: Atom | None, *, source: Atom
) -> tuple[tuple[Atom, ...], tuple[Atom, int] | None]:
    """The innermost of the other free loops whose blocks lie in one bank together.

    Of the outermost of them there may be room for a part only: that loop, and how many of its steps.
    """
    nest, length = context.nest, context.turned_length
    if nest.chunks(source) > 1:
        width = min(source.size, _side(context, nest.chunks(source)) * PARTITIONS)
    elif nest.chunks(partition) > 1:
        width = PARTITIONS
    else:
        width = context.height(source)
    found: list[Atom] = []
    for atom in reversed(others):
        if width * nest.width(atom) > length:
            count = max(one for one in range(1, length // width + 1) if atom.size % one == 0)
            if count == 1 or atom == nest.row:
                break
            return (atom, *found), (atom, count)
        width *= nest.width(atom)
        found.insert(0, atom)
    return tuple(found), None


@dataclass(frozen=True)
class _Transpose:
    """Transposes of blocks of at most 128 by 128; as many as fit side by side in a bank leave it together."""

    context: StageContext
    lines: Lines
    data: Tile
    tile: Tile
    source: Atom
    inside: tuple[Atom, ...]
    """Free loops whose blocks share a bank."""
    fixed: dict[Atom, str]
    parts: dict[Atom, tuple[str, str | int, int]]
    """Of a loop inside, where a bank begins, and its present and most steps, if these are not all of them."""
    pair: tuple[Atom, Atom, Atom] | None = None
    """Of a stacked tile: the loop of which it has two steps, the loop over pairs, and the one inside."""

    def write_blocks(self) -> None:
        """Each block in a bank; source and result have one chunk of partitions each."""
        context = self.context
        with (
            context.rows(self.lines, self.tile.partition) as rows,
            context.rows(self.lines, self.source) as own,
        ):
            bank = self._declare(context.height(self.source))
            self._turn(bank, rows, own, self._columns(own))
            self._copy_out(rows, own, self._filled(bank, [rows.count], own, context.height(self.source)))

    def write_source_chunks(self) -> None:
        """Chunks of the source's partitions side by side: they follow each other in a row of the result."""
        context, lines, source = self.context, self.lines, self.source
        side = _side(context, context.nest.chunks(source))
        whole = min(source.size, side * PARTITIONS)
        with (
            context.rows(lines, self.tile.partition) as rows,
            self._part(context.nest.chunks(source) // side) as part,
        ):
            start = product_text(part, whole)
            width: str | int = whole
            if source.size % whole:
                width = context.names.new("width")
                lines.add(f"{width} = min({whole}, {source.size} - {start})")
            bank = self._declare(whole)
            place = context.names.new("i_side")
            with lines.loop(place, side):
                own = self._chunk(source, sum_text(product_text(part, side), place))
                columns = f"{place} * {PARTITIONS} : {sum_text(f'{place} * {PARTITIONS}', own.count)}"
                self._turn(bank, rows, own, columns)
            several = Rows(width, None, start)
            self._copy_out(rows, several, self._filled(bank, [rows.count], several, whole))

    def write_target_chunks(self, target: Atom) -> None:
        """Chunks of the result's partitions side by side; the source has one chunk of partitions."""
        context, lines = self.context, self.lines
        full, rest = divmod(target.size, PARTITIONS)
        width = context.height(self.source)
        inside = prod(self._width(atom) for atom in self.inside)
        side = min(full, context.turned_length // PARTITIONS // inside or 1)
        with context.rows(lines, self.source) as own:
            with self._part(full // side) as part:
                self._turn_chunks(product_text(part, side), side, own)
            if full % side:
                self._turn_chunks(str(full - full % side), full % side, own)
            if rest:
                bank, rows = self._declare(width), Rows(rest, str(full), str(full * PARTITIONS))
                self._turn(bank, rows, own, self._columns(own))
                self._copy_out(rows, own, self._filled(bank, [rest], own, width))

    def _turn_chunks(self, first: str, side: int, own: Rows) -> None:
        """Some chunks of the result's partitions side by side in a bank."""
        context, lines, width = self.context, self.lines, self.context.height(self.source)
        bank = self._declare(side, width)
        place = context.names.new("i_side")
        with lines.loop(place, side):
            chunk = sum_text(int(first) if first.isdigit() else first, place)
            rows = Rows(PARTITIONS, chunk, product_text(chunk, PARTITIONS))
            self._turn(bank, rows, own, self._columns(own), place)
        end = sum_text(int(first) if first.isdigit() else first, side)
        several = Rows(PARTITIONS, f"{first} : {end}", "0")
        self._copy_out(several, own, self._filled(bank, [PARTITIONS, side], own, width, side))

    @contextmanager
    def _part(self, count: int) -> Iterator[str]:
        """Go through the banks; the variable, or "0" for a single one."""
        if count == 1:
            yield "0"
            return
        name = self.context.names.new("i_part")
        with self.lines.loop(name, count):
            yield name

    def _chunk(self, loop: Atom, chunk: str) -> Rows:
        start = product_text(chunk, PARTITIONS)
        if not self.context.nest.is_ragged(loop):
            return Rows(PARTITIONS, chunk, start)
        count = self.context.names.new("count")
        self.lines.add(f"{count} = min({PARTITIONS}, {loop.size} - {start})")
        return Rows(count, chunk, start)

    @property
    def _order(self) -> tuple[Atom, ...]:
        """The loops of a bank, in the order of the result."""
        return tuple(atom for atom in self.tile.free if atom in self.inside or atom == self.source)

    def _sizes(self, width: int) -> list[int]:
        return [width if atom == self.source else self._width(atom) for atom in self._order]

    def _width(self, atom: Atom) -> int:
        return self.parts[atom][2] if atom in self.parts else self.context.nest.width(atom)

    def _declare(self, *sizes: int) -> str:
        """Declare a bank whose last size is that of the source's partitions."""
        name, *side = self.context.names.new("turned"), *sizes[:-1]
        shape = (self.context.height(self.tile.partition), *side, *self._sizes(sizes[-1]))
        self.lines.add(
            f"{name} = nl.ndarray(({', '.join(map(str, shape))}), dtype=nl.float32, buffer=nl.psum)"
        )
        return name

    def _columns(self, own: Rows) -> str:
        return ":" if str(own.count) == str(self.context.height(self.source)) else f"0:{own.count}"

    def _turn(self, bank: str, rows: Rows, own: Rows, columns: str, side: str | None = None) -> None:
        """Transpose a block for each step of the loops that share the bank."""
        context, partition = self.context, self.tile.partition
        box: dict[Atom, tuple[str, str | int]] = {}
        if partition is not None:
            box = {partition: (inner_start(context, partition, rows), rows.count)}
        free: tuple[Atom, ...] = (partition,) if partition in self.data.free else ()
        with ExitStack() as stack:
            places = {atom: self._enter_inside(stack, atom) for atom in self.inside}
            starts = {atom: sum_text(start, places[atom]) for atom, (start, _, _) in self.parts.items()}
            fixed = {**self.fixed, **places, **starts}
            if self.pair is not None:
                loop, outer, inner = self.pair
                free, box = (loop, inner), {loop: (product_text(fixed.get(outer, "0"), 2), 2)}
            moved = context.view(self.data, own, free, box, fixed)
            height = ":" if str(rows.count) == str(context.height(partition)) else f"0:{rows.count}"
            texts = [height, *([side] if side else [])]
            texts += [columns if atom == self.source else places[atom] for atom in self._order]
            target = bank if all(text == ":" for text in texts) else f"{bank}[{', '.join(texts)}]"
            self.lines.add(f"nisa.nc_transpose(dst={target}, data={moved})")

    def _enter_inside(self, stack: ExitStack, atom: Atom) -> str:
        """Enter a loop over the present steps of a loop inside; return the place in the bank."""
        name = self.context.names.new("i_free")
        _, count, _ = self.parts.get(atom, ("0", self._width(atom), 0))
        stack.enter_context(self.lines.loop(name, count))
        return name

    def _filled(
        self, bank: str, counts: Sequence[str | int], own: Rows, width: int, side: int | None = None
    ) -> str:
        """The part of a bank that transposes have filled."""
        sizes = [self.context.height(self.tile.partition), *([side] if side else []), *self._sizes(width)]
        inner = [own.count if atom == self.source else self._inner_count(atom) for atom in self._order]
        return filled(bank, [*counts, *inner], sizes)

    def _inner_count(self, atom: Atom) -> str | int:
        if atom in self.parts:
            return self.parts[atom][1]
        return self.context.row_count() if atom == self.context.nest.row else self._width(atom)

    def _copy_out(self, rows: Rows, own: Rows, bank: str) -> None:
        at: dict[Atom, tuple[str, str | int]] = {
            self.source: (inner_start(self.context, self.source, own), own.count),
            **{atom: (start, count) for atom, (start, count, _) in self.parts.items()},
        }
        result = self.context.view(self.tile, rows, self._order, at, self.fixed)
        width = self.context.width(self.tile.partition, self._order)
        add_copy(self.context, self.lines, result, bank, width)


def other_partition(context: StageContext, value: Value, partition: Atom | None) -> Atom:
    """The loop that is best on the partitions before a transpose."""
    row = context.nest.row
    fits = [
        atom
        for atom in value.atoms
        if atom != partition
        and (atom == row or atom not in context.nest.outer)
        and blocker(value, atom) is None
        and not (isinstance(value, Load) and _is_element_apart(context, value, atom))
    ]
    if not fits:
        found = blocker(value, partition)
        if found is not None:
            raise context.stored_needed(found)
        raise UntranslatableError("no loop of a value can lie on the partitions")
    return max(fits, key=lambda atom: (atom == row, min(atom.size, PARTITIONS), atom.name))


def _is_element_apart(context: StageContext, load: Load, atom: Atom) -> bool:
    """Whether a load with this loop on the partitions would fetch elements or short runs."""
    return load.access.stride(atom) == 1 or is_scattered(load, atom, context.nest.free_atoms(load, atom))


def add_copy(context: StageContext, lines: Lines, target: str, source: str, width: int) -> None:
    """Copy elements by the engine that has less to do."""
    engine = ", engine=nisa.engine.scalar" if context.prefers_scalar(width) else ""
    lines.add(f"nisa.tensor_copy(dst={target}, src={source}{engine})")


def add_border(lines: Lines, target: str, number: float) -> None:
    """Fill a few elements around others with a number, by the engine that has the least to do otherwise."""
    lines.add(f"nisa.memset(dst={target}, value={float_text(number)}, engine=nisa.engine.gpsimd)")


def inner_start(context: StageContext, atom: Atom, rows: Rows) -> str:
    """Where a chunk starts inside a tile: the row loop's tile holds its present rows only."""
    return "0" if atom == context.nest.row else rows.start


def enter_loop(context: StageContext, stack: ExitStack, lines: Lines, atom: Atom) -> str:
    """Enter a loop over the steps of a free loop that count; return the present one as text."""
    name = context.names.new("i_free")
    start, count = context.limits_at(lines).get(atom, ("0", atom.size))
    stack.enter_context(lines.loop(name, count))
    return sum_text(name, start)


def enter_parts(
    context: StageContext, stack: ExitStack, lines: Lines, atom: Atom, part: int
) -> tuple[str, str | int, int]:
    """Enter a loop over parts of a free loop: where the present part begins, and its present and most steps.

    The last part may be shorter than the others.
    """
    first, total = context.limits_at(lines).get(atom, ("0", context.nest.width(atom)))
    name = context.names.new("i_part")
    count = -(-total // part) if isinstance(total, int) else f"-(-({total}) // {part})"
    stack.enter_context(lines.loop(name, count))
    start = product_text(name, part)
    taken: str | int = part
    if not isinstance(total, int) or total % part:
        taken = context.names.new("width")
        lines.add(f"{taken} = min({part}, {total} - {start})")
    return sum_text(start, first), taken, part


def filled(name: str, counts: Sequence[str | int], sizes: Sequence[int]) -> str:
    """The first elements of an array along each dimension."""
    texts = [
        ":" if str(count) == str(size) else f"0:{count}" for count, size in zip(counts, sizes, strict=True)
    ]
    return name if all(text == ":" for text in texts) else f"{name}[{', '.join(texts)}]"
