"""Arithmetic of the tensor engine: products and transposes."""

from __future__ import annotations

import numpy as np

from nki_sim.semantics.arrays import Array, Float, load_float32
from nki_sim.semantics.common import Semantics, Values, Views, load_rows, store_sum

# NeuronCore-v2 transposes by multiplying with an identity, which spreads infinity and NaN.
MULTIPLYING_TARGET = "trn1"

NARROW = 32
"""Rows or columns of a product up to which its sums are made in float64, which costs little then."""


def _nc_matmul(views: Views, values: Values) -> None:
    """dst[M, N] = stationary[K, M].T @ moving[K, N], added to the old contents if `accumulate`.

    With double rows, K is the partitions times the first free dimension, which has size 2.
    """
    left, right = load_rows(views["stationary"]), load_rows(views["moving"])
    if values.get("perf_mode") == "double_row":
        left, right = left.reshape(2 * len(left), -1), right.reshape(2 * len(right), -1)
    if values.get("is_transpose") and values.get("target") != MULTIPLYING_TARGET:
        product = _move_elements(left, right)
    else:
        product = multiply(left, right)
    if not _keeps_promises(views, values):
        product = np.full_like(product, np.nan)
    store_sum(views["dst"], product, values.get("accumulate"))


def _move_elements(left: Float, right: Float) -> Float:
    """Multiply data by ones and zeros, at most one 1 per column, as an exact move of elements."""
    if _is_selection(right):
        return np.ascontiguousarray(_select_rows(left, right).T)
    return _select_rows(right, left) if _is_selection(left) else multiply(left, right)


def multiply(left: Float, right: Float) -> Float:
    """Return left.T @ right in float32, of [K, M] and [K, N].

    On a device an element's sum does not depend on the other columns. In BLAS it does: it sums in another
    order for other shapes. Kernels that compute a column again and compare it with itself need equal sums;
    narrow products, as of gates, have these.
    """
    if min(left.shape[1], right.shape[1]) > NARROW:
        return left.T @ right
    with np.errstate(over="ignore"):
        return (left.T.astype(np.float64) @ right.astype(np.float64)).astype(np.float32)


def _is_selection(value: Float) -> bool:
    return _is_onezero(value) and bool((value.sum(axis=0) <= 1.0).all())


def _select_rows(data: Float, choice: Float) -> Float:
    """Row i is the row of `data` where column i of `choice` has its 1; zeros if it has none."""
    there = np.asarray(choice.any(axis=0))
    return np.where(there[:, None], data[choice.argmax(axis=0)], np.float32(0.0))


def _keeps_promises(views: Views, values: Values) -> bool:
    """Whether operands declared to hold only ones and zeros, which saves passes, really do."""
    kept = True
    if values.get("is_stationary_onezero"):
        kept &= _is_onezero(views["stationary"])
    if values.get("is_moving_onezero"):
        kept &= _is_onezero(views["moving"])
    if values.get("is_transpose"):
        kept &= _is_onezero(views["stationary"]) or _is_onezero(views["moving"])
    return kept


def _is_onezero(view: Array) -> bool:
    value = load_float32(view)
    return bool(((value == 0.0) | (value == 1.0)).all())


def _nc_transpose(views: Views, values: Values) -> None:
    data, dst = views["data"], views["dst"]
    flat = data if data.ndim == 2 else data.reshape(data.shape[0], -1)
    np.copyto(dst, flat.T.reshape(dst.shape))
    if (
        values.get("engine") == "tensor"
        and values.get("target") == MULTIPLYING_TARGET
        and dst.dtype.kind not in "iub"
    ):
        spread = ~np.isfinite(load_rows(data)).all(axis=0)
        dst[spread] = np.nan


SEMANTICS: dict[str, Semantics] = {
    "nc_matmul": _nc_matmul,
    "nc_transpose": _nc_transpose,
}
