"""The tensor engine: products and transposes."""

from __future__ import annotations

import numpy as np

from nki_sim.arrays import Array, load, store
from nki_sim.semantics.common import Semantics, Values, Views, rows


def _nc_matmul(views: Views, values: Values) -> None:
    """dst[M, N] = stationary[K, M].T @ moving[K, N], added to what is there when `accumulate`."""
    dst = views["dst"]
    product = rows(views["stationary"]).T @ rows(views["moving"])
    if not _promises_kept(views, values):
        product = np.full_like(product, np.nan)
    if product.shape != dst.shape:
        product = product.reshape(dst.shape)
    if values.get("accumulate"):
        np.add(dst, product, out=dst, casting="unsafe")
    else:
        store(dst, product)


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
    del values
    data, dst = views["data"], views["dst"]
    flat = data if data.ndim == 2 else data.reshape(data.shape[0], -1)
    np.copyto(dst, flat.T.reshape(dst.shape) if dst.ndim != 2 else flat.T)


SEMANTICS: dict[str, Semantics] = {
    "nc_matmul": _nc_matmul,
    "nc_transpose": _nc_transpose,
}
