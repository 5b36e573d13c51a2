"""NumPy equivalents of the data types and the casts at the edges of instructions.

Instructions compute in float32; a result is rounded once, when it is stored: to nearest even for the float
types, to nearest even and saturating for integers.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nki_sim.dtypes import DTYPES

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float32]

NUMPY: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    **{name: np.dtype(name) for name, dtype in DTYPES.items() if dtype.kind != "float"},
}

_INTEGER = {dtype: np.iinfo(dtype) for dtype in NUMPY.values() if dtype.kind in "iu"}

# What reads of memory that nobody wrote give, so that they show in results.
UNINITIALISED = {dtype: (4 if dtype in _INTEGER else float("nan")) for dtype in NUMPY.values()}


def load(view: Array) -> Float:
    """The values in float32 (the array itself when it is float32 already)."""
    return view.astype(np.float32, copy=False)


def store(view: Array, value: Any) -> None:
    """Round `value` to the view's type and write it; shapes need equal element counts, in row order."""
    if isinstance(value, np.ndarray) and value.shape != view.shape:
        value = value.reshape(view.shape)
    limits = _INTEGER.get(view.dtype)
    if limits is not None and getattr(value, "dtype", None) != view.dtype:
        value = np.nan_to_num(np.clip(np.rint(value, dtype=np.float64), limits.min, limits.max))
    np.copyto(view, value, casting="unsafe")
