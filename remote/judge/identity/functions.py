"""Functions made of others, the same for every domain, and what functions give for numbers that are known.

`Composed` is a domain's base: it takes any name, replaces functions by what they are made of until a few are
left, and leaves those to the domain: negative, reciprocal, sqrt, exp; add, subtract, multiply, divide,
maximum, minimum, the comparisons. Names are those of NumPy and of the simulator's instructions.
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


class Composed(ABC):
    """A domain of which only the functions that others are made of are left to say."""

    @abstractmethod
    def constant(self, array: Array) -> Planes: ...

    @abstractmethod
    def known(self, value: Planes) -> Array: ...

    @abstractmethod
    def simple_unary(self, name: str, value: Planes) -> Planes:
        """Apply a function that is not made of others."""

    @abstractmethod
    def simple_binary(self, name: str, left: Planes, right: Planes) -> Planes:
        """Apply a function that is not made of others."""

    @abstractmethod
    def select(self, mask: Planes, left: Planes, right: Planes) -> Planes: ...

    def unary(self, name: str, value: Planes) -> Planes:
        """Apply a function of one argument to each element."""
        name = _ALIASES.get(name, name)
        made = _UNARY.get(name)
        return self.simple_unary(name, value) if made is None else made(_Expression(self, value)).value

    def binary(self, name: str, left: Planes, right: Planes) -> Planes:
        """Apply a function of two arguments to each pair."""
        name = _ALIASES.get(name, name)
        if name == "power":
            found = self._power(left, right)
            return self.simple_binary(name, left, right) if found is None else found
        made = _BINARY.get(name)
        if made is None:
            return self.simple_binary(name, left, right)
        return made(_Expression(self, left), _Expression(self, right)).value

    def _power(self, base: Planes, exponent: Planes) -> Planes | None:
        """Powers with one known exponent, a multiple of a half; None for others."""
        values = np.unique(self.known(exponent))
        halves = 2.0 * values[0] if values.size == 1 else np.nan
        if not (halves.is_integer() and abs(halves) <= 2 * _HIGHEST_POWER):
            return None
        root = _Expression(self, base) if halves % 2 == 0 else _Expression(self, base).of("sqrt")
        found = _to(root, int(abs(halves)) // (2 if halves % 2 == 0 else 1))
        found = found.of("reciprocal") if halves < 0 else found
        ones = self.constant(np.ones(np.broadcast_shapes(base.shape, exponent.shape)))
        return self.simple_binary("multiply", found.value, ones)


class _Expression:
    """A value with operators, so that formulas read as formulas."""

    def __init__(self, domain: Composed, value: Planes) -> None:
        self.domain, self.value = domain, value

    def of(self, name: str) -> _Expression:
        return _Expression(self.domain, self.domain.unary(name, self.value))

    def over(self, name: str, other: _Expression | float) -> _Expression:
        return _Expression(self.domain, self.domain.binary(name, self.value, self._planes(other)))

    def where(self, left: _Expression | float, right: _Expression | float) -> _Expression:
        """Choose by this truth value."""
        chosen = self.domain.select(self.value, self._planes(left), self._planes(right))
        return _Expression(self.domain, chosen)

    def _planes(self, other: _Expression | float) -> Planes:
        if isinstance(other, _Expression):
            return other.value
        return self.domain.constant(np.full((1,) * len(self.value.shape), float(other)))

    def __add__(self, other: _Expression | float) -> _Expression:
        return self.over("add", other)

    def __sub__(self, other: _Expression | float) -> _Expression:
        return self.over("subtract", other)

    def __mul__(self, other: _Expression | float) -> _Expression:
        return self.over("multiply", other)

    def __truediv__(self, other: _Expression | float) -> _Expression:
        return self.over("divide", other)

    def __neg__(self) -> _Expression:
        return self.of("negative")


def _to(base: _Expression, exponent: int) -> _Expression:
    """A power that is a natural number."""
    found = None
    for digit in f"{exponent:b}":
        found = found * found if found is not None else None
        if digit == "1":
            found = base if found is None else found * base
    return base * 0.0 + 1.0 if found is None else found


def _sigmoid(x: _Expression) -> _Expression:
    return ((-x).of("exp") + 1.0).of("reciprocal")


def _tanh(x: _Expression) -> _Expression:
    return _sigmoid(x * 2.0) * 2.0 - 1.0


def _sign(x: _Expression) -> _Expression:
    return x.over("greater", 0.0).where(1.0, x.over("less", 0.0).where(-1.0, 0.0))


def _mish(x: _Expression) -> _Expression:
    """x * tanh(log(1 + exp(x))), without the logarithm."""
    squared = _to(x.of("exp") + 1.0, 2)
    return x * ((squared - 1.0) / (squared + 1.0))


def _cdf(x: _Expression) -> _Expression:
    return ((x * sqrt(0.5)).of("erf") + 1.0) * 0.5


def _cubic(x: _Expression) -> _Expression:
    return (_to(x, 3) * 0.044715 + x) * sqrt(2.0 / pi)


def _derived_sigmoid(x: _Expression) -> _Expression:
    """The derivative of x * sigmoid(x)."""
    gate = _sigmoid(x)
    return gate * (x * (-gate + 1.0) + 1.0)


def _derived_gelu(x: _Expression) -> _Expression:
    return _cdf(x) + x * (_to(x, 2) * -0.5).of("exp") * sqrt(0.5 / pi)


def _scaled_derived_sigmoid(x: _Expression) -> _Expression:
    return _derived_sigmoid(x * 1.702)


_UNARY: dict[str, Callable[[_Expression], _Expression]] = {
    "absolute": lambda x: x.over("maximum", -x),
    "copy": lambda x: x,
    "cosh": lambda x: (x.of("exp") + (-x).of("exp")) * 0.5,
    "erf_dx": lambda x: (-_to(x, 2)).of("exp") * (2.0 / sqrt(pi)),
    "exp2": lambda x: (x * log(2.0)).of("exp"),
    "expm1": lambda x: x.of("exp") - 1.0,
    "fabs": lambda x: x.over("maximum", -x),
    "gelu": lambda x: x * _cdf(x),
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(x * 1.702),
    "gelu_apprx_sigmoid_dx": _scaled_derived_sigmoid,
    "gelu_apprx_tanh": lambda x: x * (_tanh(_cubic(x)) + 1.0) * 0.5,
    "gelu_dx": _derived_gelu,
    "log10": lambda x: x.of("log") / log(10.0),
    "log1p": lambda x: (x + 1.0).of("log"),
    "log2": lambda x: x.of("log") / log(2.0),
    "logical_not": lambda x: x.over("equal", 0.0),
    "mish": _mish,
    "relu": lambda x: x.over("maximum", 0.0),
    "rsqrt": lambda x: x.of("sqrt").of("reciprocal"),
    "sigmoid": _sigmoid,
    "sign": _sign,
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": _derived_sigmoid,
    "sinh": lambda x: (x.of("exp") - (-x).of("exp")) * 0.5,
    "softplus": lambda x: (x.of("exp") + 1.0).of("log"),
    "square": lambda x: x * x,
    "tanh": _tanh,
}


def _truth(x: _Expression) -> _Expression:
    return x.over("not_equal", 0.0)


_BINARY: dict[str, Callable[[_Expression, _Expression], _Expression]] = {
    "abs_max": lambda x, y: x.of("absolute").over("maximum", y.of("absolute")),
    "abs_min": lambda x, y: x.of("absolute").over("minimum", y.of("absolute")),
    "hypot": lambda x, y: (x * x + y * y).of("sqrt"),
    "logaddexp": lambda x, y: (x.of("exp") + y.of("exp")).of("log"),
    "logical_and": lambda x, y: _truth(x) * _truth(y),
    "logical_or": lambda x, y: (_truth(x) + _truth(y)).over("not_equal", 0.0),
    "logical_xor": lambda x, y: _truth(x).over("not_equal", _truth(y)),
}

_KNOWN: dict[str, Callable[..., Any]] = {
    "atan2": np.arctan2, "asinh": np.arcsinh, "erf": np.vectorize(erf, otypes=[float]),
    "arctan": np.arctan, "cbrt": np.cbrt, "ceil": np.ceil, "copysign": np.copysign, "cos": np.cos,
    "floor": np.floor, "floor_divide": np.floor_divide, "fmod": np.fmod, "log": np.log, "power": np.power,
    "remainder": np.remainder, "rint": np.rint, "sin": np.sin, "tan": np.tan, "trunc": np.trunc,
}  # fmt: skip
_INTEGERS: dict[str, Callable[..., Any]] = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "invert": np.invert, "left_shift": np.left_shift, "right_shift": np.right_shift,
}  # fmt: skip


def of_known(name: str, *values: Array) -> Array | None:
    """Return what a function gives for known numbers, NaN where one is NaN; None: it is not known here."""
    with np.errstate(all="ignore"):
        if name in _KNOWN:
            return np.asarray(_KNOWN[name](*values), np.float64)
        if name not in _INTEGERS:
            return None
        missing = np.isnan(np.add.reduce(np.broadcast_arrays(*values)))
        found = _INTEGERS[name](*(np.nan_to_num(value).astype(np.int64) for value in values))
        return np.where(missing, np.nan, found.astype(np.float64))
