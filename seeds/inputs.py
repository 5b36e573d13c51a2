"""Draws the input arrays for a seed: the same on every machine with the same NumPy.

One generator per seed, `numpy.random.default_rng(seed)`, draws the inputs in the order of the spec, in
float32; then they are scaled and cast. Inputs are never stored, only drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from seeds.spec import InputSpec, ProblemSpec

Array = NDArray[Any]

_DISTRIBUTIONS: dict[str, Callable[[Array], Array]] = {"normal": lambda x: x, "abs_normal": np.abs}


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy type for a data type's name, e.g. `bfloat16`."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def draw_inputs(spec: ProblemSpec, size: str, seed: int) -> list[Array]:
    """Return the inputs of `spec` at `size` for `seed`, in the order of the spec.

    Raises:
        UnknownSizeError: the spec has no such size.
    """
    dims = spec.dims(size)
    generator = np.random.default_rng(seed)
    return [draw_elements(item, item.resolve_shape(dims), generator) for item in spec.inputs]


def draw_elements(item: InputSpec, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Return the next elements of an input; drawing in parts gives the same values as drawing at once."""
    values = _DISTRIBUTIONS[item.distribution](generator.standard_normal(shape, dtype=np.float32))
    if item.scale != 1.0:
        values *= np.float32(item.scale)
    return values.astype(dtype_of(item.dtype), copy=False)
