"""Records indexing: basic indices make views, lists of known numbers select along an axis.

Integers that an input holds select too: the elements along the axis are compared with them by number, and all
but the one that is meant count as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from remote.judge.identity.domain import Array
from remote.judge.identity.tracing.arrays import RecordedArray, UntraceableError
from remote.judge.identity.tracing.ufuncs import common_type, record_reduction

_MAX_PUT_ELEMENTS = 1 << 24
"""Elements of the largest array that can be written to at listed positions."""


def get_elements(value: RecordedArray, index: Any) -> RecordedArray:
    """Return value[index]."""
    given = index if isinstance(index, tuple) else (index,)
    if any(isinstance(item, RecordedArray) for item in given):
        return _gather_by_index(value, given)
    items = _normalise_index(value, index)
    if not any(isinstance(item, np.ndarray) for item in items):
        return value.move_shadow(lambda array: array[_basic_index(items)])
    plain, lists = _split_index(items)
    view = value.move_shadow(lambda array: array[_basic_index(plain)])
    axes = list(lists)
    shape = np.broadcast_shapes(*(item.shape for item in lists.values()))
    first = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    view = view.move_shadow(lambda array: np.moveaxis(array, axes, range(first, first + len(axes))))
    extents = view.shape[first : first + len(axes)]
    wrapped = [
        np.where(item < 0, item + extent, item) for item, extent in zip(lists.values(), extents, strict=True)
    ]
    flat = np.ravel_multi_index(np.broadcast_arrays(*wrapped), extents).reshape(-1)
    before, after = view.shape[:first], view.shape[first + len(axes) :]
    merged = view.move_shadow(lambda array: array.reshape(*before, prod(extents), *after))
    return take_elements(merged, flat, first).move_shadow(
        lambda array: array.reshape(*before, *shape, *after)
    )


def take_elements(value: RecordedArray, index: Array, axis: int) -> RecordedArray:
    """Return elements along an axis, by a list of known numbers."""
    if not index.size:
        raise UntraceableError("it takes no elements of an array")
    listed = value.recorder.store_array(index.astype(np.int64))
    return value.recorder.make_array(value.recorder.add("take", (value.number,), (listed, axis)), value.dtype)


def _gather_by_index(value: RecordedArray, items: Sequence[Any]) -> RecordedArray:
    """value[items], where one item holds numbers that only inputs know."""
    recorded = [axis for axis, item in enumerate(items) if isinstance(item, RecordedArray)]
    axis, places = recorded[0], items[recorded[0]]
    if len(recorded) > 1 or any(item is None or item is Ellipsis for item in items):
        raise UntraceableError("it chooses elements by the numbers in an array, and mixes that with others")
    if any(isinstance(item, list | np.ndarray) and np.asarray(item).dtype == bool for item in items):
        raise UntraceableError("it chooses elements by the numbers in an array and by a mask")
    listed = [at for at, item in enumerate(items) if not isinstance(item, slice)]
    first = listed[0]
    if listed != [*range(first, first + len(listed))]:
        raise UntraceableError("it chooses elements by the numbers in an array, along axes that are apart")
    others = [np.asarray(items[at]) for at in listed if at != axis]
    shape = np.broadcast_shapes(places.shape, *(item.shape for item in others))
    # The axis goes last; what is chosen of the other axes has the places' axes, in front of what follows.
    moved = value.move_shadow(lambda array: np.moveaxis(array, axis, -1))
    spread = iter([np.broadcast_to(item, shape) for item in others])
    rest = [next(spread) if at in listed else item for at, item in enumerate(items) if at != axis]
    moved = get_elements(moved, tuple(rest)) if rest else moved
    if not others:
        before = (slice(None),) * first
        moved = moved.move_shadow(lambda array: array[(*before, *[None] * len(shape))])
    after = moved.ndim - first - len(shape) - 1
    wide = places.broadcast_view(shape).move_shadow(lambda array: array[(..., *[None] * after)])
    return _gather_last(moved, wide)


def _gather_last(value: RecordedArray, places: RecordedArray) -> RecordedArray:
    """The elements at these places of the last axis; the places' axes are those before it, or are spread."""
    if places.dtype.kind not in "iu":
        raise UntraceableError("it chooses elements by the numbers in an array that holds no integers")
    extent = value.shape[-1]
    if not _is_nonnegative(places):  # numbers below zero count from the end
        places = places + (places < 0) * extent
    column = places.move_shadow(lambda array: array[..., None])
    is_meant = column == np.arange(extent, dtype=np.int32)
    return record_reduction(is_meant * value, "add", -1, dtype=value.dtype)


def _is_nonnegative(places: RecordedArray) -> bool:
    """Whether these are elements of an input that has no numbers below zero."""
    recorder, number = places.recorder, places.number
    while recorder.table.nodes[number].kind == "view":
        number = recorder.table.nodes[number].args[0]
    return number in recorder.nonnegative


def put_elements(target: RecordedArray, index: Any, value: Any) -> None:
    """Write value to target[index]."""
    if isinstance(index, RecordedArray) and index.dtype == bool and index.shape == target.shape:
        target[...] = record_select(target, index, value, target)
        return
    items = _normalise_index(target, index)
    if not any(isinstance(item, np.ndarray) for item in items):
        target.write_part(target.shadow[_basic_index(items)], value)
        return
    if target.size > _MAX_PUT_ELEMENTS:
        raise UntraceableError("it writes to many listed places")
    count = np.arange(target.size).reshape(target.shape)[tuple(items)]
    places = np.full(target.size, -1)
    places[count.reshape(-1)] = np.arange(count.size)
    new = (
        value
        if isinstance(value, RecordedArray)
        else target.recorder.make_array(target.recorder.number_of(value))
    )
    spread = new.broadcast_view(count.shape).move_shadow(lambda array: array.reshape(-1))
    chosen = take_elements(spread, np.maximum(places, 0), 0).move_shadow(
        lambda array: array.reshape(target.shape)
    )
    target[...] = record_select(target, (places >= 0).reshape(target.shape), chosen, target)


def record_select(value: RecordedArray, mask: Any, left: Any, right: Any) -> RecordedArray:
    """Record a choice between two values by a condition."""
    numbers = tuple(value.recorder.number_of(item) for item in (mask, left, right))
    return value.recorder.make_array(value.recorder.add("select", numbers), common_type(left, right))


def _normalise_index(value: RecordedArray, index: Any) -> list[Any]:
    """The index as a list; lists become arrays, and masks the positions of their true values."""
    items: list[Any] = []
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, RecordedArray):
            raise UntraceableError("it chooses elements by the numbers in an array")
        if isinstance(item, list | np.ndarray | bool | np.bool_):
            array = np.asarray(item)
            items += array.nonzero() if array.dtype == bool else [array]
        else:
            items.append(item)
    if any(isinstance(item, np.ndarray) for item in items):
        items = [np.asarray(item) if isinstance(item, int | np.integer) else item for item in items]
    return items


def _basic_index(items: Sequence[Any]) -> tuple[Any, ...]:
    """An index that gives an array, with no axes where NumPy would give a number."""
    return tuple(items) if any(item is Ellipsis for item in items) else (*items, ...)


def _split_index(items: list[Any]) -> tuple[tuple[Any, ...], dict[int, Array]]:
    """The basic part of an index, with whole axes in place of lists, and the lists by axis of its result."""
    plain = tuple(slice(None) if isinstance(item, np.ndarray) else item for item in items)
    if any(item is None or item is Ellipsis for item in items):
        raise UntraceableError("it mixes lists of numbers with new axes or an ellipsis in an index")
    return plain, {axis: item for axis, item in enumerate(items) if isinstance(item, np.ndarray)}
