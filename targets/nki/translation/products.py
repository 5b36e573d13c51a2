"""Matrix products: by the tensor engine into PSUM, or by VectorE where both operands share the partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod

from targets.nki.translation.access import Atom
from targets.nki.translation.hbm import Run, array_text, transfer_text
from targets.nki.translation.layout import BANK, PARTITIONS, is_scattered, padded_width, partition_of_sum
from targets.nki.translation.simplify import make_binary
from targets.nki.translation.stacking import HALF, Stack, find_stack
from targets.nki.translation.stage import MOST_BANKS, Rows, StageContext, Tile
from targets.nki.translation.text import Lines
from targets.nki.translation.transposes import add_copy, enter_loop, enter_parts, filled, inner_start
from targets.nki.translation.values import Contract, Load, Reduce, Value


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
    held = context.banks.get((value, partition))
    if held is not None:
        return _copy_bank(context, value, held)
    pairs = _operands(context, value, partition)
    lines = context.lines(value)
    looped, inner = _split_free(pairs, free)
    stacked, tiles = _stack_operands(context, pairs, looped)
    tile = context.result_tile(value, "matmul", partition, free)
    with context.rows(lines, partition) as rows, ExitStack() as stack:
        for fixed, half in _enter_steps(context, stack, lines, looped=looped, stacked=stacked):
            with bank_parts(context, lines, inner) as parts:
                bank = Bank(context, lines, partition, rows, inner, parts, fixed)
                target = bank.declare()
                for pair, own in zip(pairs, tiles, strict=True):
                    _write_product(bank, pair, own, target=target, half=half)
                result = context.view(tile, rows, inner, bank.box, fixed)
                add_copy(context, lines, result, target, context.width(partition, inner))
    return tile


def _stack_operands(
    context: StageContext, pairs: Sequence[_Operands], looped: Sequence[Atom]
) -> tuple[Stack | None, list[tuple[Tile, Tile | None]]]:
    """The loop of which two steps are on top of each other, if there is one, and the operands' tiles."""
    stacked = find_stack(context, [(one.stationary, one.moving, one.over) for one in pairs], looped)
    if stacked is None:
        return None, [_operand_tiles(context, one) for one in pairs]
    return stacked, [
        (stacked.tile(context, one.stationary), stacked.tile(context, one.moving)) for one in pairs
    ]


def _enter_steps(
    context: StageContext, stack: ExitStack, lines: Lines, *, looped: Sequence[Atom], stacked: Stack | None
) -> list[tuple[dict[Atom, str], Rows | None]]:
    """Enter the loops that repeat a product: their places, twice if it is stacked, and rows of the array."""
    around = [atom for atom in looped if stacked is None or atom != stacked.loop]
    fixed = {atom: enter_loop(context, stack, lines, atom) for atom in around}
    if stacked is None:
        return [(fixed, None)]
    limits = context.limits_at(lines)
    steps = stacked.enter(context, stack, lines)
    return [(fixed | places, stacked.rows(half, limits)) for places, half in steps]


def make_bank(context: StageContext, value: Value, partition: Atom | None) -> Tile | None:
    """A product that stays in PSUM, if it has room there and is read by the loops that make it."""
    assert isinstance(value, Contract)
    if any(partition in left.atoms & right.atoms for left, right in value.pairs):
        return None
    nest, free = context.nest, context.nest.free_atoms(value, partition)
    pairs = _operands(context, value, partition)
    looped, inner = _split_free(pairs, free)
    widths = [nest.width(atom) for atom in looped], [nest.width(atom) for atom in inner]
    banks, padded = _count_banks(*widths), frozenset[Atom]()
    if banks is None and nest.row not in inner:
        context.has_uneven_banks = True
        if context.pads_banks:
            banks, padded = _pad_banks(widths[0], inner)
    limits = context.limits_at(context.lines(value))
    is_long = prod(widths[1]) > BANK
    if is_long and any(limits[atom][0] != "0" for atom in inner if atom in limits):
        return None  # parts that begin anywhere would cross banks
    is_apart = any(nest.level(reader) != nest.level(value) for reader in context.readers.get(value, ()))
    has_room = banks is not None and context.used_banks + banks <= MOST_BANKS
    if is_apart or not has_room or nest.chunks(partition) > 1 or free != (*looped, *inner):
        return None
    if (value, partition) in context.set_aside:
        return None
    lines = context.lines(value)
    context.used_banks += banks or 0
    stacked, tiles = _stack_operands(context, pairs, looped)
    tile = context.new_tile("bank", partition, free, lines, in_psum=True, padded=padded)
    with context.rows(lines, partition) as rows, ExitStack() as stack:
        for fixed, half in _enter_steps(context, stack, lines, looped=looped, stacked=stacked):
            with bank_parts(context, lines, inner) as parts:
                bank = Bank(context, lines, partition, rows, inner, parts, fixed)
                target = context.view(tile, rows, inner, bank.box, fixed)
                for pair, own in zip(pairs, tiles, strict=True):
                    _write_product(bank, pair, own, target=target, half=half)
    return tile


def _pad_banks(looped: Sequence[int], inner: Sequence[Atom]) -> tuple[int | None, frozenset[Atom]]:
    """The banks that a product takes if some of its loops get unused elements, and these loops.

    Of what is longer than a bank, parts are taken along the first loop: only the others may be padded.
    """
    is_long = prod(atom.size for atom in inner) > BANK
    for padded in (frozenset(inner[-1:]), frozenset() if is_long else frozenset(inner)):
        sizes = [padded_width(atom.size) if atom in padded else atom.size for atom in inner]
        banks = _count_banks(looped, sizes)
        if banks is not None and not (is_long and len(inner) == 1):
            return banks, padded
    return None, frozenset()


def _count_banks(looped: Sequence[int], inner: Sequence[int]) -> int | None:
    """The banks of PSUM that a product takes if no instruction's part of it crosses the end of one."""
    width, count = prod(inner), prod(looped)
    if width * count <= BANK:
        return 1
    fits = BANK % width == 0 if width < BANK else width % BANK == 0 or count == 1 == len(inner)
    return -(-width * count // BANK) if fits else None


def _copy_bank(context: StageContext, value: Contract, bank: Tile) -> Tile:
    """The same product in SBUF, where the tensor engine and transfers read."""
    lines = context.lines(value)
    tile = context.result_tile(value, "matmul", bank.partition, bank.free)
    with context.rows(lines, bank.partition) as rows:
        target, source = (context.view(item, rows, bank.free) for item in (tile, bank))
        add_copy(context, lines, target, source, context.width(bank.partition, bank.free))
    return tile


def _operands(context: StageContext, value: Contract, partition: Atom | None) -> list[_Operands]:
    return [
        _Operands(*_sides(context, left, right, partition), over)
        for (left, right), over in zip(value.pairs, value.over, strict=True)
    ]


def _split_free(
    pairs: Sequence[_Operands], free: Sequence[Atom]
) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """The free loops for which products are repeated, and those that one product walks."""
    moved = frozenset().union(*(pair.moving.atoms for pair in pairs))
    looped = tuple(atom for atom in free if atom not in moved or _in_both(atom, pairs))
    return looped, tuple(atom for atom in free if atom not in looped)


def _operand_tiles(context: StageContext, pair: _Operands) -> tuple[Tile, Tile | None]:
    """The operands' tiles; None for one that is loaded part by part, because the chip has no room for it."""
    moving, inner = pair.moving, partition_of_sum(pair.over)
    if _is_as_loaded(context, pair.stationary, inner) and not _is_as_loaded(context, moving, inner):
        context.tile(moving, inner)  # it is made while the other one is loaded
    stays = context.tile(pair.stationary, inner)
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


def _is_as_loaded(context: StageContext, value: Value, inner: Atom) -> bool:
    """Whether a load gives an operand as the tensor engine takes it."""
    return isinstance(value, Load) and not is_scattered(value, inner, context.nest.free_atoms(value, inner))


@dataclass(frozen=True)
class Bank:
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


def _sides(context: StageContext, left: Value, right: Value, partition: Atom | None) -> tuple[Value, Value]:
    """The operand that stays in the tensor engine, with the loop of the result's partitions; the other."""
    if partition is not None:
        return (left, right) if partition in left.atoms else (right, left)
    widths = [prod(atom.size for atom in context.nest.free_atoms(item, None)) for item in (left, right)]
    return (left, right) if widths[0] <= widths[1] else (right, left)


@contextmanager
def bank_parts(
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
                if (limit := context.limits_at(lines).get(atom)) is not None:
                    boxes[atom] = *limit, width
                continue
            count = -(-width // max(1, room))
            # Products that stay in PSUM are parts of whole banks; rows of other loops fill one evenly.
            part = room if room == BANK else -(-width // count)
            boxes[atom] = enter_parts(context, stack, lines, atom, part)
            room = 1
        yield boxes


def _write_product(
    bank: Bank,
    pair: _Operands,
    tiles: tuple[Tile, Tile | None],
    *,
    target: str,
    half: Rows | None = None,
) -> None:
    """One product, added to what the bank holds, over all chunks of its sum; `half`: on half of the array."""
    context, lines, inner = bank.context, bank.lines, partition_of_sum(pair.over)
    stays, moves = tiles
    with ExitStack() as stack:
        around = [atom for atom in pair.over if atom != inner]
        places = bank.fixed | {atom: enter_loop(context, stack, lines, atom) for atom in around}
        chunk = half or stack.enter_context(context.rows(lines, inner))
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
        rows = f", tile_position=({half.first}, 0), tile_size=({HALF}, {PARTITIONS})" if half else ""
        lines.add(f"nisa.nc_matmul(dst={target}, stationary={stationary}, moving={moving}{rows})")


def _load_part(bank: Bank, pair: _Operands, chunk: Rows, places: dict[Atom, str]) -> str:
    """Load what one product needs of the moving operand."""
    context, load, inner = bank.context, pair.moving, partition_of_sum(pair.over)
    assert isinstance(load, Load)
    name = context.names.new(f"{load.buffer.name}_part")
    sizes = [context.height(inner), *bank.sizes]
    bank.lines.add(f"{name} = nl.ndarray(({', '.join(map(str, sizes))}), dtype=nl.float32, buffer=nl.sbuf)")
    runs: list[Run | int] = [Run(inner, chunk.start, chunk.count)]
    runs += [context.run(atom, bank.box) for atom in bank.inner] or [1]
    fixed = {**context.variables, **places}
    source = array_text(load.buffer, load.access, runs=runs, fixed=fixed)
    target = filled(name, [chunk.count, *bank.counts], sizes)
    bank.lines.add(transfer_text(target, source))
    return target


def _make_by_elements(context: StageContext, value: Contract, partition: Atom | None) -> Tile:
    """Products of elements and their sums, in every partition by itself."""
    found: Value | None = None
    for (left, right), over in zip(value.pairs, value.over, strict=True):
        term = Reduce(value.node, "add", make_binary(value.node, "multiply", left, right), over)
        found = term if found is None else make_binary(value.node, "add", found, term)
    assert found is not None
    return context.tile(found, partition)
