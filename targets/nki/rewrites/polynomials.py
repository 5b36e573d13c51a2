"""Writes expressions as sums of products, so that a function is recognised however its factors are arranged.

A product consists of the one view that everything depends on, and of functions of such sums: 0.5 * x * (1 +
erf(y)) is 0.5 * x plus 0.5 * x * erf(y), in any order and by whatever instructions it was built.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import isclose

from targets.nki.rewrites.elementwise import Apply, Expression, Leaf
from targets.nki.rewrites.values import TensorView

Atom = str | tuple["str", "Frozen"]
"""`x`, or a function with its argument."""
Frozen = tuple[tuple[tuple["Atom", ...], float], ...]
Polynomial = dict[tuple[Atom, ...], float]
"""Coefficients by product; `x` comes before functions."""

MAX_PRODUCTS = 16
"""Most products in a sum that is analysed."""
RELATIVE_TOLERANCE = 1e-6
"""Allowed difference between the coefficients of an expression and of a function: a few float32 roundings."""
FUNCTIONS = frozenset({"tanh", "erf", "sigmoid"})
POWERS = {2.0: 2, 3.0: 3}


def expand_polynomial(expression: Expression, view: TensorView) -> Polynomial | None:
    """Return an expression in one view as a sum; None if it is something else, or too long."""
    match expression:
        case float():
            return {(): expression}
        case Leaf(view=found):
            return {("x",): 1.0} if found == view else None
        case Apply("add" | "subtract" as name, (first, second)):
            return _add_polynomials(
                expand_polynomial(first, view),
                expand_polynomial(second, view),
                1.0 if name == "add" else -1.0,
            )
        case Apply("multiply", (first, second)):
            return _multiply_polynomials(expand_polynomial(first, view), expand_polynomial(second, view))
        case Apply("square", (inner,)):
            return _raise_polynomial(expand_polynomial(inner, view), 2)
        case Apply("power", (inner, float() as exponent)) if exponent in POWERS:
            return _raise_polynomial(expand_polynomial(inner, view), POWERS[exponent])
        case Apply(name, (inner,)) if name in FUNCTIONS:
            argument = expand_polynomial(inner, view)
            return None if argument is None else {((name, freeze_polynomial(argument)),): 1.0}
    return None


def freeze_polynomial(terms: Mapping[tuple[Atom, ...], float]) -> Frozen:
    """Return a sum as an atom's argument, in a fixed order."""
    return tuple(sorted(((key, value) for key, value in terms.items() if value), key=repr))


def is_close(first: Frozen, second: Frozen) -> bool:
    """Whether two sums have the same products with nearly equal coefficients, arguments included."""
    pairs = list(zip(_sort_terms(first), _sort_terms(second), strict=False))
    return len(first) == len(second) and all(
        isclose(a, b, rel_tol=RELATIVE_TOLERANCE)
        and len(one) == len(other)
        and all(map(_are_close_atoms, one, other))
        for (one, a), (other, b) in pairs
    )


def _sort_terms(terms: Frozen) -> list[tuple[tuple[Atom, ...], float]]:
    """Sort by the products' shape, so that small differences of coefficients do not change the order."""
    return sorted(terms, key=lambda term: [atom if isinstance(atom, str) else atom[0] for atom in term[0]])


def _are_close_atoms(first: Atom, second: Atom) -> bool:
    if isinstance(first, str) or isinstance(second, str):
        return first == second
    return first[0] == second[0] and is_close(first[1], second[1])


def _add_polynomials(first: Polynomial | None, second: Polynomial | None, factor: float) -> Polynomial | None:
    if first is None or second is None:
        return None
    total = dict(first)
    for key, value in second.items():
        total[key] = total.get(key, 0.0) + factor * value
    return total


def _multiply_polynomials(first: Polynomial | None, second: Polynomial | None) -> Polynomial | None:
    if first is None or second is None or len(first) * len(second) > MAX_PRODUCTS:
        return None
    total: Polynomial = {}
    for (one, a), (other, b) in product(first.items(), second.items()):
        key = tuple(sorted((*one, *other), key=repr))
        total[key] = total.get(key, 0.0) + a * b
    return total


def _raise_polynomial(base: Polynomial | None, exponent: int) -> Polynomial | None:
    result: Polynomial | None = {(): 1.0}
    for _ in range(exponent):
        result = _multiply_polynomials(result, base)
    return result
