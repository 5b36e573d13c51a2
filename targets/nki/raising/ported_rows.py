"""Makes rows of ported kernels more regular than the legacy namespace issues them.

Legacy kernels say what a tile holds at first, or how iterations are reduced, but not when that happens. The
simulator fills a tile, or begins a reduction with a copy, where the first iteration needs it. So that
iteration differs from the others, and no loop holds them all. A row that is broadcast to all partitions is
shuffled, quadrant by quadrant, even if a transfer could have done it. Ported kernels need not issue the
original's program, so these rows are changed here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from nki_sim.dtypes import DTYPES
from nki_sim.operators import OPERATORS
from targets.nki.raising.instruction_rows import InstructionRow, Parameter, RowKey, RowOperand, TileClass

MAX_FILLED_BYTES = 96 << 10
"""Bytes per partition of tiles that may be filled before everything else: half of SBUF."""

_LARGEST = 3.4028234663852886e38
_FIRST_NUMBERS = {"add": 0.0, "multiply": 1.0, "maximum": -_LARGEST, "minimum": _LARGEST}
"""What a reduction with an operator may begin with."""


@dataclass(frozen=True, slots=True)
class _Place:
    """An operand of a row: which tile or tensor, and where its access begins."""

    operand: RowOperand
    tile: int | None
    numbers: tuple[int, ...]
    begin: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Whether it is all of its tensor, as declared."""
        return not any(self.begin) and self.operand.dims == _row_major(self.operand.home.shape)


def _row_major(shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((prod(shape[axis + 1 :]), size) for axis, size in enumerate(shape))


def _places(row: InstructionRow) -> dict[str, _Place]:
    """The operands of a row by role."""
    found, start = {}, 0
    for item in row.key.operands:
        numbers = row.numbers[start : start + item.numbers]
        tile = numbers[0] if item.tensor is None else None
        found[item.role] = _Place(item, tile, numbers, numbers[item.numbers - item.places :])
        start += item.numbers
    return found


def _with_shared_key(row: InstructionRow, keys: dict[RowKey, RowKey]) -> InstructionRow:
    """The row with one object for all keys that are equal, as recognising loops compares objects."""
    return replace(row, key=keys.setdefault(row.key, row.key))


# -- broadcasts ------------------------------------------------------------------------------------


def load_broadcasts(rows: Sequence[InstructionRow]) -> list[InstructionRow]:
    """Return the rows with one transfer to all partitions for each row that is loaded and shuffled there."""
    loads = _single_row_loads(rows)
    found: list[InstructionRow] = []
    unused, keys = set[int](), dict[RowKey, RowKey]()
    at = 0
    while at < len(rows):
        count, made = _broadcast_at(rows, at, loads)
        if made is None:
            found.append(rows[at])
            at += 1
            continue
        load, row = made
        unused.add(id(load))
        found.append(_with_shared_key(row, keys))
        at += count
    return [row for row in found if id(row) not in unused]


def _single_row_loads(rows: Sequence[InstructionRow]) -> dict[int, InstructionRow]:
    """Transfers of what nothing writes to tiles of one partition that only shuffles read, by tile."""
    written = {
        item.tensor for row in rows for item in row.key.operands if item.role in OPERATORS[row.key.op].outputs
    }
    loads: dict[int, InstructionRow] = {}
    others = set[int]()
    for row in rows:
        for role, place in _places(row).items():
            if place.tile is None:
                continue
            loaded = row.key.op == "dma_copy" and role == "dst" and place.tile not in loads
            if loaded and _loads_row(row) and _places(row)["src"].operand.tensor not in written:
                loads[place.tile] = row
            elif row.key.op != "nc_stream_shuffle" or role != "src":
                others.add(place.tile)
    return {tile: row for tile, row in loads.items() if tile not in others}


def _loads_row(row: InstructionRow) -> bool:
    dst, src = (_places(row)[role] for role in ("dst", "src"))
    one_row = not src.operand.column_step and src.operand.dims[0][1] == 1
    return one_row and src.tile is None and dst.whole and dst.operand.home.shape[0] == 1


def _broadcast_at(
    rows: Sequence[InstructionRow], at: int, loads: Mapping[int, InstructionRow]
) -> tuple[int, tuple[InstructionRow, InstructionRow] | None]:
    """How many shuffles from a place on fill a tile with one row; the row's load, and one for all."""
    filled, count = 0, 0
    first = _places(rows[at])
    src = first.get("src")
    load = loads.get(src.tile) if src is not None and src.tile is not None else None
    if load is None or src is None:
        return 0, None
    goal = first["dst"]
    partitions, *rest = goal.operand.home.shape
    while filled < partitions and at + count < len(rows):
        dst = _shuffled_quadrant(rows[at + count], src)
        if dst is None or dst.tile != goal.tile or dst.begin != (filled, *(0 for _ in rest)):
            return 0, None
        filled += dst.operand.dims[0][1]
        count += 1
    return (count, (load, _broadcast_row(load, goal))) if filled == partitions else (0, None)


def _shuffled_quadrant(row: InstructionRow, src: _Place) -> _Place | None:
    """Where a shuffle puts copies of the first partition, over all columns; None for anything else."""
    if row.key.op != "nc_stream_shuffle" or any(dict(row.key.params)["shuffle_mask"].value):  # type: ignore[arg-type]
        return None
    places = _places(row)
    dst = places["dst"]
    columns = dst.operand.dims[1:] == _row_major(dst.operand.home.shape)[1:]
    return dst if places["src"] == src and src.whole and columns and dst.tile is not None else None


def _broadcast_row(load: InstructionRow, goal: _Place) -> InstructionRow:
    home, src = goal.operand.home, _places(load)["src"]
    dst = replace(goal.operand, role="dst", dims=_row_major(home.shape))
    repeated = replace(src.operand, dims=((0, home.shape[0]), *src.operand.dims[1:]))
    key = replace(load.key, operands=(dst, repeated))
    counted = load.numbers[len(load.numbers) - len(load.key.counted) :] if load.key.counted else ()
    return InstructionRow(
        key, (*goal.numbers[:1], *(0 for _ in home.shape), *src.numbers, *counted), load.line
    )


# -- what tiles hold at first ----------------------------------------------------------------------


def fill_first(rows: Sequence[InstructionRow]) -> list[InstructionRow]:
    """Return the rows with tiles filled before the loops that add to them, so that first iterations do not.

    A reduction that begins with a copy begins with its neutral number instead, and takes what it copied like
    the other parts. A total that is finished before another one begins is filled before its first part, the
    others before everything else. If these do not fit together, the rows stay as they are.
    """
    adders = _find_adders(rows)
    every = sorted(at for places in adders.values() for at in places)
    moved: dict[int, list[InstructionRow]] = {}
    others: dict[int, InstructionRow] = {}
    touched, keys = set[int](), dict[RowKey, RowKey]()
    for at, row in enumerate(rows):
        places = _places(row)
        dst = places.get("dst")
        fresh = dst is not None and dst.tile is not None and dst.tile not in touched and dst.whole
        touched |= {place.tile for place in places.values() if place.tile is not None}
        others[at] = row
        if not fresh or dst is None or dst.tile is None or dst.operand.home.buffer != "sbuf":
            continue
        found = adders.get(dst.tile, [])
        if row.key.op == "memset":
            # The declaration of what a loop adds to may stand outside all loops, but its tiles are many.
            del others[at]
            fill = replace(row, line=rows[found[0]].line if found else row.line)
            moved.setdefault(_fill_place(at, found, every), []).append(fill)
        elif found and (made := _begin_neutral(row, rows[found[0]])) is not None:
            others[at] = made[1]
            moved.setdefault(_fill_place(at, [at, *found], every), []).append(_with_shared_key(made[0], keys))
    if sum(_row_bytes(row.key.operands[0].home) for row in moved.get(0, ())) > MAX_FILLED_BYTES:
        return list(rows)
    return [
        one
        for at in range(len(rows))
        for one in (*moved.get(at, ()), *([others[at]] if at in others else ()))
    ]


def _fill_place(at: int, adders: Sequence[int], every: Sequence[int]) -> int:
    """Where to fill a tile: before the rows of its first part if its parts follow one another, else first.

    `at` is where it is filled now, `adders` are the places of the rows that take its parts, and `every` those
    of all such rows.
    """
    if len(adders) < len(("first", "second")):
        return at
    first, second = adders[:2]
    between = bisect_right(every, adders[-1]) - bisect_right(every, first)
    begin = first - (second - first) + (first == at)
    return begin if between == len(adders) - 1 and 0 <= begin <= at else 0


def _row_bytes(home: TileClass) -> int:
    return prod(home.shape[1:]) * DTYPES[home.dtype].itemsize


def _find_adders(rows: Sequence[InstructionRow]) -> dict[int, list[int]]:
    """Where instructions combine a tile with a part, by the tile."""
    found: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        if row.key.op != "tensor_tensor":
            continue
        places = _places(row)
        dst, total = places["dst"], places["data1"]
        if dst.tile is not None and dst.numbers == total.numbers and dst.whole and total.whole:
            found.setdefault(dst.tile, []).append(at)
    return found


def _begin_neutral(
    row: InstructionRow, adder: InstructionRow
) -> tuple[InstructionRow, InstructionRow] | None:
    """A fill, and an instruction that combines with it what a row copies to begin a total."""
    places = _places(row)
    if row.key.op != "tensor_copy" or adder.key.counted:
        return None
    dst, src, part = places["dst"], places["src"], _places(adder)["data2"]
    number = _FIRST_NUMBERS.get(str(dict(adder.key.params)["op"].value))
    if number is None or replace(src.operand, role="data2") != part.operand:
        return None
    params = (("value", Parameter(number, repr(number))),)
    fill = RowKey("memset", "vector", params, (dst.operand,), ())
    return (
        InstructionRow(fill, dst.numbers, row.line),
        InstructionRow(adder.key, (*dst.numbers, *dst.numbers, *src.numbers), row.line),
    )
