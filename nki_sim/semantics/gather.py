"""Gathers by index within a partition or a core's partitions, and shuffles between partitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nki_sim.errors import KernelError
from nki_sim.operators.rules.search import CORE_PARTITIONS, QUADRANT, UNMODIFIED
from nki_sim.semantics.arrays import Array
from nki_sim.semantics.common import Semantics, Touched, Values, Views
from nki_sim.semantics.search import first_in_snake, from_snake_order
from nki_sim.semantics.select import as_integer, flatten_free


def _check_places(data: Array, places: Array, what: str) -> Array:
    """The positions [P, n] that a gather takes from the partitions of [P, F].

    Raises:
        KernelError: a position is outside the partition.
    """
    size = data.shape[1]
    wrong = places[(places < 0) | (places >= size)]
    if wrong.size:
        raise KernelError(
            "tensor_access_out_of_bound",
            f"{what} holds {int(wrong[0])}, there are {size} elements in each partition",
            hint="clamp the indices before the gather",
        )
    return places


def _own_places(views: Views) -> Array:
    """The positions that nc_n_gather takes: each partition has its own."""
    return _check_places(
        flatten_free(views["data"]), flatten_free(views["indices"]).astype(np.int64), "indices"
    )


def _count_valid_indices(views: Views, values: Values) -> int:
    """How many indices each core gathers by."""
    count = values.get("num_valid_indices")
    return CORE_PARTITIONS * flatten_free(views["index"]).shape[1] if count is None else as_integer(count)


def _shared_places(views: Views, values: Values) -> Array:
    """The positions that local_gather takes: the cores' indices in snake order, each with its neighbours."""
    index = from_snake_order(views["index"])[:, : _count_valid_indices(views, values)].astype(np.int64)
    run = np.arange(as_integer(values["num_elem_per_idx"]))
    places = (index[:, :, None] + run).reshape(len(index), -1)
    return _check_places(
        flatten_free(views["src_buffer"]), np.repeat(places, CORE_PARTITIONS, axis=0), "index"
    )


def _take_places(dst: Array, data: Array, places: Array) -> None:
    np.copyto(dst, np.take_along_axis(flatten_free(data), places, axis=1).reshape(dst.shape))


def _mark_places(data: Array, places: Array) -> Array:
    marks = np.zeros(flatten_free(data).shape, bool)
    np.put_along_axis(marks, places, True, axis=1)
    return marks


def _nc_n_gather(views: Views, values: Values) -> None:
    del values
    _take_places(views["dst"], views["data"], _own_places(views))


def _local_gather(views: Views, values: Values) -> None:
    _take_places(views["dst"], views["src_buffer"], _shared_places(views, values))


def _local_gather_touches(views: Views, values: Values) -> dict[str, Array]:
    return {
        "index": first_in_snake(views["index"], _count_valid_indices(views, values)),
        "src_buffer": _mark_places(views["src_buffer"], _shared_places(views, values)),
    }


def source_partitions(mask: Sequence[int] | Array, lanes: Array) -> Array:
    """The partitions that a shuffle brings to these: `mask` names one of the same quadrant for each."""
    found: Array = lanes - lanes % QUADRANT + np.asarray(mask)[lanes % QUADRANT]
    return found


def _shuffle_moves(views: Views, values: Values) -> tuple[Array, Array]:
    """Partitions that a shuffle writes, and the partitions they come from."""
    mask, lanes = values["shuffle_mask"], np.arange(len(views["dst"]))
    assert isinstance(mask, tuple)
    moved = lanes[np.array(mask)[lanes % QUADRANT] != UNMODIFIED]
    return moved, source_partitions(mask, moved)


def _nc_stream_shuffle(views: Views, values: Values) -> None:
    """Partition i of each quadrant gets partition mask[i] of the source's; 255 leaves it unchanged."""
    dst = views["dst"]
    lanes, sources = _shuffle_moves(views, values)
    dst[lanes] = views["src"][sources].reshape(-1, *dst.shape[1:])


def _shuffle_touches(views: Views, values: Values) -> dict[str, Array]:
    lanes, sources = _shuffle_moves(views, values)
    pairs = (("dst", lanes), ("src", sources))
    return {role: np.isin(np.arange(len(views[role])), rows)[:, None] for role, rows in pairs}


TOUCHED: dict[str, Touched] = {
    "nc_n_gather": lambda views, _: {"data": _mark_places(views["data"], _own_places(views))},
    "local_gather": _local_gather_touches,
    "nc_stream_shuffle": _shuffle_touches,
}

SEMANTICS: dict[str, Semantics] = {
    "nc_n_gather": _nc_n_gather,
    "local_gather": _local_gather,
    "nc_stream_shuffle": _nc_stream_shuffle,
}
