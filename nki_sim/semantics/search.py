"""Finds the largest elements, positions of elements and segment bounds.

NaN equals nothing and is not greater than anything.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nki_sim.operators.rules.search import CORE_PARTITIONS
from nki_sim.semantics.arrays import UNINITIALISED, Array, Float, store
from nki_sim.semantics.common import Semantics, Touched, Values, Views, as_float, load_rows
from nki_sim.semantics.select import as_integer, convert_like, flatten_free

EIGHT = range(8)


def _max8(views: Views, values: Values) -> None:
    """Each partition's 8 largest elements, in descending order."""
    del values
    negated = -load_rows(views["src"])
    store(views["dst"], -np.sort(np.partition(negated, 7, axis=1)[:, :8], axis=1))


def _match_values(data: Float, wanted: Float, slots: Iterable[int]) -> Array:
    """Find the 8 values of each partition in `data` [P, F]; return positions [P, 8], -1 if absent.

    Slots are handled in the given order. Each takes the first equal element that no earlier slot took, so
    equal values find different elements.
    """
    free = np.ones(data.shape, bool)
    found = np.full(wanted.shape, -1, np.int64)
    for slot in slots:
        match = free & (data == wanted[:, slot, None])
        first = match.argmax(axis=1)
        lanes = np.flatnonzero(match.any(axis=1))
        found[lanes, slot] = first[lanes]
        free[lanes, first[lanes]] = False
    return found


def _store_indices(dst: Array, found: Array) -> None:
    """Store indices; -1 becomes all ones."""
    np.copyto(dst, found.astype(dst.dtype).reshape(dst.shape))


def _nc_find_index8(views: Views, values: Values) -> None:
    del values
    _store_indices(views["dst"], _match_values(load_rows(views["data"]), load_rows(views["vals"]), EIGHT))


def _nc_match_replace8(views: Views, values: Values) -> None:
    """Search the 8 values from the last to the first, as documented for equal values."""
    data, dst = flatten_free(views["data"]), views["dst"]
    found = _match_values(load_rows(data), load_rows(views["vals"]), reversed(EIGHT))
    lanes, slots = np.nonzero(found >= 0)
    result = np.array(convert_like(data, dst))
    result[lanes, found[lanes, slots]] = convert_like(as_float(values["imm"]), dst)
    np.copyto(dst, result.reshape(dst.shape))
    if "dst_idx" in views:
        _store_indices(views["dst_idx"], found)


def from_snake_order(view: Array) -> Array:
    """[cores, elements] from [P, F]: of each 16 partitions all first elements, then all second ones, etc."""
    tile = flatten_free(view)
    return (
        tile.reshape(-1, CORE_PARTITIONS, tile.shape[1])
        .swapaxes(1, 2)
        .reshape(len(tile) // CORE_PARTITIONS, -1)
    )


def to_snake_order(values: Array, lanes: int) -> Array:
    """[lanes, columns] from [cores, elements], the inverse of `from_snake_order`; columns are full."""
    columns = values.shape[1] // CORE_PARTITIONS
    return values.reshape(-1, columns, CORE_PARTITIONS).swapaxes(1, 2).reshape(lanes, columns)


def first_in_snake(view: Array, count: int) -> Array:
    """Mask [P, F] of the first `count` elements of each core."""
    tile = flatten_free(view)
    first = np.arange(tile.shape[1] * CORE_PARTITIONS) < count
    return to_snake_order(np.tile(first, (len(tile) // CORE_PARTITIONS, 1)), len(tile))


def _write_snake(dst: Array, values: Array) -> None:
    """Write the first elements [cores, k] of a snake; later lanes become undefined."""
    cores, count = values.shape
    columns = -(-count // CORE_PARTITIONS)
    full = np.full((cores, columns * CORE_PARTITIONS), UNINITIALISED[dst.dtype], dst.dtype)
    full[:, :count] = values
    result = np.array(flatten_free(dst))
    result[:, :columns] = to_snake_order(full, len(result))
    np.copyto(dst, result.reshape(dst.shape))


def _topk(views: Views, values: Values) -> None:
    """Each 16 partitions' largest elements and their positions: ascending, or descending if `sorted`.

    Of equal elements the first are taken. Where the documents give no order, this one is a choice.
    """
    elements = from_snake_order(views["src"])[:, : as_integer(values["n"])]
    count = flatten_free(views["val_dst"]).shape[1]
    order = np.argsort(-elements.astype(np.float32), axis=1, kind="stable")[:, :count]
    order = order if values.get("sorted") else order[:, ::-1]
    _write_snake(views["val_dst"], np.take_along_axis(elements, order, axis=1))
    _write_snake(views["idx_dst"], order)


def _topk_touches(views: Views, values: Values) -> dict[str, Array]:
    results = {
        role: first_in_snake(views[role], flatten_free(views[role]).shape[1])
        for role in ("val_dst", "idx_dst")
    }
    return {"src": first_in_snake(views["src"], as_integer(values["n"])), **results}


def _nonzero_with_count(views: Views, values: Values) -> None:
    """Indices of nonzero elements, padding, and their number; only each core's first partition counts."""
    mask = flatten_free(views["src"])[::CORE_PARTITIONS] != 0
    count = mask.sum(axis=1, keepdims=True)
    order = np.argsort(~mask, axis=1, kind="stable") + as_integer(values["index_offset"])
    filled = np.where(np.arange(mask.shape[1]) < count, order, as_integer(values["padding_val"]))
    part = views["dst"][::CORE_PARTITIONS]
    np.copyto(part, np.hstack([filled, count]).astype(part.dtype).reshape(part.shape))


def _first_lanes(views: Views, values: Values) -> dict[str, Array]:
    del values
    return {role: (np.arange(len(views[role])) % CORE_PARTITIONS == 0)[:, None] for role in ("dst", "src")}


def _sequence_bounds(views: Views, values: Values) -> None:
    """First and one past the last index of the run that each element is in; zeros are padding: (n, -1)."""
    del values
    ids = load_rows(views["segment_ids"])[0]
    size, places = len(ids), np.arange(len(ids))
    breaks = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    edges = np.concatenate([[0], breaks, [size]])
    run = np.searchsorted(edges, places, side="right")
    padding = ids == 0
    bounds = np.where(padding, size, edges[run - 1]), np.where(padding, -1, edges[run])
    store(views["dst"], np.concatenate(bounds).astype(np.int32))


TOUCHED: dict[str, Touched] = {"topk": _topk_touches, "nonzero_with_count": _first_lanes}

SEMANTICS: dict[str, Semantics] = {
    "max8": _max8,
    "nc_find_index8": _nc_find_index8,
    "nc_match_replace8": _nc_match_replace8,
    "topk": _topk,
    "nonzero_with_count": _nonzero_with_count,
    "sequence_bounds": _sequence_bounds,
}
