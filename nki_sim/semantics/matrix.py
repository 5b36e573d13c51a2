"""The tensor engine: products and transposes."""

from __future__ import annotations

import numpy as np

from nki_sim.semantics.arrays import Array, Float, load, store
from nki_sim.semantics.common import Semantics, Values, Views, rows

# NeuronCore-v2 transposes by multiplying with an identity, which spreads what is not finite.
MULTIPLIES = "trn1"


def _nc_matmul(views: Views, values: Values) -> None:
    """dst[M, N] = stationary[K, M].T @ moving[K, N], added to what is there when `accumulate`.

    With double rows K is in the partitions and in the first free dimension, which has 2.
    """
    dst = views["dst"]
    left, right = rows(views["stationary"]), rows(views["moving"])
    if values.get("perf_mode") == "double_row":
        left, right = left.reshape(2 * len(left), -1), right.reshape(2 * len(right), -1)
    if values.get("is_transpose") and values.get("target") != MULTIPLIES:
        product = _moved(left, right)
    else:
        product = left.T @ right
    if not _promises_kept(views, values):
        product = np.full_like(product, np.nan)
    if product.shape != dst.shape:
        product = product.reshape(dst.shape)
    if values.get("accumulate"):
        np.add(dst, product, out=dst, casting="unsafe")
    else:
        store(dst, product)


def _moved(left: Float, right: Float) -> Float:
    """The product of data with ones and zeros, one to a column at most, as a move of elements: exact."""
    if _selects(right):
        return np.ascontiguousarray(_chosen(left, right).T)
    return _chosen(right, left) if _selects(left) else left.T @ right


def _selects(value: Float) -> bool:
    return _onezero(value) and bool((value.sum(axis=0) <= 1.0).all())


def _chosen(data: Float, choice: Float) -> Float:
    """Row i is the row of `data` where column i of `choice` has its one, zeros where it has none."""
    there = np.asarray(choice.any(axis=0))
    return np.where(there[:, None], data[choice.argmax(axis=0)], np.float32(0.0))


def _promises_kept(views: Views, values: Values) -> bool:
    """Whether operands promised to hold only ones and zeros, which saves passes, really do."""
    kept = True
    if values.get("is_stationary_onezero"):
        kept &= _onezero(views["stationary"])
    if values.get("is_moving_onezero"):
        kept &= _onezero(views["moving"])
    if values.get("is_transpose"):
        kept &= _onezero(views["stationary"]) or _onezero(views["moving"])
    return kept


def _onezero(view: Array) -> bool:
    value = load(view)
    return bool(((value == 0.0) | (value == 1.0)).all())


def _nc_transpose(views: Views, values: Values) -> None:
    data, dst = views["data"], views["dst"]
    flat = data if data.ndim == 2 else data.reshape(data.shape[0], -1)
    np.copyto(dst, flat.T.reshape(dst.shape))
    if (
        values.get("engine") == "tensor"
        and values.get("target") == MULTIPLIES
        and dst.dtype.kind not in "iub"
    ):
        spread = ~np.isfinite(rows(data)).all(axis=0)
        dst[spread] = np.nan


SEMANTICS: dict[str, Semantics] = {
    "nc_matmul": _nc_matmul,
    "nc_transpose": _nc_transpose,
}
