"""Tiles that the tensor engine transposes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from targets.base import UntranslatableError
from targets.nki.translation.access import Atom
from targets.nki.translation.layout import BANK, PARTITIONS, blocker
from targets.nki.translation.stage import Rows, StageContext, Tile
from targets.nki.translation.text import Lines, product_text, sum_text
from targets.nki.translation.values import Load, Value


def make_transposed(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """A value made with another loop on the partitions, and transposed by the tensor engine."""
    source_loop = _other_partition(context, value, partition)
    data = context.tile(value, source_loop)
    lines = context.lines(value)
    tile = context.new_tile("transposed", partition, free, lines)
    others = [atom for atom in free if atom != source_loop]
    with ExitStack() as stack:
        fixed = {atom: enter_loop(context, stack, lines, atom) for atom in others}
        turn = _Transpose(context, lines, data, tile, source_loop, fixed)
        nest = context.nest
        if nest.chunks(source_loop) > 1:
            turn.write_source_chunks()
        elif partition is None or nest.chunks(partition) == 1 or nest.is_ragged(partition):
            turn.write_blocks()
        else:
            turn.write_target_chunks(partition)
    return tile


@dataclass(frozen=True)
class _Transpose:
    """Transposes of blocks of at most 128 by 128; as many as fit side by side in a bank leave it together."""

    context: StageContext
    lines: Lines
    data: Tile
    tile: Tile
    source: Atom
    fixed: dict[Atom, str]

    def write_blocks(self) -> None:
        """Each block in a bank of its own; the source has one chunk of partitions."""
        context, width = self.context, self.context.height(self.source)
        with (
            context.rows(self.lines, self.tile.partition) as rows,
            context.rows(self.lines, self.source) as own,
        ):
            bank = self._declare(width)
            inside = filled(bank, [rows.count, own.count], [context.height(self.tile.partition), width])
            self._turn(inside, rows, own)
            self._copy_out(rows, own, inside)

    def write_source_chunks(self) -> None:
        """Chunks of the source's partitions side by side: they follow each other in a row of the result."""
        context, lines, source = self.context, self.lines, self.source
        side = self._side(source)
        whole = min(source.size, side * PARTITIONS)
        with context.rows(lines, self.tile.partition) as rows, self._part(source, side) as part:
            start = product_text(part, whole)
            width: str | int = whole
            if source.size % whole:
                width = context.names.new("width")
                lines.add(f"{width} = min({whole}, {source.size} - {start})")
            bank = self._declare(whole)
            place = context.names.new("i_side")
            with lines.loop(place, side):
                chunk = sum_text(product_text(part, side), place)
                own = self._chunk(source, chunk)
                columns = f"{place} * {PARTITIONS} : {sum_text(f'{place} * {PARTITIONS}', own.count)}"
                height = context.height(self.tile.partition)
                height_text = ":" if str(rows.count) == str(height) else f"0:{rows.count}"
                self._turn(f"{bank}[{height_text}, {columns}]", rows, own)
            inside = filled(bank, [rows.count, width], [context.height(self.tile.partition), whole])
            self._copy_out(rows, Rows(width, None, start), inside)

    def write_target_chunks(self, target: Atom) -> None:
        """Chunks of the result's partitions side by side; the source has one chunk of partitions."""
        context, lines = self.context, self.lines
        side, width = self._side(target), context.height(self.source)
        with context.rows(lines, self.source) as own, self._part(target, side) as part:
            bank = self._declare(side, width)
            place = context.names.new("i_side")
            columns = ":" if str(own.count) == str(width) else f"0:{own.count}"
            with lines.loop(place, side):
                rows = self._chunk(target, sum_text(product_text(part, side), place))
                self._turn(f"{bank}[:, {place}, {columns}]", rows, own)
            first = product_text(part, side)
            several = Rows(PARTITIONS, f"{first} : {sum_text(first, side)}", "0")
            self._copy_out(
                several, own, filled(bank, [PARTITIONS, side, own.count], [PARTITIONS, side, width])
            )

    def _side(self, loop: Atom) -> int:
        """How many blocks lie in a bank: as many as fit, if all banks then have as many."""
        chunks = self.context.nest.chunks(loop)
        return max(side for side in range(1, BANK // PARTITIONS + 1) if chunks % side == 0)

    @contextmanager
    def _part(self, loop: Atom, side: int) -> Iterator[str]:
        """Go through the banks; the variable, or "0" for a single one."""
        count = self.context.nest.chunks(loop) // side
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

    def _declare(self, *sizes: int) -> str:
        name = self.context.names.new("turned")
        shape = ", ".join(map(str, (self.context.height(self.tile.partition), *sizes)))
        self.lines.add(f"{name} = nl.ndarray(({shape}), dtype=nl.float32, buffer=nl.psum)")
        return name

    def _turn(self, target: str, rows: Rows, own: Rows) -> None:
        partition = self.tile.partition
        box = {partition: (inner_start(self.context, partition, rows), rows.count)} if partition else {}
        free = (partition,) if partition in self.data.free else ()
        moved = self.context.view(self.data, own, free, box, self.fixed)
        self.lines.add(f"nisa.nc_transpose(dst={target}, data={moved})")

    def _copy_out(self, rows: Rows, own: Rows, bank: str) -> None:
        at = {self.source: (inner_start(self.context, self.source, own), own.count)}
        result = self.context.view(self.tile, rows, (self.source,), at, self.fixed)
        add_copy(
            self.context, self.lines, result, bank, self.context.width(self.tile.partition, (self.source,))
        )


def _other_partition(context: StageContext, value: Value, partition: Atom | None) -> Atom:
    """The loop that is best on the partitions before a transpose."""
    row = context.nest.row
    fits = [
        atom
        for atom in value.atoms
        if atom != partition
        and (atom == row or atom not in context.nest.outer)
        and blocker(value, atom) is None
        and not (isinstance(value, Load) and value.access.stride(atom) == 1)
    ]
    if not fits:
        found = blocker(value, partition)
        if found is not None:
            raise context.stored_needed(found)
        raise UntranslatableError("no loop of a value can lie on the partitions")
    return max(fits, key=lambda atom: (atom == row, min(atom.size, PARTITIONS), atom.name))


def add_copy(context: StageContext, lines: Lines, target: str, source: str, width: int) -> None:
    """Copy elements by the engine that has less to do."""
    engine = ", engine=nisa.engine.scalar" if context.prefers_scalar(width) else ""
    lines.add(f"nisa.tensor_copy(dst={target}, src={source}{engine})")


def inner_start(context: StageContext, atom: Atom, rows: Rows) -> str:
    """Where a chunk starts inside a tile: the row loop's tile holds its present rows only."""
    return "0" if atom == context.nest.row else rows.start


def enter_loop(context: StageContext, stack: ExitStack, lines: Lines, atom: Atom) -> str:
    name = context.names.new("i_free")
    stack.enter_context(lines.loop(name, atom.size))
    return name


def filled(name: str, counts: Sequence[str | int], sizes: Sequence[int]) -> str:
    """The first elements of an array along each dimension."""
    texts = [
        ":" if str(count) == str(size) else f"0:{count}" for count, size in zip(counts, sizes, strict=True)
    ]
    return name if all(text == ":" for text in texts) else f"{name}[{', '.join(texts)}]"
