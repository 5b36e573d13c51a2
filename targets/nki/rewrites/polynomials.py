"""Expressions as sums of products, so that a function is known however its factors are spread.

A product is of the one view that everything depends on, and of functions of such sums: 0.5 * x * (1 + erf(y))
is 0.5 * x plus 0.5 * x * erf(y), in whatever order and by whatever instructions it was put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import isclose

from targets.nki.rewrites.elementwise import Apply, Expression, Leaf
from targets.nki.rewrites.values import View

Atom = str | tuple["str", "Frozen"]
"""`x`, or a function with its argument."""
Frozen = tuple[tuple[tuple["Atom", ...], float], ...]
Sum = dict[tuple[Atom, ...], float]
"""Coefficients by product; `x` comes before functions."""

MOST = 16
"""Products of a sum that are worth looking at."""
CLOSE = 1e-6
"""How near the coefficients of an expression must be to a function's: a few roundings of float32."""
FUNCTIONS = frozenset({"tanh", "erf", "sigmoid"})
POWERS = {2.0: 2, 3.0: 3}


def as_sum(expression: Expression, view: View) -> Sum | None:
    """An expression in one view as a sum; None where it is something else, or very long."""
    match expression:
        case float():
            return {(): expression}
        case Leaf(view=found):
            return {("x",): 1.0} if found == view else None
        case Apply("add" | "subtract" as name, (first, second)):
            return _added(as_sum(first, view), as_sum(second, view), 1.0 if name == "add" else -1.0)
        case Apply("multiply", (first, second)):
            return _multiplied(as_sum(first, view), as_sum(second, view))
        case Apply("square", (inner,)):
            return _raised(as_sum(inner, view), 2)
        case Apply("power", (inner, float() as exponent)) if exponent in POWERS:
            return _raised(as_sum(inner, view), POWERS[exponent])
        case Apply(name, (inner,)) if name in FUNCTIONS:
            argument = as_sum(inner, view)
            return None if argument is None else {((name, frozen(argument)),): 1.0}
    return None


def frozen(terms: Mapping[tuple[Atom, ...], float]) -> Frozen:
    """A sum as an atom's argument, in a fixed order."""
    return tuple(sorted(((key, value) for key, value in terms.items() if value), key=repr))


def is_close(first: Frozen, second: Frozen) -> bool:
    """Whether two sums are of the same products with nearly the same coefficients, arguments included."""
    pairs = list(zip(_ordered(first), _ordered(second), strict=False))
    return len(first) == len(second) and all(
        isclose(a, b, rel_tol=CLOSE) and len(one) == len(other) and all(map(_alike, one, other))
        for (one, a), (other, b) in pairs
    )


def _ordered(terms: Frozen) -> list[tuple[tuple[Atom, ...], float]]:
    """By the products' shape, so that small differences of coefficients do not change the order."""
    return sorted(terms, key=lambda term: [atom if isinstance(atom, str) else atom[0] for atom in term[0]])


def _alike(first: Atom, second: Atom) -> bool:
    if isinstance(first, str) or isinstance(second, str):
        return first == second
    return first[0] == second[0] and is_close(first[1], second[1])


def _added(first: Sum | None, second: Sum | None, factor: float) -> Sum | None:
    if first is None or second is None:
        return None
    total = dict(first)
    for key, value in second.items():
        total[key] = total.get(key, 0.0) + factor * value
    return total


def _multiplied(first: Sum | None, second: Sum | None) -> Sum | None:
    if first is None or second is None or len(first) * len(second) > MOST:
        return None
    total: Sum = {}
    for (one, a), (other, b) in product(first.items(), second.items()):
        key = tuple(sorted((*one, *other), key=repr))
        total[key] = total.get(key, 0.0) + a * b
    return total


def _raised(base: Sum | None, exponent: int) -> Sum | None:
    result: Sum | None = {(): 1.0}
    for _ in range(exponent):
        result = _multiplied(result, base)
    return result
