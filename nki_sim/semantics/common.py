"""What the arithmetic of all instructions shares: the functions by name, and operands in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nki_sim.arrays import Array, Float, load
from nki_sim.forms import ParamValue

Views = Mapping[str, Array]
Values = Mapping[str, ParamValue]
Semantics = Callable[[Views, Values], None]

_erf = np.frompyfunc(math.erf, 1, 1)


def _sigmoid(x: Float) -> Float:
    return np.reciprocal(np.float32(1.0) + np.exp(-x))


def _softplus(x: Float) -> Float:
    return np.asarray(np.logaddexp(x, np.float32(0.0)), dtype=np.float32)


def _erf32(x: Float) -> Float:
    return np.asarray(_erf(x), dtype=np.float32)


def _gelu(x: Float) -> Float:
    return np.float32(0.5) * x * (np.float32(1.0) + _erf32(x * np.float32(math.sqrt(0.5))))


def _rsqrt(x: Float) -> Float:
    return np.reciprocal(np.sqrt(x))


UNARY: dict[str, Callable[[Float], Float]] = {
    "copy": lambda x: x,
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "square": np.square,
    "abs": np.abs,
    "sign": np.sign,
    "negative": np.negative,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "softplus": _softplus,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": np.reciprocal,
    "sin": np.sin,
    "erf": _erf32,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "arctan": np.arctan,
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "abs_max": lambda a, b: np.maximum(np.abs(a), np.abs(b)),
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add.reduce,
    "multiply": np.multiply.reduce,
    "maximum": np.maximum.reduce,
    "minimum": np.minimum.reduce,
}


def rows(view: Array) -> Float:
    """[partitions, free] in float32."""
    value = load(view)
    return value if value.ndim == 2 else value.reshape(value.shape[0], -1)


def operand(views: Views, values: Values, role: str) -> Any:
    """A tile [P, F] or [P, 1] in float32, or the constant."""
    return rows(views[role]) if role in views else np.float32(number(values[role]))


def number(value: ParamValue) -> float:
    assert isinstance(value, int | float)
    return float(value)


def apply(op: ParamValue, left: Any, right: Any, reverse: ParamValue | None = False) -> Float:
    function = BINARY[str(op)]
    result = function(right, left) if reverse else function(left, right)
    return np.asarray(result, dtype=np.float32)
