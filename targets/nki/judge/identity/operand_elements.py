"""Positions of operand elements: rows and columns of an operand, and offsets in its tensor's memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from nki_sim.forms import Dims, Operand
from nki_sim.program.ir import Bools, Ints


class OperandElements(NamedTuple):
    """Elements of an operand as [partitions, free]: their rows and columns, broadcast against each other."""

    rows: Ints
    columns: Ints

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(self.rows.shape, self.columns.shape)


def make_grid(rows: Ints, columns: Ints) -> OperandElements:
    """All of some columns in all of some rows."""
    return OperandElements(rows[:, None], columns[None, :])


def all_elements(item: Operand) -> OperandElements:
    return make_grid(np.arange(item.partitions), np.arange(item.free))


def elements_by_number(numbers: Ints, item: Operand) -> OperandElements:
    """Elements by their numbers in row order."""
    return OperandElements(*np.divmod(numbers, item.free))


def element_numbers(where: OperandElements, item: Operand) -> Ints:
    """The elements' numbers in row order."""
    found: Ints = where.rows * item.free + where.columns
    return found


def element_offsets(where: OperandElements, item: Operand, offset: int) -> Ints:
    """Return the elements' positions in the tensor that the operand begins `offset` elements into."""
    found: Ints = offset + where.rows * item.dims[0][0] + _free_offsets(item.dims[1:])[where.columns]
    return found


def operand_bits(bits: Bools, item: Operand, offset: int) -> Bools:
    """The bits of an operand's elements, as a view of its tensor's bits."""
    shape = tuple(count for _, count in item.dims)
    return np.ndarray(shape, np.bool_, bits, offset, tuple(step for step, _ in item.dims))


def box_offsets(shape: Sequence[int], box: Sequence[tuple[int, int]]) -> Ints:
    """The offsets of a box's elements in an array of this shape, in the box's own shape."""
    found: Ints = np.zeros((1,) * len(shape), np.int64)
    for axis, (first, end) in enumerate(box):
        line = np.arange(first, end) * prod(shape[axis + 1 :])
        found = found + line.reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return found


def _free_offsets(dims: Dims) -> Ints:
    """The offsets of a pattern's free elements, relative to its first."""
    found: Ints = np.zeros(1, np.int64)
    for step, count in dims:
        found = (found[:, None] + step * np.arange(count)).reshape(-1)
    return found
