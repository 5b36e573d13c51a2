"""Batch-norm statistics: counts, means and variances of each partition."""

from __future__ import annotations

import numpy as np

from nki_sim.semantics.arrays import Float, store
from nki_sim.semantics.common import Semantics, Values, Views, load_rows


def _bn_stats(views: Views, values: Values) -> None:
    """(count, mean, variance * count) of each partition's even elements, then of its odd ones."""
    del values
    data = load_rows(views["data"])
    store(views["dst"], np.hstack([_partial_statistics(data[:, 0::2]), _partial_statistics(data[:, 1::2])]))


def _partial_statistics(part: Float) -> Float:
    """All three are 0 if there are no elements."""
    count = part.shape[1]
    mean = part.sum(axis=1, keepdims=True) / np.float32(max(count, 1))
    return np.hstack([np.full_like(mean, count), mean, np.square(part - mean).sum(axis=1, keepdims=True)])


def _bn_aggr(views: Views, values: Values) -> None:
    """Mean and variance over all of a partition's (count, mean, variance * count) tuples."""
    del values
    data = load_rows(views["data"])
    count, mean, spread = (data[:, part::3] for part in range(3))
    total = count.sum(axis=1, keepdims=True)
    middle = (count * mean).sum(axis=1, keepdims=True) / total
    around = spread + count * np.square(mean - middle)
    store(views["dst"], np.hstack([middle, around.sum(axis=1, keepdims=True) / total]))


SEMANTICS: dict[str, Semantics] = {"bn_stats": _bn_stats, "bn_aggr": _bn_aggr}
