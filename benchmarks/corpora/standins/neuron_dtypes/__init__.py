"""Stands in for neuron_dtypes: casts between NumPy arrays of the device's data types, by name or by type."""

from typing import Any

import ml_dtypes
import numpy as np

from nki_sim.dtypes import TRN3_DTYPES
from nki_sim.semantics.arrays import NUMPY

bfloat16 = ml_dtypes.bfloat16
globals().update({name: dtype.type for name, dtype in NUMPY.items() if name not in globals()})
# Those of NeuronCore-v4 can be named, as tables of types do; no cast takes them.
globals().update({name: name for name in TRN3_DTYPES})


PACKED = {"float8_e5m2_x4": 4, "float8_e4m3fn_x4": 4, "float4_e2m1fn_x4": 2}
"""Four numbers in one element, of so many bytes: named in tests of newer devices, which are not run here."""

globals().update({name: np.dtype((np.void, size)) for name, size in PACKED.items()})


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
