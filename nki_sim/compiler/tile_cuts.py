"""Cuts loads and accesses down to the part of a tile that an instruction uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from nki_sim.forms import Operand, Site

DimPairs = list[tuple[int, int, int]]
"""Dimensions of a copy, the slowest first: step in the tile, step in the source, count."""


@dataclass(frozen=True, slots=True)
class TileBox:
    """Rows and columns (elements) of a tile, ends exclusive."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def width(self) -> int:
        return self.right - self.left

    def intersect(self, other: TileBox) -> TileBox:
        """The intersection of two boxes; empty boxes end before they begin."""
        return TileBox(
            max(self.top, other.top),
            min(self.bottom, other.bottom),
            max(self.left, other.left),
            min(self.right, other.right),
        )

    @property
    def is_empty(self) -> bool:
        return self.top >= self.bottom or self.left >= self.right


def access_box(item: Operand, offset: int) -> TileBox:
    """The box around the elements that an access touches; `offset` is its first element."""
    start, column = divmod(offset - item.reach_below, item.row)
    return TileBox(start, start + item.partitions, column, column + item.free_extent)


def can_narrow(item: Operand, site: Site) -> bool:
    """Whether an access keeps its pattern in a tile that holds only its box."""
    return item.index_step == 0 and item.dtype == site.dtype and item.dims[0][0] == item.row


def narrow_access(item: Operand) -> Operand:
    """The access in a tile that holds only its columns."""
    wide = item.free_extent
    return replace(item, dims=((wide, item.partitions), *item.dims[1:]), row=wide)


def cut_load(dst: Operand, src: Operand, at: int, box: TileBox) -> tuple[Operand, Operand, int, int] | None:
    """Cut a load to a box, into a tile that holds only the box's columns.

    Returns the operands, the offset in the tile, and how much later in the source the load begins; `at` is
    the load's offset in the whole tile. None if no single access pattern does it. The load and the box must
    overlap.
    """
    own = access_box(dst, at)
    part = own.intersect(box)
    pairs = _match_dims(dst, src)
    if pairs is None or pairs[0][0] != dst.row or pairs[0][2] != dst.partitions or dst.reach_below:
        return None
    rows = pairs[0][1]
    columns = _cut_columns(pairs[1:], part.left - own.left, part.right - own.left)
    if columns is None:
        return None
    inner, moved = columns
    count = part.bottom - part.top
    near = replace(
        dst,
        dims=((box.width, count), *((step, size) for step, _, size in inner)),
        row=box.width,
        start=part.top,
    )
    far = replace(src, dims=((rows, count), *((step, size) for _, step, size in inner)))
    place = part.top * box.width + part.left - box.left
    return near, far, place, (part.top - own.top) * rows + moved


def _match_dims(dst: Operand, src: Operand) -> DimPairs | None:
    """The dimensions of both operands of a copy as one list, split where the other has more."""
    left, right = list(dst.dims), list(src.dims)
    pairs: DimPairs = []
    while left and right:
        (step, count), (other, size) = left.pop(), right.pop()
        common = min(count, size)
        if count % common or size % common:
            return None
        pairs.append((step, other, common))
        if count > common:
            left.append((step * common, count // common))
        if size > common:
            right.append((other * common, size // common))
    if any(count > 1 for _, count in chain(left, right)):
        return None
    pairs += [(step, 0, 1) for step, _ in reversed(left)]
    # Only the partition dimension may have a single row; other dimensions of size 1 carry no information.
    found = [pair for at, pair in enumerate(pairs) if pair[2] > 1 or pair[0] == dst.row or at == 0]
    return found[::-1]


def _cut_columns(pairs: DimPairs, low: int, high: int) -> tuple[DimPairs, int] | None:
    """The dimensions that copy columns `low` to `high` (exclusive), and the source's displacement."""
    if low >= high:
        return None
    if not pairs:
        return ([(1, 0, 1)], 0) if (low, high) == (0, 1) else None
    (step, other, _), inner = pairs[0], pairs[1:]
    extent = 1 + sum(pair[0] * (pair[2] - 1) for pair in inner)
    if step < extent or any(pair[0] <= 0 for pair in inner):
        return None
    first, last = low // step, (high - 1) // step
    if first < last:
        whole = low == first * step and high >= last * step + extent
        return ([(step, other, last - first + 1), *inner], first * other) if whole else None
    if not inner:
        return [(step, other, 1)], first * other
    # There may be a gap after the last column of a slice.
    found = _cut_columns(inner, low - first * step, min(high - first * step, extent))
    return None if found is None else (found[0], found[1] + first * other)
