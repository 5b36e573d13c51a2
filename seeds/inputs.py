"""Draws the input arrays for a seed: the same on every machine with the same NumPy.

One generator per seed, `numpy.random.default_rng(seed)`, draws the inputs in the order of the spec, in
float32 (integers in float64); then they are scaled and cast. Inputs are never stored, only drawn again.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from seeds.distributions import LEAST_POSITIVE, OFFSET, parse_distribution
from seeds.spec import InputSpec, ProblemSpec

Array = NDArray[Any]


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
    one = parse_distribution(item.distribution)
    if one.kind == "integers":
        drawn = np.floor(generator.random(shape) * (one.high - one.low + 1)) + one.low
        return (drawn * item.scale).astype(dtype_of(item.dtype), copy=False)
    if one.kind == "zero_one":
        values = np.rint(generator.random(shape, dtype=np.float32))
    else:
        values = fit_distribution(item, generator.standard_normal(shape, dtype=np.float32))
    if item.scale != 1.0:
        values *= np.float32(item.scale)
    return values.astype(dtype_of(item.dtype), copy=False)


def fit_distribution(item: InputSpec, values: Array) -> Array:
    """Return numbers around zero with spread one as numbers of the input's distribution, at scale one.

    Zeros stay zero where the distribution has zero, and larger numbers become larger ones.
    """
    one = parse_distribution(item.distribution)
    found = values
    if one.kind == "integers":
        middle = min(max(0.0, one.low), one.high)
        reach = max(one.high - middle, middle - one.low) / 4
        found = np.clip(np.rint(middle + values.astype(np.float64) * reach), one.low, one.high)
    elif one.kind == "zero_one":
        found = (values > 0).astype(values.dtype)
    elif one.kind == "abs_normal":
        found = np.abs(values)
    elif one.kind == "positive":
        found = np.maximum(np.abs(values), values.dtype.type(LEAST_POSITIVE))
    elif one.kind == "shifted":
        found = values + values.dtype.type(OFFSET)
    return found


def is_nonnegative(item: InputSpec) -> bool:
    """Whether an input holds integers of which none is below zero, drawn or made."""
    one = parse_distribution(item.distribution)
    return one.kind == "integers" and min(one.low * item.scale, one.high * item.scale) >= 0


def clip_integers(item: InputSpec, values: Array) -> Array:
    """Return values that lie where a seed's may: made inputs of integers are no larger than drawn ones."""
    one = parse_distribution(item.distribution)
    return np.clip(values, one.low * item.scale, one.high * item.scale)
