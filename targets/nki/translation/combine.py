"""Tiles of values that combine elements: reductions, recurrences, assembled parts, transposes, products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from targets.nki.translation.access import Atom
from targets.nki.translation.elementwise import float_text
from targets.nki.translation.hbm import Run, array_text
from targets.nki.translation.layout import BANK, PARTITIONS, blocker, is_scattered
from targets.nki.translation.loads import write_load
from targets.nki.translation.simplify import make_binary
from targets.nki.translation.stage import Rows, StageContext, Tile
from targets.nki.translation.text import Lines
from targets.nki.translation.transposes import add_copy, enter_loop, filled, inner_start
from targets.nki.translation.values import Assembled, Contract, Load, Number, Part, Reduce, Scan, Value

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
    data = context.tile(value.value, partition)
    if (value, partition) in context.tiles:
        return context.tiles[value, partition]  # whoever made the elements added them up on the way
    inner = tuple(sorted(value.over, key=context.nest.rank))
    if data.free[-len(inner) :] != inner and prod(atom.size for atom in inner) <= _FEW:
        return _make_chain(context, value, data, free)
    lines = context.lines(value)
    width = context.width(partition, data.free)
    tile = context.new_tile(_REDUCED[value.function], partition, free, lines)
    is_row_sum = value.function == "add" and not free and not data.places and len(data.free) == 1
    if is_row_sum and width > _LONG_SUM:
        _add_up_in_parts(context, data, tile, lines)
        return tile
    if is_row_sum and context.prefers_scalar(width):
        _add_up_by_scalar(context, data, tile, lines)
        return tile
    kept = [atom for atom in data.free if atom not in value.over]
    last = [atom for atom in data.free if atom in value.over]
    with context.rows(lines, partition) as rows:
        view = context.view(data, rows, data.free)
        if [*kept, *last] != list(data.free):
            places = [0, *(1 + data.free.index(atom) for atom in (*kept, *last))]
            view += f".permute({places})"
        axes = tuple(range(1 + len(kept), 1 + len(kept) + len(last)))
        axis = str(axes[0]) if len(axes) == 1 else str(axes)
        target = context.view(tile, rows, free)
        if not is_row_sum:
            context.busy["vector"] += width
        lines.add(f"nisa.tensor_reduce(dst={target}, op=nl.{value.function}, data={view}, axis={axis})")
    return tile


def _add_up_in_parts(context: StageContext, data: Tile, total: Tile, lines: Lines) -> None:
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


def _add_up_by_scalar(context: StageContext, data: Tile, total: Tile, lines: Lines) -> None:
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
        first = _column(context, start, rows, fixed) if start else float_text(initial or 0.0)
        lines.add(
            f"nisa.tensor_tensor_scan(dst={texts[0]}, data0={texts[1]}, data1={texts[2]}, initial={first}, "
            "op0=nl.multiply, op1=nl.add)"
        )
    return tile


def _column(context: StageContext, tile: Tile, rows: Rows, fixed: dict[Atom, str]) -> str:
    """One number for each partition, of a tile that may have free loops."""
    boxes = {atom: (fixed[atom], 1) for atom in tile.free}
    return context.view(tile, rows, tile.free, boxes)


def make_assembled(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """Parts put into one tile; loads go straight to their place."""
    assert isinstance(value, Assembled)
    lines = context.lines(value)
    if any(atom in context.nest.outer for part in value.parts for atom, _, _ in part.box):
        raise context.stored_needed(value)
    tile = context.new_tile("joined", partition, free, lines)
    if value.base is not None:
        for boxes in _around(value):
            with context.rows(lines, partition) as rows:
                target = context.view(tile, rows, free, boxes)
                lines.add(f"nisa.memset(dst={target}, value={float_text(value.base)})")
    for part in value.parts:
        is_held = part.value in context.windows
        in_place = _loads_in_place(part, partition, free)
        if isinstance(part.value, Load) and not is_held and in_place:
            write_load(context, part.value, tile, lines, part.box)
            continue
        boxes = {atom: (str(first), own.size) for atom, first, own in part.box}
        owns = {own: atom for atom, _, own in part.box}
        if not isinstance(part.value, Number) and context.lines(part.value) is lines:
            _set_aside(context, tile, part, partition)
        source = None if isinstance(part.value, Number) else context.tile(part.value, partition)
        if (part.value, partition) in context.set_aside and source is context.set_aside[
            part.value, partition
        ]:
            continue
        with context.rows(lines, partition) as rows:
            target = context.view(tile, rows, free, boxes)
            if source is None:
                assert isinstance(part.value, Number)
                lines.add(f"nisa.memset(dst={target}, value={float_text(part.value.number)})")
                continue
            inside = {atom: own for own, atom in owns.items()}
            wanted = [inside.get(atom, atom) for atom in free]
            add_copy(
                context, lines, target, context.view(source, rows, wanted), context.width(partition, wanted)
            )
    return tile


def _set_aside(context: StageContext, tile: Tile, part: Part, partition: Atom | None) -> None:
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


@dataclass(frozen=True, slots=True)
class _Operands:
    """One product: what stays in the tensor engine, what moves through it, and the loops of the sum."""

    stationary: Value
    moving: Value
    over: tuple[Atom, ...]


def make_contraction(
    context: StageContext, value: Value, partition: Atom | None, free: tuple[Atom, ...]
) -> Tile:
    """Matrix products, added up in PSUM; by VectorE where a loop of both operands is on the partitions."""
    assert isinstance(value, Contract)
    if any(partition in left.atoms & right.atoms for left, right in value.pairs):
        return _make_by_elements(context, value, partition)
    pairs = [
        _Operands(*_sides(context, left, right, partition), over)
        for (left, right), over in zip(value.pairs, value.over, strict=True)
    ]
    tiles = [_operand_tiles(context, pair) for pair in pairs]
    lines = context.lines(value)
    tile = context.result_tile(value, "matmul", partition, free)
    moved = frozenset().union(*(pair.moving.atoms for pair in pairs))
    looped = [atom for atom in free if atom not in moved or _in_both(atom, pairs)]
    inner = tuple(atom for atom in free if atom not in looped)
    with context.rows(lines, partition) as rows, ExitStack() as stack:
        fixed = {atom: enter_loop(context, stack, lines, atom) for atom in looped}
        parts = stack.enter_context(_bank_parts(context, lines, inner))
        bank = _Bank(context, lines, partition, rows, inner, parts, fixed)
        target = bank.declare()
        for pair, (stays, moves) in zip(pairs, tiles, strict=True):
            _write_product(bank, pair, stays, moves, target)
        result = context.view(tile, rows, inner, bank.box, fixed)
        add_copy(context, lines, result, target, context.width(partition, inner))
    return tile


def _operand_tiles(context: StageContext, pair: _Operands) -> tuple[Tile, Tile | None]:
    """The operands' tiles; None for one that is loaded part by part, because the chip has no room for it."""
    stays = context.tile(pair.stationary, _inner(pair))
    moving, inner = pair.moving, _inner(pair)
    free = context.nest.free_atoms(moving, inner)
    width = prod(context.nest.width(atom) for atom in free) * context.nest.chunks(inner)
    streams = (
        isinstance(moving, Load)
        and moving.buffer.dtype == "float32"
        and not is_scattered(moving, inner, free)
        and width > context.max_held
        and (moving, inner) not in context.tiles
    )
    return stays, None if streams else context.tile(moving, inner)


@dataclass(frozen=True)
class _Bank:
    """One part of a product, which fits in a bank of PSUM, and the loops around it."""

    context: StageContext
    lines: Lines
    partition: Atom | None
    rows: Rows
    inner: tuple[Atom, ...]
    parts: dict[Atom, tuple[str, str | int, int]]
    fixed: dict[Atom, str]

    @property
    def box(self) -> dict[Atom, tuple[str, str | int]]:
        """Where the part lies along its free loops."""
        return {atom: (start, count) for atom, (start, count, _) in self.parts.items()}

    @property
    def sizes(self) -> list[int]:
        """Elements of a full part along its free loops."""
        widths = (
            self.parts[atom][2] if atom in self.parts else self.context.nest.width(atom)
            for atom in self.inner
        )
        return list(widths) or [1]

    @property
    def counts(self) -> list[str | int]:
        """Elements of the present part along its free loops."""
        found: list[str | int] = []
        for atom in self.inner:
            is_row = atom == self.context.nest.row
            whole = self.context.row_count() if is_row else atom.size
            found.append(self.parts[atom][1] if atom in self.parts else whole)
        return found or [1]

    def declare(self) -> str:
        """Declare the bank; return the part of it that the product fills."""
        name = self.context.names.new("bank")
        sizes = [self.context.height(self.partition), *self.sizes]
        self.lines.add(
            f"{name} = nl.ndarray(({', '.join(map(str, sizes))}), dtype=nl.float32, buffer=nl.psum)"
        )
        return filled(name, [self.rows.count, *self.counts], sizes)


def _in_both(atom: Atom, pairs: Sequence[_Operands]) -> bool:
    return any(atom in pair.stationary.atoms for pair in pairs)


def _inner(pair: _Operands) -> Atom:
    """The loop of a sum that lies on the partitions of both operands."""
    return max(pair.over, key=lambda atom: (min(atom.size, PARTITIONS), atom.name))


def _sides(context: StageContext, left: Value, right: Value, partition: Atom | None) -> tuple[Value, Value]:
    """The operand that stays in the tensor engine, with the loop of the result's partitions; the other."""
    if partition is not None:
        return (left, right) if partition in left.atoms else (right, left)
    widths = [prod(atom.size for atom in context.nest.free_atoms(item, None)) for item in (left, right)]
    return (left, right) if widths[0] <= widths[1] else (right, left)


@contextmanager
def _bank_parts(
    context: StageContext, lines: Lines, inner: Sequence[Atom]
) -> Iterator[dict[Atom, tuple[str, str | int, int]]]:
    """Loops over parts of free loops, so that each part fits in one bank of PSUM."""
    boxes: dict[Atom, tuple[str, str | int, int]] = {}
    room = BANK
    with ExitStack() as stack:
        for atom in reversed(inner):
            width = context.nest.width(atom)
            if width <= room:
                room //= width
                continue
            part = max(1, room)
            count = -(-width // part)
            name = context.names.new("i_part")
            stack.enter_context(lines.loop(name, count))
            start = f"{name} * {part}"
            taken: str | int = part
            if width % part:
                taken = context.names.new("width")
                lines.add(f"{taken} = min({part}, {width} - {start})")
            boxes[atom] = start, taken, part
            room = 1
        yield boxes


def _write_product(bank: _Bank, pair: _Operands, stays: Tile, moves: Tile | None, target: str) -> None:
    """One product, added to what the bank holds, over all chunks of its sum."""
    context, lines, inner = bank.context, bank.lines, _inner(pair)
    with ExitStack() as stack:
        around = [atom for atom in pair.over if atom != inner]
        places = bank.fixed | {atom: enter_loop(context, stack, lines, atom) for atom in around}
        chunk = stack.enter_context(context.rows(lines, inner))
        own: tuple[Atom, ...] = ()
        box: dict[Atom, tuple[str, str | int]] = {}
        if bank.partition is not None and bank.partition in stays.free:
            own = (bank.partition,)
            box = {bank.partition: (inner_start(context, bank.partition, bank.rows), bank.rows.count)}
        stationary = context.view(stays, chunk, own, box, places)
        if moves is None:
            moving = _load_part(bank, pair, chunk, places)
        else:
            moving = context.view(moves, chunk, bank.inner, bank.box, places)
        lines.add(f"nisa.nc_matmul(dst={target}, stationary={stationary}, moving={moving})")


def _load_part(bank: _Bank, pair: _Operands, chunk: Rows, places: dict[Atom, str]) -> str:
    """Load what one product needs of the moving operand."""
    context, load, inner = bank.context, pair.moving, _inner(pair)
    assert isinstance(load, Load)
    name = context.names.new(f"{load.buffer.name}_part")
    sizes = [context.height(inner), *bank.sizes]
    bank.lines.add(f"{name} = nl.ndarray(({', '.join(map(str, sizes))}), dtype=nl.float32, buffer=nl.sbuf)")
    runs: list[Run | int] = [Run(inner, chunk.start, chunk.count)]
    runs += [context.run(atom, bank.box) for atom in bank.inner] or [1]
    fixed = {**context.variables, **places}
    source = array_text(load.buffer, load.access, runs=runs, fixed=fixed)
    target = filled(name, [chunk.count, *bank.counts], sizes)
    bank.lines.add(f"nisa.dma_copy(dst={target}, src={source})")
    return target


def _make_by_elements(context: StageContext, value: Contract, partition: Atom | None) -> Tile:
    """Products of elements and their sums, in every partition by itself."""
    found: Value | None = None
    for (left, right), over in zip(value.pairs, value.over, strict=True):
        term = Reduce(value.node, "add", make_binary(value.node, "multiply", left, right), over)
        found = term if found is None else make_binary(value.node, "add", found, term)
    assert found is not None
    return context.tile(found, partition)
