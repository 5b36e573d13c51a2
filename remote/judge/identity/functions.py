"""Functions composed of others, the same for every domain, and the values of functions of known numbers.

`ComposedDomain` is a domain's base class. It accepts any name, expands functions until only a few remain, and
leaves those to the domain: negative, reciprocal, sqrt, exp; add, subtract, multiply, divide, maximum,
minimum, the comparisons. Names are those of NumPy and of the simulator's instructions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import erf, log, pi, sqrt
from typing import Any

import numpy as np

from remote.judge.identity.domain import Array, Planes

COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
REDUCTIONS = frozenset({"add", "multiply", "maximum", "minimum"})

_ALIASES = {
    "abs": "absolute", "arcsinh": "asinh", "arctan2": "atan2", "conjugate": "copy",
    "fmax": "maximum", "fmin": "minimum", "logistic": "sigmoid", "max": "maximum", "min": "minimum",
    "mod": "remainder", "mul": "multiply", "positive": "copy", "prod": "multiply", "sum": "add",
    "true_divide": "divide",
}  # fmt: skip
_HIGHEST_POWER = 64


class ComposedDomain(ABC):
    """A domain that only has to implement the functions that the others are composed of."""

    @abstractmethod
    def constant(self, array: Array) -> Planes: ...

    @abstractmethod
    def known_values(self, value: Planes) -> Array: ...

    @abstractmethod
    def simple_unary(self, name: str, value: Planes) -> Planes:
        """Apply a function that is not composed of others."""

    @abstractmethod
    def simple_binary(self, name: str, left: Planes, right: Planes) -> Planes:
        """Apply a function that is not composed of others."""

    @abstractmethod
    def select(self, mask: Planes, left: Planes, right: Planes) -> Planes: ...

    def apply_unary(self, name: str, value: Planes) -> Planes:
        """Apply a function of one argument to each element."""
        name = _ALIASES.get(name, name)
        made = _UNARY.get(name)
        return self.simple_unary(name, value) if made is None else made(_Formula(self, value)).value

    def apply_binary(self, name: str, left: Planes, right: Planes) -> Planes:
        """Apply a function of two arguments to each pair."""
        name = _ALIASES.get(name, name)
        if name == "power":
            found = self._known_power(left, right)
            return self.simple_binary(name, left, right) if found is None else found
        made = _BINARY.get(name)
        if made is None:
            return self.simple_binary(name, left, right)
        return made(_Formula(self, left), _Formula(self, right)).value

    def _known_power(self, base: Planes, exponent: Planes) -> Planes | None:
        """Powers with one known exponent that is a multiple of a half; None for others."""
        values = np.unique(self.known_values(exponent))
        halves = 2.0 * values[0] if values.size == 1 else np.nan
        if not (halves.is_integer() and abs(halves) <= 2 * _HIGHEST_POWER):
            return None
        root = _Formula(self, base) if halves % 2 == 0 else _Formula(self, base).apply("sqrt")
        found = _natural_power(root, int(abs(halves)) // (2 if halves % 2 == 0 else 1))
        found = found.apply("reciprocal") if halves < 0 else found
        ones = self.constant(np.ones(np.broadcast_shapes(base.shape, exponent.shape)))
        return self.simple_binary("multiply", found.value, ones)


class _Formula:
    """A value with operators, so that code reads like formulas."""

    def __init__(self, domain: ComposedDomain, value: Planes) -> None:
        self.domain, self.value = domain, value

    def apply(self, name: str) -> _Formula:
        return _Formula(self.domain, self.domain.apply_unary(name, self.value))

    def combine(self, name: str, other: _Formula | float) -> _Formula:
        return _Formula(self.domain, self.domain.apply_binary(name, self.value, self._as_planes(other)))

    def choose(self, left: _Formula | float, right: _Formula | float) -> _Formula:
        """Return left where this condition is true, else right."""
        chosen = self.domain.select(self.value, self._as_planes(left), self._as_planes(right))
        return _Formula(self.domain, chosen)

    def _as_planes(self, other: _Formula | float) -> Planes:
        if isinstance(other, _Formula):
            return other.value
        return self.domain.constant(np.full((1,) * len(self.value.shape), float(other)))

    def __add__(self, other: _Formula | float) -> _Formula:
        return self.combine("add", other)

    def __sub__(self, other: _Formula | float) -> _Formula:
        return self.combine("subtract", other)

    def __mul__(self, other: _Formula | float) -> _Formula:
        return self.combine("multiply", other)

    def __truediv__(self, other: _Formula | float) -> _Formula:
        return self.combine("divide", other)

    def __neg__(self) -> _Formula:
        return self.apply("negative")


def _natural_power(base: _Formula, exponent: int) -> _Formula:
    """A power with a natural exponent."""
    found = None
    for digit in f"{exponent:b}":
        found = found * found if found is not None else None
        if digit == "1":
            found = base if found is None else found * base
    return base * 0.0 + 1.0 if found is None else found


def _sigmoid(x: _Formula) -> _Formula:
    return ((-x).apply("exp") + 1.0).apply("reciprocal")


def _tanh(x: _Formula) -> _Formula:
    return _sigmoid(x * 2.0) * 2.0 - 1.0


def _sign(x: _Formula) -> _Formula:
    return x.combine("greater", 0.0).choose(1.0, x.combine("less", 0.0).choose(-1.0, 0.0))


def _mish(x: _Formula) -> _Formula:
    """x * tanh(log(1 + exp(x))), without the logarithm."""
    squared = _natural_power(x.apply("exp") + 1.0, 2)
    return x * ((squared - 1.0) / (squared + 1.0))


def _normal_cdf(x: _Formula) -> _Formula:
    return ((x * sqrt(0.5)).apply("erf") + 1.0) * 0.5


def _gelu_cubic(x: _Formula) -> _Formula:
    return (_natural_power(x, 3) * 0.044715 + x) * sqrt(2.0 / pi)


def _derived_sigmoid(x: _Formula) -> _Formula:
    """The derivative of x * sigmoid(x)."""
    gate = _sigmoid(x)
    return gate * (x * (-gate + 1.0) + 1.0)


def _derived_gelu(x: _Formula) -> _Formula:
    return _normal_cdf(x) + x * (_natural_power(x, 2) * -0.5).apply("exp") * sqrt(0.5 / pi)


def _scaled_derived_sigmoid(x: _Formula) -> _Formula:
    return _derived_sigmoid(x * 1.702)


_UNARY: dict[str, Callable[[_Formula], _Formula]] = {
    "absolute": lambda x: x.combine("maximum", -x),
    "copy": lambda x: x,
    "cosh": lambda x: (x.apply("exp") + (-x).apply("exp")) * 0.5,
    "erf_dx": lambda x: (-_natural_power(x, 2)).apply("exp") * (2.0 / sqrt(pi)),
    "exp2": lambda x: (x * log(2.0)).apply("exp"),
    "expm1": lambda x: x.apply("exp") - 1.0,
    "fabs": lambda x: x.combine("maximum", -x),
    "gelu": lambda x: x * _normal_cdf(x),
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(x * 1.702),
    "gelu_apprx_sigmoid_dx": _scaled_derived_sigmoid,
    "gelu_apprx_tanh": lambda x: x * (_tanh(_gelu_cubic(x)) + 1.0) * 0.5,
    "gelu_dx": _derived_gelu,
    "log10": lambda x: x.apply("log") / log(10.0),
    "log1p": lambda x: (x + 1.0).apply("log"),
    "log2": lambda x: x.apply("log") / log(2.0),
    "logical_not": lambda x: x.combine("equal", 0.0),
    "mish": _mish,
    "relu": lambda x: x.combine("maximum", 0.0),
    "rsqrt": lambda x: x.apply("sqrt").apply("reciprocal"),
    "sigmoid": _sigmoid,
    "sign": _sign,
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": _derived_sigmoid,
    "sinh": lambda x: (x.apply("exp") - (-x).apply("exp")) * 0.5,
    "softplus": lambda x: (x.apply("exp") + 1.0).apply("log"),
    "square": lambda x: x * x,
    "tanh": _tanh,
}


def _truth_value(x: _Formula) -> _Formula:
    return x.combine("not_equal", 0.0)


_BINARY: dict[str, Callable[[_Formula, _Formula], _Formula]] = {
    "abs_max": lambda x, y: x.apply("absolute").combine("maximum", y.apply("absolute")),
    "abs_min": lambda x, y: x.apply("absolute").combine("minimum", y.apply("absolute")),
    "hypot": lambda x, y: (x * x + y * y).apply("sqrt"),
    "logaddexp": lambda x, y: (x.apply("exp") + y.apply("exp")).apply("log"),
    "logical_and": lambda x, y: _truth_value(x) * _truth_value(y),
    "logical_or": lambda x, y: (_truth_value(x) + _truth_value(y)).combine("not_equal", 0.0),
    "logical_xor": lambda x, y: _truth_value(x).combine("not_equal", _truth_value(y)),
}

_NUMPY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "atan2": np.arctan2, "asinh": np.arcsinh, "erf": np.vectorize(erf, otypes=[float]),
    "arctan": np.arctan, "cbrt": np.cbrt, "ceil": np.ceil, "copysign": np.copysign, "cos": np.cos,
    "floor": np.floor, "floor_divide": np.floor_divide, "fmod": np.fmod, "log": np.log, "power": np.power,
    "remainder": np.remainder, "rint": np.rint, "sin": np.sin, "tan": np.tan, "trunc": np.trunc,
}  # fmt: skip
_INTEGER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "invert": np.invert, "left_shift": np.left_shift, "right_shift": np.right_shift,
}  # fmt: skip


def apply_to_known(name: str, *values: Array) -> Array | None:
    """Return a function's values for known numbers (NaN for NaN); None if it is not implemented here."""
    with np.errstate(all="ignore"):
        if name in _NUMPY_FUNCTIONS:
            return np.asarray(_NUMPY_FUNCTIONS[name](*values), np.float64)
        if name not in _INTEGER_FUNCTIONS:
            return None
        missing = np.isnan(np.add.reduce(np.broadcast_arrays(*values)))
        found = _INTEGER_FUNCTIONS[name](*(np.nan_to_num(value).astype(np.int64) for value in values))
        return np.where(missing, np.nan, found.astype(np.float64))
