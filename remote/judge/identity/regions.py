"""Regions of arrays: the wanted positions along each axis, as a range where they are contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.judge.identity.domain import Array, Planes
from remote.judge.identity.expression import AxisAlignment, Shape

Ints = NDArray[np.int64]
AxisPositions = range | Ints
ArrayRegion = tuple[AxisPositions, ...]

SINGLE_POSITION = range(1)


def region_shape(region: ArrayRegion) -> Shape:
    """Return the shape of a region's contents."""
    return tuple(len(axis) for axis in region)


def as_positions(axis: AxisPositions) -> Ints:
    """Return positions as an array."""
    return np.arange(axis.start, axis.stop, axis.step) if isinstance(axis, range) else axis


def merge_regions(regions: Sequence[ArrayRegion]) -> ArrayRegion:
    """Return the smallest region, sorted along each axis, that holds all of these."""
    if len(regions) == 1 and all(isinstance(axis, range) and axis.step == 1 for axis in regions[0]):
        return regions[0]
    return tuple(_union_axes(axes) for axes in zip(*regions, strict=True))


def unbroadcast_region(region: ArrayRegion, shape: Shape) -> ArrayRegion:
    """Return what a region needs of an array of `shape` that was broadcast."""
    own = region[len(region) - len(shape) :]
    return tuple(SINGLE_POSITION if size == 1 else axis for axis, size in zip(own, shape, strict=True))


def take_region(value: Planes, have: ArrayRegion, want: ArrayRegion) -> Planes:
    """Return the wanted part of a value that holds a region."""
    index = tuple(_relative_index(one, other) for one, other in zip(have, want, strict=True))
    if all(isinstance(item, slice) for item in index):
        return value.move(lambda array: array[index])
    grid = np.ix_(*(_as_indices(item, size) for item, size in zip(index, value.shape, strict=True)))
    return value.move(lambda array: array[grid])


def flat_indices(region: ArrayRegion, strides: Sequence[int], offset: int = 0) -> Ints:
    """Return offset + index * strides for every element of a region."""
    total = np.full(region_shape(region), offset, np.int64)
    for number, (axis, stride) in enumerate(zip(region, strides, strict=True)):
        total += (as_positions(axis) * stride).reshape(-1, *(1,) * (len(region) - number - 1))
    return total


def source_region(part: AxisAlignment, region: ArrayRegion, source: Shape) -> ArrayRegion:
    """Return what a region of a strided part needs of its source."""
    found: list[AxisPositions] = [range(start, start + 1) for start in part.starts]
    for axis in range(len(source)):
        if axis in part.axes:
            own, step = part.axes[axis]
            found[axis] = _step_axis(region[own], part.starts[axis], step)
    return tuple(found)


def piece_region(
    part: AxisAlignment, region: ArrayRegion, shape: Shape
) -> tuple[ArrayRegion, list[AxisPositions]] | None:
    """Return what a region of an array needs of a piece of it, and where in the region that lies.

    The place is given as positions along each axis of the region. None: the piece is not in the region.
    """
    wanted: list[AxisPositions] = [SINGLE_POSITION] * len(shape)
    where: list[AxisPositions] = []
    for axis, start in enumerate(part.starts):
        own, step = part.axes.get(axis, (None, 1))
        count = 1 if own is None else shape[own]
        mine, at = _intersect_steps(region[axis], start, step, count=count)
        if not len(mine):
            return None
        where.append(at)
        if own is not None:
            wanted[own] = mine
    return tuple(wanted), where


def write_piece(
    target: Array, part: Array, where: Sequence[AxisPositions], part_axes: Sequence[int | None]
) -> None:
    """Write a piece to its place; `part_axes` has the piece's axis, or None, for each target axis."""
    order = [axis for axis in part_axes if axis is not None]
    rest = [axis for axis in range(part.ndim) if axis not in order]
    counts = tuple(len(at) for at in where)
    index: Any = tuple(slice(at.start, at.stop) if isinstance(at, range) else at for at in where)
    if not all(isinstance(at, range) for at in where):
        index = np.ix_(*map(as_positions, where))
    target[index] = part.transpose(*order, *rest).reshape(counts)


def _union_axes(axes: Sequence[AxisPositions]) -> AxisPositions:
    first = axes[0]
    if (
        isinstance(first, range)
        and first.step == 1
        and all(axis is first or axis == first for axis in axes if isinstance(axis, range))
        and all(isinstance(axis, range) for axis in axes)
    ):
        return first
    return _as_range(np.unique(np.concatenate([as_positions(axis) for axis in axes])))


def _as_range(positions: Ints) -> AxisPositions:
    if positions.size and positions[-1] - positions[0] + 1 == positions.size:
        return range(int(positions[0]), int(positions[-1]) + 1)
    return positions


def _step_axis(axis: AxisPositions, start: int, step: int) -> AxisPositions:
    if isinstance(axis, range):
        return range(start + step * axis.start, start + step * axis.stop, step * axis.step)
    return start + step * axis


def _relative_index(have: AxisPositions, want: AxisPositions) -> slice | Ints:
    if isinstance(have, range):
        if isinstance(want, range) and want.step == 1:
            return slice(want.start - have.start, want.stop - have.start)
        return as_positions(want) - have.start
    return np.searchsorted(have, as_positions(want))


def _as_indices(item: slice | Ints, size: int) -> Ints:
    return np.arange(*item.indices(size)) if isinstance(item, slice) else item


def _intersect_steps(
    axis: AxisPositions, start: int, step: int, *, count: int
) -> tuple[AxisPositions, AxisPositions]:
    """Which of `count` positions from `start` on lie in an axis, and where in it."""
    if isinstance(axis, range) and step == 1:
        first, end = max(axis.start, start), min(axis.stop, start + count)
        if first >= end:
            return range(0), range(0)
        return range(first - start, end - start), range(first - axis.start, end - axis.start)
    steps, off = np.divmod(as_positions(axis) - start, step)
    at = np.flatnonzero((off == 0) & (steps >= 0) & (steps < count))
    return _as_range(steps[at]), _as_range(at)
