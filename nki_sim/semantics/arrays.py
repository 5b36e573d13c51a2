"""NumPy equivalents of the data types and the casts at the edges of instructions.

Instructions compute in float32; a result is rounded once, when it is stored: to nearest even for the float
types (beyond the largest value to infinity, to NaN for float8_e4m3fn, which has none), to nearest even and
saturating for integers, NaN to 0 there. tfloat32 is float32 of which 10 bits of fraction count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nki_sim.dtypes import DTYPES

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float32]

NUMPY: dict[str, np.dtype[Any]] = {name: dtype.dtype for name, dtype in DTYPES.items()}

_INTEGER = {dtype: np.iinfo(dtype) for dtype in NUMPY.values() if dtype.kind in "iu"}

# What reads of memory that nobody wrote give, so that they show in results.
UNINITIALISED = {dtype: (4 if dtype.kind in "iub" else float("nan")) for dtype in NUMPY.values()}


def same_type(one: Array, other: Array) -> bool:
    """Whether two arrays hold the same data type, tfloat32 told from float32."""
    return one.dtype == other.dtype and one.dtype.metadata == other.dtype.metadata


def load_float32(view: Array) -> Float:
    """The values in float32 (the array itself when it is float32 already)."""
    value = view.astype(np.float32, copy=False)
    return round_to_tfloat32(value) if view.dtype.metadata else value


def store(view: Array, value: Any) -> None:
    """Round `value` to the view's type and write it; shapes need equal element counts, in row order.

    Integers of the view's own type are written as they are.
    """
    if isinstance(value, np.ndarray) and value.shape != view.shape:
        value = value.reshape(view.shape)
    limits = _INTEGER.get(view.dtype)
    if limits is not None and getattr(value, "dtype", None) != view.dtype:
        value = np.nan_to_num(np.clip(np.rint(value, dtype=np.float64), limits.min, limits.max))
    elif view.dtype.metadata:
        value = round_to_tfloat32(np.asarray(value, dtype=np.float32))
    np.copyto(view, value, casting="unsafe")


def round_to_tfloat32(value: Float) -> Float:
    """Rounded to 10 bits of fraction, to nearest even; NaN stays NaN."""
    bits = value.view(np.uint32)
    rounded = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(value), value, rounded.view(np.float32))
