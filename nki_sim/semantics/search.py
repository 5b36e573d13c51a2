"""The largest elements, where elements are, where segments begin and end. NaN equals and exceeds nothing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nki_sim.operators.rules.search import CORE_PARTITIONS
from nki_sim.semantics.arrays import UNINITIALISED, Array, Float, store
from nki_sim.semantics.common import Semantics, Touched, Values, Views, number, rows
from nki_sim.semantics.select import converted, flat, integer

EIGHT = range(8)


def _max8(views: Views, values: Values) -> None:
    """Each partition's 8 largest elements, falling."""
    del values
    negated = -rows(views["src"])
    store(views["dst"], -np.sort(np.partition(negated, 7, axis=1)[:, :8], axis=1))


def _pair(data: Float, wanted: Float, slots: Iterable[int]) -> Array:
    """Where in `data` [P, F] the 8 values of each partition are: [P, 8], -1 for one that is not there.

    The slots take turns; each takes the first equal element that none before it took, so that equal values
    find different elements.
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
    """Indices as they are, -1 as all ones."""
    np.copyto(dst, found.astype(dst.dtype).reshape(dst.shape))


def _nc_find_index8(views: Views, values: Values) -> None:
    del values
    _store_indices(views["dst"], _pair(rows(views["data"]), rows(views["vals"]), EIGHT))


def _nc_match_replace8(views: Views, values: Values) -> None:
    """The 8 values are looked for from the last to the first, as documented for equal ones."""
    data, dst = flat(views["data"]), views["dst"]
    found = _pair(rows(data), rows(views["vals"]), reversed(EIGHT))
    lanes, slots = np.nonzero(found >= 0)
    result = np.array(converted(data, dst))
    result[lanes, found[lanes, slots]] = converted(number(values["imm"]), dst)
    np.copyto(dst, result.reshape(dst.shape))
    if "dst_idx" in views:
        _store_indices(views["dst_idx"], found)


def unsnaked(view: Array) -> Array:
    """[cores, elements] of [P, F]: of each 16 partitions all first elements, then all second ones."""
    tile = flat(view)
    return (
        tile.reshape(-1, CORE_PARTITIONS, tile.shape[1])
        .swapaxes(1, 2)
        .reshape(len(tile) // CORE_PARTITIONS, -1)
    )


def snaked(values: Array, lanes: int) -> Array:
    """[lanes, columns], such that `unsnaked` gives back [cores, elements]; elements fill all columns."""
    columns = values.shape[1] // CORE_PARTITIONS
    return values.reshape(-1, columns, CORE_PARTITIONS).swapaxes(1, 2).reshape(lanes, columns)


def in_snake(view: Array, count: int) -> Array:
    """[P, F]: the places of the first `count` elements of each core."""
    tile = flat(view)
    first = np.arange(tile.shape[1] * CORE_PARTITIONS) < count
    return snaked(np.tile(first, (len(tile) // CORE_PARTITIONS, 1)), len(tile))


def _write_snake(dst: Array, values: Array) -> None:
    """Write the first elements [cores, k] of a snake; lanes after the last of them become undefined."""
    cores, count = values.shape
    columns = -(-count // CORE_PARTITIONS)
    full = np.full((cores, columns * CORE_PARTITIONS), UNINITIALISED[dst.dtype], dst.dtype)
    full[:, :count] = values
    result = np.array(flat(dst))
    result[:, :columns] = snaked(full, len(result))
    np.copyto(dst, result.reshape(dst.shape))


def _topk(views: Views, values: Values) -> None:
    """Each 16 partitions' largest elements and their places: rising, or falling when `sorted`.

    Of equal elements the first are taken. The documents leave both orders open where they give none.
    """
    elements = unsnaked(views["src"])[:, : integer(values["n"])]
    count = flat(views["val_dst"]).shape[1]
    order = np.argsort(-elements.astype(np.float32), axis=1, kind="stable")[:, :count]
    order = order if values.get("sorted") else order[:, ::-1]
    _write_snake(views["val_dst"], np.take_along_axis(elements, order, axis=1))
    _write_snake(views["idx_dst"], order)


def _topk_touches(views: Views, values: Values) -> dict[str, Array]:
    results = {role: in_snake(views[role], flat(views[role]).shape[1]) for role in ("val_dst", "idx_dst")}
    return {"src": in_snake(views["src"], integer(values["n"])), **results}


def _nonzero_with_count(views: Views, values: Values) -> None:
    """Indices that are not zero, padding, and their number; each core's first partition alone."""
    mask = flat(views["src"])[::CORE_PARTITIONS] != 0
    count = mask.sum(axis=1, keepdims=True)
    order = np.argsort(~mask, axis=1, kind="stable") + integer(values["index_offset"])
    filled = np.where(np.arange(mask.shape[1]) < count, order, integer(values["padding_val"]))
    part = views["dst"][::CORE_PARTITIONS]
    np.copyto(part, np.hstack([filled, count]).astype(part.dtype).reshape(part.shape))


def _first_lanes(views: Views, values: Values) -> dict[str, Array]:
    del values
    return {role: (np.arange(len(views[role])) % CORE_PARTITIONS == 0)[:, None] for role in ("dst", "src")}


def _sequence_bounds(views: Views, values: Values) -> None:
    """First and one past the last index of the run that each element is in; zeros are padding: (n, -1)."""
    del values
    ids = rows(views["segment_ids"])[0]
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
