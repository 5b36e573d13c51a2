"""Parts of arrays: along each axis the positions that are wanted, a range where they are contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.judge.identity.domain import Array, Planes
from remote.judge.identity.expression import Aligned, Shape

Ints = NDArray[np.int64]
Axis = range | Ints
Region = tuple[Axis, ...]

ONE = range(1)


def whole(shape: Shape) -> Region:
    """Return all of an array."""
    return tuple(range(size) for size in shape)


def sizes(region: Region) -> Shape:
    """Return the shape of what is in a region."""
    return tuple(len(axis) for axis in region)


def listed(axis: Axis) -> Ints:
    """Return positions as an array."""
    return np.arange(axis.start, axis.stop, axis.step) if isinstance(axis, range) else axis


def merged(regions: Sequence[Region]) -> Region:
    """Return the smallest region, sorted along each axis, that holds all of these."""
    if len(regions) == 1 and all(isinstance(axis, range) and axis.step == 1 for axis in regions[0]):
        return regions[0]
    return tuple(_union(axes) for axes in zip(*regions, strict=True))


def broadcast(region: Region, shape: Shape) -> Region:
    """Return what a region asks of an array of `shape` that was broadcast."""
    own = region[len(region) - len(shape) :]
    return tuple(ONE if size == 1 else axis for axis, size in zip(own, shape, strict=True))


def taken(value: Planes, have: Region, want: Region) -> Planes:
    """Return the wanted part of a value that holds a region."""
    index = tuple(_position(one, other) for one, other in zip(have, want, strict=True))
    if all(isinstance(item, slice) for item in index):
        return value.move(lambda array: array[index])
    grid = np.ix_(*(_numbers(item, size) for item, size in zip(index, value.shape, strict=True)))
    return value.move(lambda array: array[grid])


def indices(region: Region, strides: Sequence[int], offset: int = 0) -> Ints:
    """Return offset + index * strides for every element of a region."""
    total = np.full(sizes(region), offset, np.int64)
    for number, (axis, stride) in enumerate(zip(region, strides, strict=True)):
        total += (listed(axis) * stride).reshape(-1, *(1,) * (len(region) - number - 1))
    return total


def of_source(part: Aligned, region: Region, source: Shape) -> Region:
    """Return what a region of a strided part asks of its source."""
    found: list[Axis] = [range(start, start + 1) for start in part.starts]
    for axis in range(len(source)):
        if axis in part.axes:
            own, step = part.axes[axis]
            found[axis] = _stepped(region[own], part.starts[axis], step)
    return tuple(found)


def of_piece(part: Aligned, region: Region, shape: Shape) -> tuple[Region, list[Axis]] | None:
    """Return what a region of an array asks of a piece of it, and where in the region that lies.

    Where: positions along each axis of the region. None: the piece is not in the region.
    """
    wanted: list[Axis] = [ONE] * len(shape)
    where: list[Axis] = []
    for axis, start in enumerate(part.starts):
        own, step = part.axes.get(axis, (None, 1))
        count = 1 if own is None else shape[own]
        mine, at = _met(region[axis], start, step, count)
        if not len(mine):
            return None
        where.append(at)
        if own is not None:
            wanted[own] = mine
    return tuple(wanted), where


def placed(target: Array, part: Array, where: Sequence[Axis], part_axes: Sequence[int | None]) -> None:
    """Write a piece to its places; `part_axes` names, for each axis of the target, the piece's or none."""
    order = [axis for axis in part_axes if axis is not None]
    rest = [axis for axis in range(part.ndim) if axis not in order]
    counts = tuple(len(at) for at in where)
    index: Any = tuple(slice(at.start, at.stop) if isinstance(at, range) else at for at in where)
    if not all(isinstance(at, range) for at in where):
        index = np.ix_(*map(listed, where))
    target[index] = part.transpose(*order, *rest).reshape(counts)


def without(axis: Axis, where: Axis) -> Axis:
    """Return an axis without what lies at some positions in it."""
    return _tidy(np.delete(listed(axis), listed(where)))


def _union(axes: Sequence[Axis]) -> Axis:
    first = axes[0]
    if (
        isinstance(first, range)
        and first.step == 1
        and all(axis is first or axis == first for axis in axes if isinstance(axis, range))
        and all(isinstance(axis, range) for axis in axes)
    ):
        return first
    return _tidy(np.unique(np.concatenate([listed(axis) for axis in axes])))


def _tidy(positions: Ints) -> Axis:
    if positions.size and positions[-1] - positions[0] + 1 == positions.size:
        return range(int(positions[0]), int(positions[-1]) + 1)
    return positions


def _stepped(axis: Axis, start: int, step: int) -> Axis:
    if isinstance(axis, range):
        return range(start + step * axis.start, start + step * axis.stop, step * axis.step)
    return start + step * axis


def _position(have: Axis, want: Axis) -> slice | Ints:
    if isinstance(have, range):
        if isinstance(want, range) and want.step == 1:
            return slice(want.start - have.start, want.stop - have.start)
        return listed(want) - have.start
    return np.searchsorted(have, listed(want))


def _numbers(item: slice | Ints, size: int) -> Ints:
    return np.arange(*item.indices(size)) if isinstance(item, slice) else item


def _met(axis: Axis, start: int, step: int, count: int) -> tuple[Axis, Axis]:
    """Which of `count` positions from `start` on lie in an axis, and where in it."""
    if isinstance(axis, range) and step == 1:
        first, end = max(axis.start, start), min(axis.stop, start + count)
        if first >= end:
            return range(0), range(0)
        return range(first - start, end - start), range(first - axis.start, end - axis.start)
    steps, off = np.divmod(listed(axis) - start, step)
    at = np.flatnonzero((off == 0) & (steps >= 0) & (steps < count))
    return _tidy(steps[at]), _tidy(at)
