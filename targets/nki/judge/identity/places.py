"""Where elements of operands are: rows and columns of an operand, and their places in its tensor's memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from nki_sim.forms import Dims, Operand
from nki_sim.program.ir import Bools, Ints


class Where(NamedTuple):
    """Elements of an operand as [partitions, free]: their rows and columns, broadcast against each other."""

    rows: Ints
    columns: Ints

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(self.rows.shape, self.columns.shape)


def grid(rows: Ints, columns: Ints) -> Where:
    """All of some columns in all of some rows."""
    return Where(rows[:, None], columns[None, :])


def whole(item: Operand) -> Where:
    return grid(np.arange(item.partitions), np.arange(item.free))


def numbered(numbers: Ints, item: Operand) -> Where:
    """Elements by their numbers in row order."""
    return Where(*np.divmod(numbers, item.free))


def numbers(where: Where, item: Operand) -> Ints:
    """The elements' numbers in row order."""
    found: Ints = where.rows * item.free + where.columns
    return found


def places(where: Where, item: Operand, offset: int) -> Ints:
    """Where the elements are in the tensor that the operand begins `offset` elements into."""
    found: Ints = offset + where.rows * item.dims[0][0] + _walk(item.dims[1:])[where.columns]
    return found


def area(bits: Bools, item: Operand, offset: int) -> Bools:
    """The bits of an operand's elements, as a view of the bits of its tensor."""
    shape = tuple(count for _, count in item.dims)
    return np.ndarray(shape, np.bool_, bits, offset, tuple(step for step, _ in item.dims))


def box_places(shape: Sequence[int], box: Sequence[tuple[int, int]]) -> Ints:
    """The places of a box's elements in an array of this shape, in the box's own shape."""
    found: Ints = np.zeros((1,) * len(shape), np.int64)
    for axis, (first, end) in enumerate(box):
        line = np.arange(first, end) * prod(shape[axis + 1 :])
        found = found + line.reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return found


def _walk(dims: Dims) -> Ints:
    """The free elements of a pattern, from its first."""
    found: Ints = np.zeros(1, np.int64)
    for step, count in dims:
        found = (found[:, None] + step * np.arange(count)).reshape(-1)
    return found
