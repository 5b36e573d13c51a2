"""A stand-in for torch where it is not installed: the few names that arrays are exchanged through.

It has what matters: types of its own, and `numpy()` that refuses the types that NumPy lacks.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

_KINDS = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "uint8": np.dtype(np.uint8),
}


class DType:
    """`torch.float32` and the like; its text is `torch.NAME`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class Tensor:
    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype = _NAMES[str(array.dtype)]
        self.shape = array.shape

    def to(self, kind: DType) -> Tensor:
        return Tensor(self.array.astype(_KINDS[kind.name]))

    def view(self, kind: DType) -> Tensor:
        return Tensor(self.array.view(_KINDS[kind.name]))

    def numpy(self) -> Any:
        if self.dtype.name == "bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.array

    def element_size(self) -> int:
        return int(self.array.itemsize)

    def detach(self) -> Tensor:
        return self

    cpu = contiguous = detach


_NAMES = {name: DType(name) for name in _KINDS}
Tensor.__module__ = DType.__module__ = "torch"


def _from_numpy(array: Any) -> Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        raise TypeError("can't convert np.ndarray of type bfloat16")
    return Tensor(array)


def module() -> ModuleType:
    """The module to put in place of torch."""
    made = ModuleType("torch")
    made.__dict__.update(
        _NAMES, from_numpy=_from_numpy, equal=lambda a, b: bool(np.array_equal(a.array, b.array))
    )
    return made
