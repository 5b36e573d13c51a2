"""The parts of a tensor that accesses touch, as boxes of rows and columns, and how the boxes overlap.

A box of rows and columns of the tensor's storage encloses an access pattern: partitions and free elements on
chip; in HBM the columns are the last dimension.
"""

from __future__ import annotations

import numpy as np

from nki_sim.dtypes import DTYPES
from nki_sim.errors import LimitError
from nki_sim.forms import Dims, Operand
from nki_sim.program.ir import Bools, Ints, Program

Box = tuple[int, ...]
"""(row, end row, column, end column)."""

_CHUNK = 512

_FEW = 8
"""Up to so many boxes are compared one by one."""

MAX_PAIRS = 1 << 23
"""Limit on overlapping pairs of distinct boxes of one tensor."""

MAX_COMPARED = 1 << 31
"""Limit on pairs of boxes compared to find overlaps."""

MAX_MARKS = 1 << 30
"""Limit on elements of one tensor that are checked one by one."""


def access_boxes(program: Program, order: Ints) -> Ints:
    """Return the boxes of some cells: [cell, (row, end row, column, end column)].

    Columns count elements as declared. An element that an access as another type touches in part counts as
    touched.
    """
    cells, items = program.cells, program.operands
    extents = np.array([_row_column_extent(item) for item in items], dtype=np.int64)
    rows = np.array([item.row for item in items], dtype=np.int64)
    item = cells.operand[order]
    before = np.array([item.reach_below for item in items], dtype=np.int64)
    row, column = np.divmod(cells.offset[order] - before[item], rows[item])
    height, width = extents[item, 0], extents[item, 1]
    # A pattern whose columns run past the end of a row covers whole rows.
    over = column + width > rows[item]
    height = np.where(over, height + (column + width - 1) // rows[item], height)
    column = np.where(over, 0, column)
    width = np.where(over, rows[item], width)
    found = np.stack([row, row + height, column, column + width], axis=1)
    if any(item.index_step for item in items):
        _widen_indexed(program, order, found)
    if program.reinterpreted_tensors:
        _scale_columns(program, order, found)
    return found


def fills_box(program: Program, chosen: Ints, places: Ints) -> Bools:
    """Which accesses touch every element of their boxes."""
    cells = program.cells
    declared = np.array([DTYPES[site.dtype].itemsize for site in program.sites], dtype=np.int64)
    nbytes = np.array([item.nbytes for item in program.operands], dtype=np.int64)[cells.operand[chosen]]
    area = (places[:, 1] - places[:, 0]) * (places[:, 3] - places[:, 2])
    return np.asarray(nbytes == area * declared[program.tensor_sites[cells.tensor[chosen]]])


def _scale_columns(program: Program, order: Ints, found: Ints) -> None:
    operand, tensor = program.cells.operand[order], program.cells.tensor[order]
    widths = np.array([item.itemsize for item in program.operands], dtype=np.int64)[operand]
    declared = np.array([DTYPES[site.dtype].itemsize for site in program.sites], dtype=np.int64)
    units = declared[program.tensor_sites[tensor]]
    found[:, 2] = found[:, 2] * widths // units
    found[:, 3] = -(-found[:, 3] * widths // units)


def _widen_indexed(program: Program, order: Ints, found: Ints) -> None:
    """Widen boxes of data-dependent addresses to any row, any column of their partitions, or both."""
    items, operand = program.operands, program.cells.operand[order]
    sites = program.tensor_sites[program.cells.tensor[order]]
    sizes = np.array([site.size // site.row for site in program.sites], dtype=np.int64)[sites]
    steps, rows = (np.array([getattr(item, name) for item in items]) for name in ("index_step", "row"))
    moved, by_row = steps[operand] > 0, (steps % rows == 0)[operand]
    hbm = np.array([item.in_hbm for item in items], dtype=bool)[operand]
    high, wide = moved & (by_row | hbm), moved & ~by_row
    found[:, 0] = np.where(high, 0, found[:, 0])
    found[:, 1] = np.where(high, sizes, found[:, 1])
    found[:, 2] = np.where(wide, 0, found[:, 2])
    found[:, 3] = np.where(wide, rows[operand], found[:, 3])


def _row_column_extent(item: Operand) -> tuple[int, int]:
    """Rows and columns spanned: steps that are multiples of the row walk rows, the others columns."""
    rows = columns = 1
    for step, count in item.ascending_dims:
        if step % item.row == 0:
            rows += step // item.row * (count - 1)
        else:
            columns += step * (count - 1)
    return rows, columns


def make_element_marks(size: int) -> Bools:
    """Make one cleared bit per element of a tensor, or per byte.

    Raises:
        LimitError: there are too many elements to look at one by one.
    """
    if size > MAX_MARKS:
        raise LimitError(
            "limit_memory", f"a tensor of {size} elements is looked at one by one, the limit is {MAX_MARKS}",
            hint="try smaller inputs",
        )  # fmt: skip
    return np.zeros(size, dtype=bool)


def pattern_in_bytes(item: Operand) -> Dims:
    """The access pattern in bytes."""
    size = item.itemsize
    return (*((step * size, count) for step, count in item.dims), (1, size))


def find_overlaps(boxes: Ints) -> tuple[list[list[int]], list[list[int]]]:
    """Per box, the boxes that overlap it (including itself), and the boxes that it encloses.

    Raises:
        LimitError: there are too many pairs.
    """
    if len(boxes) <= _FEW:
        return _compare_few(boxes.tolist())
    near: list[list[int]] = [[] for _ in range(len(boxes))]
    inside: list[list[int]] = [[] for _ in range(len(boxes))]
    pairs = compared = 0
    for rows in _split_bands(boxes, np.arange(len(boxes)), axis=0):
        for group in _split_bands(boxes, rows, axis=2):
            compared += len(group) ** 2
            pairs += (
                _compare_group(boxes, group, near, inside=inside, most=MAX_PAIRS - pairs)
                if compared <= MAX_COMPARED
                else 0
            )
            if pairs > MAX_PAIRS or compared > MAX_COMPARED:
                raise LimitError(
                    "limit_work", f"{len(boxes)} regions of a tensor overlap in more than {MAX_PAIRS} pairs",
                    hint="access tensors in tiles that are the same each time",
                )  # fmt: skip
    return near, inside


def _compare_few(boxes: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """The same for so few boxes that arrays would take longer."""
    near: list[list[int]] = []
    inside: list[list[int]] = []
    for top, bottom, left, right in boxes:
        near.append([])
        inside.append([])
        for other, (row, end_row, column, end_column) in enumerate(boxes):
            if top < end_row and row < bottom and left < end_column and column < right:
                near[-1].append(other)
                if top <= row and end_row <= bottom and left <= column and end_column <= right:
                    inside[-1].append(other)
    return near, inside


def _split_bands(boxes: Ints, chosen: Ints, *, axis: int) -> list[Ints]:
    """Groups of boxes whose intervals on an axis touch; boxes of different groups cannot overlap."""
    order = chosen[np.argsort(boxes[chosen, axis], kind="stable")]
    reach = np.maximum.accumulate(boxes[order, axis + 1])
    cuts = np.flatnonzero(boxes[order[1:], axis] >= reach[:-1]) + 1
    return np.split(order, cuts)


def _compare_group(
    boxes: Ints, group: Ints, near: list[list[int]], *, inside: list[list[int]], most: int
) -> int:
    """Fill in the boxes of a group; return the number of overlapping pairs, stopping beyond `most`."""
    if len(group) == 1:
        near[group[0]] = inside[group[0]] = [int(group[0])]
        return 1
    others = boxes[group]
    pairs = 0
    for first in range(0, len(group), _CHUNK):
        part = group[first : first + _CHUNK]
        overlaps = _boxes_overlap(boxes[part][:, None, :], others)
        pairs += int(np.count_nonzero(overlaps))
        if pairs > most:
            break
        encloses = _box_encloses(boxes[part][:, None, :], others)
        for number, over, enclosed in zip(part.tolist(), overlaps, encloses, strict=True):
            near[number] = group[over].tolist()
            inside[number] = group[enclosed].tolist()
    return pairs


def _boxes_overlap(part: Ints, boxes: Ints) -> Bools:
    row = (part[..., 0] < boxes[:, 1]) & (boxes[:, 0] < part[..., 1])
    return row & (part[..., 2] < boxes[:, 3]) & (boxes[:, 2] < part[..., 3])


def _box_encloses(part: Ints, boxes: Ints) -> Bools:
    row = (part[..., 0] <= boxes[:, 0]) & (boxes[:, 1] <= part[..., 1])
    return row & (part[..., 2] <= boxes[:, 2]) & (boxes[:, 3] <= part[..., 3])
