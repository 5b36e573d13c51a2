"""ScalarE's functions, and the functions of one operand that other engines share, in float32.

The hardware approximates them by piecewise polynomials; here they are as exact as float32 allows. Beyond its
documented range a function is undefined, and `apply_activation` returns NaN to make that visible. Zero and
infinity count as ends of the range, not as beyond it, and keep their usual results [I].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from nki_sim.functions import VALID_RANGES
from nki_sim.semantics.arrays import Array, Float

_ERF_STEPS = 4096
_ERF_END = 4


_ONE, _HALF = np.float32(1.0), np.float32(0.5)
_SIGMOID_SLOPE, _CUBE = np.float32(1.702), np.float32(0.044715)
_ROOT_HALF = np.float32(math.sqrt(0.5))
_ROOT_TWO_BY_PI = np.float32(math.sqrt(2.0 / math.pi))
_TWO_BY_ROOT_PI = np.float32(2.0 / math.sqrt(math.pi))
_ONE_BY_ROOT_TWO_PI = np.float32(1.0 / math.sqrt(2.0 * math.pi))


@cache
def _erf_table() -> tuple[Float, Float]:
    """erf on a fine grid from 0 to where it is 1 in float32, and the differences between neighbours."""
    points = [math.erf(step / _ERF_STEPS) for step in range(_ERF_END * _ERF_STEPS + 2)]
    table = np.array(points, dtype=np.float64)
    return table[:-1].astype(np.float32), np.diff(table).astype(np.float32)


def _erf(x: Any) -> Any:
    """Interpolate linearly between grid points: error within 1e-8, relative near 0."""
    table, slope = _erf_table()
    scaled = np.minimum(np.abs(x) * np.float32(_ERF_STEPS), np.float32(_ERF_END * _ERF_STEPS))
    index = np.nan_to_num(scaled).astype(np.int32)
    value = table[index] + (scaled - index.astype(np.float32)) * slope[index]
    return np.copysign(value, x)


def _sigmoid(x: Any) -> Any:
    return np.reciprocal(np.exp(-x) + _ONE)


def _softplus(x: Any) -> Any:
    return np.asarray(np.logaddexp(x, np.float32(0.0)), dtype=np.float32)


def _normal_cdf(x: Any) -> Any:
    """The cumulative normal distribution function."""
    return (_erf(x * _ROOT_HALF) + _ONE) * _HALF


def _gelu_dx(x: Any) -> Any:
    density = np.exp(-x * x * _HALF) * _ONE_BY_ROOT_TWO_PI
    return _normal_cdf(x) + x * density


def _gelu_tanh(x: Any) -> Any:
    inner = (x + x * x * x * _CUBE) * _ROOT_TWO_BY_PI
    return x * (np.tanh(inner) + _ONE) * _HALF


def _gelu_sigmoid_dx(x: Any) -> Any:
    gate = _sigmoid(x * _SIGMOID_SLOPE)
    return gate * (x * _SIGMOID_SLOPE * (_ONE - gate) + _ONE)


def _silu_dx(x: Any) -> Any:
    gate = _sigmoid(x)
    return gate * (x * (_ONE - gate) + _ONE)


UNARY: dict[str, Callable[[Float], Float]] = {
    "copy": lambda x: x,
    "relu": lambda x: np.maximum(x, np.float32(0.0)),
    "square": np.square,
    "abs": np.abs,
    "sign": np.sign,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": _silu_dx,
    "gelu": lambda x: x * _normal_cdf(x),
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(x * _SIGMOID_SLOPE),
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "erf": _erf,
    "erf_dx": lambda x: np.exp(-x * x) * _TWO_BY_ROOT_PI,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "reciprocal": np.reciprocal,
    "sin": np.sin,
    "arctan": np.arctan,
}


def apply_parametric(x: Float, slope: Any) -> Float:
    """`prelu`: x where it is positive, and `slope` times x elsewhere."""
    return np.asarray(np.where(x > 0, x, x * slope), dtype=np.float32)


def apply_activation(name: str, x: Float) -> Float:
    """Apply the function to every element; NaN beyond its documented range."""
    result = UNARY[name](x)
    if name in VALID_RANGES:
        beyond = _outside_range(np.abs(x), *VALID_RANGES[name])
        if beyond.any():
            result = np.where(beyond, np.float32(np.nan), result)
    return result


def _outside_range(size: Float, least: float, most: float) -> Array:
    return ((size < np.float32(least)) & (size > 0)) | ((size > np.float32(most)) & np.isfinite(size))
