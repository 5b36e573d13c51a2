"""Recognises functions that ScalarE has, however a reference spells them: sigmoid, silu, gelu, softplus, ...

A result that depends on one other result through elements alone is a function of one number. It is evaluated
at some points and compared with the engine's functions, so `1 / (1 + exp(-x))`, a sigmoid that chooses a
stable form by `where`, and `0.5 * (1 + tanh(x / 2))` are all the same. The judge proves what comes of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from remote.judge.identity.expression import ArrayExpression
from targets.nki.translation.known import KnownArrays
from targets.nki.translation.values import Array

_MAX_CONE = 40
"""Operations that a recognised function may be spelled with."""
_POINTS = np.concatenate([np.linspace(-24.0, 24.0, 97), np.linspace(-1.9, 2.1, 24)])
_PIVOT = 111
"""The point that decides the factor: no function here is 0 there."""
_TRANSCENDENTAL = frozenset(
    {"exp", "exp2", "expm1", "tanh", "log", "log1p", "logaddexp", "erf", "sinh", "cosh", "arctan"}
)
_ERF = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(x, 0.0))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))))


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu": lambda x: 0.5 * x * (1.0 + _ERF(x / math.sqrt(2.0))),
    "silu_dx": lambda x: _sigmoid(x) * (1.0 + x * (1.0 - _sigmoid(x))),
}


@dataclass(frozen=True, slots=True)
class FoundActivation:
    """factor * function(scale * x), where x is the result of another operation."""

    function: str
    source: int
    scale: float
    factor: float


class ActivationFinder:
    """Finds the engine's functions in an expression."""

    def __init__(self, expression: ArrayExpression, known: KnownArrays) -> None:
        self._nodes = expression.nodes
        self._known = known
        self._found: dict[tuple[int, bool], FoundActivation | None] = {}

    def find(self, number: int, *, inverse: bool = False) -> FoundActivation | None:
        """Return what an operation computes, or its inverse, as a function of another; None if no such."""
        key = number, inverse
        if key not in self._found:
            self._found[key] = self._find(number, inverse=inverse)
        return self._found[key]

    def _find(self, number: int, *, inverse: bool) -> FoundActivation | None:
        cone = self._cone(number)
        functions = {self._nodes[at].params[0] for at in cone if self._nodes[at].kind in {"unary", "binary"}}
        if not functions & _TRANSCENDENTAL or (len(cone) < 2 and not inverse):
            return None
        sources = dict.fromkeys(at for node in cone for at in self._nodes[node].args)
        for source in sorted(sources):  # the deepest one first: it leaves the least to other instructions
            if source == number or self._nodes[source].shape != self._nodes[number].shape:
                continue
            results = self._evaluate(number, source)
            if results is None:
                continue
            with np.errstate(all="ignore"):
                results = 1.0 / results if inverse else results
            found = _match(results, {1.0, -1.0, *self._numbers(cone)})
            if found is not None:
                return FoundActivation(found[0], source, found[1], found[2])
        return None

    def _cone(self, number: int) -> list[int]:
        """The operations on elements from which a result is computed, as far as they keep its shape."""
        found: dict[int, None] = {}
        todo = [number]
        while todo and len(found) <= _MAX_CONE:
            at = todo.pop()
            node = self._nodes[at]
            if at in found or self._known.is_known(at) or node.kind not in {"unary", "binary", "select"}:
                continue
            found[at] = None
            todo += node.args
        return list(found)

    def _numbers(self, cone: list[int]) -> Iterator[float]:
        for node in cone:
            for at in self._nodes[node].args:
                value = self._number(at)
                if value is not None and value != 0.0:
                    yield value
                    yield -value

    def _number(self, at: int) -> float | None:
        """The number that every element of a known result is."""
        if not self._known.is_known(at):
            return None
        array = self._known.array(at)
        first = float(array.reshape(-1)[0]) if array.size else 0.0
        return first if bool((array == first).all()) else None

    def _evaluate(self, number: int, source: int) -> Array | None:
        """The results at some values of `source`; None if they depend on anything else."""
        done: dict[int, Array] = {source: _POINTS}
        budget = 4 * _MAX_CONE

        def value(at: int) -> Array | None:
            nonlocal budget
            budget -= 1
            if at not in done:
                found = self._evaluate_node(at, value) if budget > 0 else None
                if found is None:
                    return None
                done[at] = found
            return done[at]

        with np.errstate(all="ignore"):
            return value(number)

    def _evaluate_node(self, at: int, value: Callable[[int], Array | None]) -> Array | None:
        known = self._number(at)
        if known is not None:
            return np.full(_POINTS.shape, known)
        node = self._nodes[at]
        if node.kind not in {"unary", "binary", "select"} or self._known.is_known(at):
            return None
        args: list[Array] = []
        for one in node.args:
            found = value(one)
            if found is None:
                return None
            args.append(found)
        if node.kind == "select":
            return np.where(args[0] != 0, args[1], args[2])
        function = _ERF if node.params[0] == "erf" else getattr(np, node.params[0])
        return np.asarray(function(*args), np.float64)


def _match(results: Array, scales: set[float]) -> tuple[str, float, float] | None:
    """Return the function, its scale and the factor that give these results at the points."""
    if not np.isfinite(results).all():
        return None
    usual = [scale for scale in scales if 1e-3 < abs(scale) < 1e3]
    for scale in sorted(usual, key=lambda number: (abs(math.log(abs(number))), number < 0, number)):
        for name in _FUNCTIONS:
            expected = _values_of(name, scale)
            factor = float(results[_PIVOT]) / float(expected[_PIVOT]) if expected[_PIVOT] else 0.0
            if not math.isfinite(factor) or factor == 0.0:
                continue
            size = abs(factor) * np.abs(expected).max()
            if np.allclose(results, factor * expected, rtol=1e-8, atol=1e-11 * size):
                return name, scale, round(factor, 15) if abs(factor - round(factor, 12)) < 1e-13 else factor
    return None


@cache
def _values_of(name: str, scale: float) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(_FUNCTIONS[name](scale * _POINTS), np.float64)
