"""Stands in for neuron_dtypes: casts between NumPy arrays of the device's data types, by name or by type."""

from typing import Any

import ml_dtypes
import numpy as np

from nki_sim.arrays import NUMPY

bfloat16 = ml_dtypes.bfloat16
globals().update({name: dtype.type for name, dtype in NUMPY.items() if name not in globals()})


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """The NumPy type that a name, a NumPy type or a data type of `nki.language` stands for."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    return NUMPY[name] if name in NUMPY else np.dtype(name or dtype)


def static_cast(array: Any, dtype: Any) -> Any:
    return np.asarray(array).astype(dtype_of(dtype))


def sizeinbytes(dtype: Any) -> int:
    return dtype_of(dtype).itemsize


def finfo(dtype: Any) -> Any:
    return ml_dtypes.finfo(dtype_of(dtype))


def is_float_type(dtype: Any) -> bool:
    return dtype_of(dtype).kind not in "biu"
