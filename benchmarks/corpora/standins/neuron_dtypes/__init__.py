"""Stands in for neuron_dtypes: casts between NumPy arrays of the device's data types, by name or by type.

Types of four numbers to an element are arrays of a quarter of the numbers.
"""

from typing import Any

import ml_dtypes
import numpy as np

from nki_sim.dtypes import MX_DTYPES, PACKED_ELEMENTS, nki_dtype_name
from nki_sim.semantics.arrays import NUMPY
from nki_sim.semantics.mx import pack_numbers, unpack_numbers

bfloat16 = ml_dtypes.bfloat16
globals().update({name: dtype.type for name, dtype in NUMPY.items() if name not in globals()})
globals().update({name: NUMPY[name] for name in MX_DTYPES})


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """The NumPy type that a name, a NumPy type or a data type of `nki.language` stands for."""
    name = nki_dtype_name(dtype)
    return NUMPY[name] if name in NUMPY else np.dtype(name or dtype)


def static_cast(array: Any, dtype: Any) -> Any:
    found, wanted = np.asarray(array), dtype_of(dtype)
    if found.dtype.names:
        found = unpack_numbers(found).reshape(*found.shape[:-1], -1)
    if wanted.names:
        return pack_numbers(found.reshape(*found.shape[:-1], -1, PACKED_ELEMENTS), wanted)
    return found.astype(wanted)


def sizeinbytes(dtype: Any) -> int:
    return dtype_of(dtype).itemsize


def finfo(dtype: Any) -> Any:
    return ml_dtypes.finfo(dtype_of(dtype))


def is_float_type(dtype: Any) -> bool:
    return dtype_of(dtype).kind not in "biu"
