"""Gathers by index within a partition or a core's partitions, and shuffles between partitions."""

from __future__ import annotations

import numpy as np

from nki_sim.arrays import Array
from nki_sim.errors import KernelError
from nki_sim.rules_search import CORE_PARTITIONS, QUADRANT, UNMODIFIED
from nki_sim.semantics.common import Semantics, Values, Views
from nki_sim.semantics.search import unsnaked
from nki_sim.semantics.select import flat, integer


def _taken(data: Array, index: Array, what: str) -> Array:
    """Elements of each partition of [P, F] at the places [P, n].

    Raises:
        KernelError: a place outside the partition.
    """
    size = data.shape[1]
    if index.size and not 0 <= int(index.min()) <= int(index.max()) < size:
        wrong = index[(index < 0) | (index >= size)]
        raise KernelError(
            "tensor_access_out_of_bound",
            f"{what} holds {int(wrong[0])}, there are {size} elements in each partition",
            hint="clamp the indices before the gather",
        )
    return np.take_along_axis(data, index, axis=1)


def _nc_n_gather(views: Views, values: Values) -> None:
    del values
    dst, index = views["dst"], flat(views["indices"]).astype(np.int64)
    np.copyto(dst, _taken(flat(views["data"]), index, "indices").reshape(dst.shape))


def _local_gather(views: Views, values: Values) -> None:
    """Each core's indices in the order partition first; each gives neighbouring elements in 16 partitions."""
    dst, run = views["dst"], integer(values["num_elem_per_idx"])
    index = unsnaked(views["index"]).astype(np.int64)
    if "num_valid_indices" in values:
        index = index[:, : integer(values["num_valid_indices"])]
    places = (index[:, :, None] + np.arange(run)).reshape(len(index), -1)
    taken = _taken(flat(views["src_buffer"]), np.repeat(places, CORE_PARTITIONS, axis=0), "index")
    np.copyto(dst, taken.reshape(dst.shape))


def _nc_stream_shuffle(views: Views, values: Values) -> None:
    """Partition i of each quadrant from partition mask[i] of the source's; 255 leaves it as it is."""
    dst, mask = views["dst"], values["shuffle_mask"]
    assert isinstance(mask, tuple)
    lanes = np.arange(dst.shape[0])
    chosen = np.array(mask)[lanes % QUADRANT]
    moved = chosen != UNMODIFIED
    source = (lanes - lanes % QUADRANT + chosen)[moved]
    dst[moved] = views["src"][source].reshape(-1, *dst.shape[1:])


SEMANTICS: dict[str, Semantics] = {
    "nc_n_gather": _nc_n_gather,
    "local_gather": _local_gather,
    "nc_stream_shuffle": _nc_stream_shuffle,
}
