"""What tests of the `nl.*` functions that compute share: a kernel for expressions, data, comparison."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import settings

FEW = settings(max_examples=8)
BF16 = np.dtype(ml_dtypes.bfloat16)

KERNEL = """
from nki_sim.frontend.lowering import FUNCTIONS as fn


@nki.jit
def kernel({names}):
    tiles = [fn["load"](x) for x in ({names},)]
    {names}, = tiles
    r = {body}
    out = nl.ndarray(r.shape, dtype=r.dtype, buffer=nl.shared_hbm)
    fn["store"](out, r)
    return out
"""


def draw(
    seed: int, shape: tuple[int, ...], dtype: Any = np.float32, low: float = 0.25, high: float = 2.0
) -> Any:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def close(found: Any, wanted: Any, *, rtol: float = 2e-6) -> None:
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=rtol, atol=rtol
    )
