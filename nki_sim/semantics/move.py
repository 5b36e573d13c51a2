"""Arithmetic of copies, fills, transposes and sums by DMA."""

from __future__ import annotations

import numpy as np

from nki_sim.semantics.arrays import load_float32, same_type, store
from nki_sim.semantics.common import Semantics, Values, Views, as_float

_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _copy_elements(views: Views, values: Values) -> None:
    """Copy elements; bit-exact if the types are equal."""
    del values
    dst, src = views["dst"], views["src"]
    if not same_type(src, dst):
        store(dst, load_float32(src))
    else:
        np.copyto(dst, src if src.shape == dst.shape else src.reshape(dst.shape))


def _dma_transpose(views: Views, values: Values) -> None:
    del values
    src = views["src"]
    np.copyto(views["dst"], src.transpose(_AXES[src.ndim]))


def _dma_compute(views: Views, values: Values) -> None:
    """The sum of all sources, added one after another."""
    del values
    first, *others = (
        load_float32(view) for role, view in views.items() if role.removeprefix("srcs").isdigit()
    )
    total = first.reshape(-1)
    for other in others:
        total = total + other.reshape(-1)
    store(views["dst"], total)


def _memset(views: Views, values: Values) -> None:
    store(views["dst"], np.float64(as_float(values["value"])))


SEMANTICS: dict[str, Semantics] = {
    "dma_copy": _copy_elements,
    "dma_transpose": _dma_transpose,
    "dma_compute": _dma_compute,
    "tensor_copy": _copy_elements,
    "memset": _memset,
}
