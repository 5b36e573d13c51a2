"""NumPy equivalents of the data types, and the conversions when instructions load and store.

Instructions compute in float32 and round a result once, when they store it. Floats round to nearest even;
values beyond the largest one become infinity, or NaN for float8_e4m3fn, which has no infinity. Integers round
to nearest even and saturate; NaN becomes 0. tfloat32 is float32 with 10 significant bits of fraction.
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


def _unwritten_element(dtype: np.dtype[Any]) -> Any:
    """What reads of unwritten memory return, so that they show in results: NaN where the type has it."""
    if dtype.names:
        return np.full(dtype.itemsize, 0x7F, np.uint8).view(dtype)[0]
    return 4 if dtype.kind in "iub" else float("nan")


UNINITIALISED = {dtype: _unwritten_element(dtype) for dtype in NUMPY.values()}


def same_type(one: Array, other: Array) -> bool:
    """Whether two arrays hold the same data type; distinguishes tfloat32 from float32."""
    return one.dtype == other.dtype and one.dtype.metadata == other.dtype.metadata


def load_float32(view: Array) -> Float:
    """The values in float32 (the array itself if it is float32 already)."""
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
    """Round to 10 bits of fraction, to nearest even; NaN stays NaN."""
    bits = value.view(np.uint32)
    rounded = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(value), value, rounded.view(np.float32))
