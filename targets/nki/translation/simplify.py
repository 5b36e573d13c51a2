"""Makes operations of a loop nest in the form that instructions have.

Functions that no instruction computes are composed of those that some do; numbers are folded; a sum of
products of matrices becomes one contraction, which the tensor engine adds up by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from remote.judge.identity.exact_constants import recognise_constant
from targets.base import UntranslatableError
from targets.nki.translation.access import Atom
from targets.nki.translation.values import Binary, Contract, Number, Reduce, Select, Table, Unary, Value


class NoInstructionError(UntranslatableError):
    """No instruction, and no sequence of some, computes a function of NumPy."""

    def __init__(self, function: str) -> None:
        super().__init__(f"no instruction computes np.{function}")
        self.function = function


ACTIVATIONS = frozenset({"exp", "log", "tanh", "sqrt", "rsqrt", "sigmoid", "erf", "sin", "arctan", "sign"})
"""Functions of one value that an engine computes."""

_MOST_FACTORS = 8
"""Factors of a product up to which it is searched for products of matrices."""

_BOUNDED = frozenset({"absolute", "tanh", "sigmoid", "erf", "sin", "arctan", "sign"})
"""Functions that are finite wherever their argument is."""

COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "equal", "not_equal"})
TURNED = {
    "less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal",
}  # fmt: skip
COMPARISONS = frozenset({*TURNED, "equal", "not_equal"})
_ALU = COMMUTATIVE | TURNED.keys() | {"subtract", "power"}
_OTHER_NAMES = {
    "abs": "absolute", "fabs": "absolute", "fmax": "maximum", "fmin": "minimum", "mod": "remainder",
    "true_divide": "divide", "positive": "copy",
}  # fmt: skip


def make_unary(node: int, name: str, value: Value) -> Value:
    """Return a function of one value."""
    name = _OTHER_NAMES.get(name, name)
    if isinstance(value, Number):
        with np.errstate(all="ignore"):
            return Number(node, float(getattr(np, name)(value.number)))
    if name in ACTIVATIONS | {"absolute", "reciprocal"}:
        return Unary(node, name, value)
    if name not in _COMPOSED:
        raise NoInstructionError(name)
    return _COMPOSED[name](node, value)


def _number(node: int, number: float) -> Number:
    return Number(node, number)


_COMPOSED: dict[str, Callable[[int, Value], Value]] = {
    "copy": lambda _, x: x,
    "negative": lambda node, x: make_binary(node, "multiply", x, _number(node, -1.0)),
    "square": lambda node, x: make_binary(node, "multiply", x, x),
    "log1p": lambda node, x: Unary(node, "log", make_binary(node, "add", x, _number(node, 1.0))),
    "expm1": lambda node, x: make_binary(node, "subtract", Unary(node, "exp", x), _number(node, 1.0)),
    "exp2": lambda node, x: Unary(node, "exp", make_binary(node, "multiply", x, _number(node, math.log(2)))),
    "log2": lambda node, x: make_binary(
        node, "multiply", Unary(node, "log", x), _number(node, 1 / math.log(2))
    ),
    "log10": lambda node, x: make_binary(
        node, "multiply", Unary(node, "log", x), _number(node, 1 / math.log(10))
    ),
    "relu": lambda node, x: make_binary(node, "maximum", x, _number(node, 0.0)),
    "logical_not": lambda node, x: make_binary(node, "equal", x, _number(node, 0.0)),
    "sinh": lambda node, x: make_binary(
        node,
        "multiply",
        make_binary(
            node, "subtract", Unary(node, "exp", x), Unary(node, "exp", make_unary(node, "negative", x))
        ),
        _number(node, 0.5),
    ),
    "cosh": lambda node, x: make_binary(
        node,
        "multiply",
        make_binary(node, "add", Unary(node, "exp", x), Unary(node, "exp", make_unary(node, "negative", x))),
        _number(node, 0.5),
    ),
}


def make_binary(node: int, name: str, left: Value, right: Value) -> Value:
    """Return a function of two values, numbers folded and on the right where that is possible."""
    name = _OTHER_NAMES.get(name, name)
    if isinstance(left, Number) and isinstance(right, Number):
        with np.errstate(all="ignore"):
            return Number(node, float(getattr(np, name)(left.number, right.number)))
    if isinstance(left, Number) and name in COMMUTATIVE | TURNED.keys():
        name, left, right = TURNED.get(name, name), right, left
    if name == "divide":
        return _divide(node, left, right)
    if name == "power":
        return _power(node, left, right)
    if name in _MASKS:
        return _MASKS[name](node, left, right)
    if name not in _ALU:
        raise NoInstructionError(name)
    if isinstance(right, Number):
        return _with_number(node, name, left, right.number)
    if name == "add" and (hidden := _hide(node, left, right)) is not None:
        return hidden
    if name == "add" and (joined := _join_products(node, left, right)) is not None:
        return joined
    return Binary(node, name, left, right)


def make_choice(node: int, condition: Value, left: Value, right: Value) -> Value:
    """Return a choice by a condition, without a mask if the condition compares what is chosen.

    So where(x > y, x, y) is a maximum. where(x > 0, a x, b x), as in leaky ReLU,
    is a max(x, 0) + b min(x, 0).
    """
    if not isinstance(condition, Binary) or condition.function not in TURNED:
        return Select(node, condition, left, right)
    one, other = condition.left, condition.right
    above, below = (right, left) if condition.function.startswith("less") else (left, right)
    if (above, below) in {(one, other), (other, one)}:
        return make_binary(node, "maximum" if above is one else "minimum", one, other)
    factors = [_multiple_of(item, one) for item in (above, below)]
    if not isinstance(other, Number) or other.number or None in factors:
        hides = _is_zero(right) and _is_finite(left)
        chosen = Select(node, condition, left, right)
        return make_binary(node, "multiply", condition, left) if hides else chosen
    sides = [
        make_binary(node, "multiply", make_binary(node, name, one, other), Number(node, factor or 0.0))
        for name, factor in zip(("maximum", "minimum"), factors, strict=True)
    ]
    return make_binary(node, "add", *sides)


def _is_zero(value: Value) -> bool:
    return isinstance(value, Number) and value.number == 0.0


def _is_finite(value: Value) -> bool:
    """Whether a value is finite for inputs that are: times 0, it is 0."""
    for item in value.walk():
        if isinstance(item, Unary) and item.function not in _BOUNDED:
            return False
        if isinstance(item, Binary) and item.function == "power":
            return False
        if isinstance(item, Number) and not math.isfinite(item.number):
            return False
        if isinstance(item, Table) and not np.isfinite(item.numbers).all():
            return False
    return True


def _multiple_of(value: Value, base: Value) -> float | None:
    """The number by which a value is multiplied to give another one; None if it is something else."""
    match value:
        case Number(number=0.0):
            return 0.0
        case Binary(function="multiply", left=left, right=Number(number=number)) if left is base:
            return number
    return 1.0 if value is base else None


def _hide(node: int, left: Value, right: Value) -> Value | None:
    """A sum with what is minus infinity in places, as a choice: one instruction, if the places are known."""
    for mask, data in ((right, left), (left, right)):
        if isinstance(mask, Select) and isinstance(mask.right, Number) and mask.right.number == -math.inf:
            return Select(node, mask.condition, make_binary(node, "add", data, mask.left), mask.right)
    return None


def _join_products(node: int, left: Value, right: Value) -> Value | None:
    """Two products of matrices that are added, as one accumulator; the left may have another term before."""
    before: Value | None = None
    one, two = push_number(left), push_number(right)
    match one:
        case Binary(function="add", left=Contract() as one, right=before):
            pass
        case Binary(function="add", left=before, right=one):
            one = push_number(one)
    if not isinstance(one, Contract) or not isinstance(two, Contract):
        return None
    joined = Contract(node, one.pairs + two.pairs, one.over + two.over)
    return joined if before is None else Binary(node, "add", joined, before)


def _with_number(node: int, name: str, left: Value, number: float) -> Value:
    """A function of a value and a number, without what changes nothing."""
    if (name, number) in {("add", 0.0), ("subtract", 0.0), ("multiply", 1.0)}:
        return left
    if (name, number) == ("multiply", 0.0):
        return Number(node, 0.0)
    if name == "subtract":
        name, number = "add", -number
    inner = left.right if isinstance(left, Binary) and left.function == name == "multiply" else None
    if isinstance(left, Binary) and isinstance(inner, Number) and _may_fold(inner.number, number):
        return Binary(node, name, left.left, Number(node, inner.number * number))
    return Binary(node, name, left, Number(node, number))


def _may_fold(one: float, two: float) -> bool:
    """Whether two factors and their product are numbers that the judge knows by name."""
    return all(recognise_constant(number).named for number in (one, two, one * two))


_MASKS: dict[str, Callable[[int, Value, Value], Value]] = {
    "logical_and": lambda node, x, y: make_binary(node, "multiply", _truth(node, x), _truth(node, y)),
    "logical_or": lambda node, x, y: make_binary(node, "maximum", _truth(node, x), _truth(node, y)),
    "bitwise_and": lambda node, x, y: make_binary(node, "multiply", _truth(node, x), _truth(node, y)),
    "bitwise_or": lambda node, x, y: make_binary(node, "maximum", _truth(node, x), _truth(node, y)),
}


def _truth(node: int, value: Value) -> Value:
    if isinstance(value, Binary) and value.function in COMPARISONS:
        return value
    return make_binary(node, "not_equal", value, Number(node, 0.0))


def _divide(node: int, left: Value, right: Value) -> Value:
    if isinstance(right, Number):
        return make_binary(node, "multiply", left, Number(node, 1.0 / right.number))
    inverse = make_unary(node, "reciprocal", right)
    if isinstance(right, Unary) and right.function == "sqrt":
        inverse = Unary(node, "rsqrt", right.value)
    return make_binary(node, "multiply", left, inverse)


def _power(node: int, base: Value, exponent: Value) -> Value:
    """Powers by multiplication and roots where the exponent is a known multiple of a half."""
    if not isinstance(exponent, Number):
        return Binary(node, "power", base, exponent)
    halves = exponent.number * 2
    if halves != round(halves) or abs(halves) > 32:
        return Binary(node, "power", base, exponent)
    count, root = divmod(abs(round(halves)), 2)
    found: Value | None = None
    if root:
        found = Unary(node, "rsqrt" if halves < 0 and not count else "sqrt", base)
    square = base
    while count:
        if count % 2:
            found = square if found is None else make_binary(node, "multiply", found, square)
        count //= 2
        square = make_binary(node, "multiply", square, square) if count else square
    if found is None:
        return Number(node, 1.0)
    is_inverse = halves < 0 and not (isinstance(found, Unary) and found.function == "rsqrt")
    return make_unary(node, "reciprocal", found) if is_inverse else found


def make_reduction(node: int, name: str, value: Value, over: Sequence[Atom]) -> Value:
    """Return a value combined over loops; a sum over a product's batch joins what the product sums over."""
    mine = tuple(atom for atom in over if atom in value.atoms)
    copies = math.prod(atom.size for atom in over if atom not in value.atoms)
    if name == "multiply" and copies > 1:
        value, copies = _power(node, value, Number(node, float(copies))), 1
    if not mine:
        found = value
    elif name == "add" and isinstance(value, Contract) and _sums_whole_products(value, mine):
        found = replace(value, node=node, over=tuple((*mine, *own) for own in value.over))
    else:
        product = _sum_products(node, value, mine) if name == "add" else None
        found = Reduce(node, name, value, mine) if product is None else product
    if name == "add" and copies > 1:
        return make_binary(node, "multiply", found, Number(node, float(copies)))
    return found


def _sum_products(node: int, value: Value, over: Sequence[Atom]) -> Value | None:
    """A sum of products as products of matrices: of factors each of which lacks a loop of the other.

    Of several such pairs, the one with the smallest result is first. None: there is no such pair.
    """
    whole = [value.left, value.right] if isinstance(value, Binary) and value.function == "multiply" else []
    for given in (whole, _factors(value)):
        factors, left = given, [*over]
        while (pair := _find_pair(factors, left)) is not None:
            one, other, own = pair
            rest = [factor for at, factor in enumerate(factors) if at not in {one, other}]
            factors = [make_contraction(node, factors[one], factors[other], own), *rest]
            left = [atom for atom in left if atom not in own]
        if len(left) < len(over):
            product = factors[0]
            for factor in factors[1:]:
                product = make_binary(node, "multiply", product, factor)
            return make_reduction(node, "add", product, left) if left else product
    return None


def _factors(value: Value) -> list[Value]:
    """The factors of a product; itself alone, if they are many."""
    found, at = [value], 0
    while at < len(found):
        item = found[at]
        if isinstance(item, Binary) and item.function == "multiply":
            found[at : at + 1] = [item.left, item.right]
        else:
            at += 1
        if len(found) > _MOST_FACTORS:
            return [value]
    return found


def _find_pair(factors: Sequence[Value], over: Sequence[Atom]) -> tuple[int, int, list[Atom]] | None:
    """The places of two factors to multiply as matrices, and the loops of the sum that no other one has."""
    found: list[tuple[int, int, int, list[Atom]]] = []
    for one, other in combinations(range(len(factors)), 2):
        rest = (factor.atoms for at, factor in enumerate(factors) if at not in {one, other})
        first, second, others = factors[one].atoms, factors[other].atoms, frozenset[Atom]().union(*rest)
        own = [atom for atom in over if atom in first | second and atom not in others]
        is_shared = any(atom in first & second for atom in own)
        if is_shared and first - second - {*own} and second - first - {*own}:
            found.append((math.prod(atom.size for atom in (first | second) - {*own}), one, other, own))
    return min(found, key=lambda pair: pair[:3])[1:] if found else None


def _sums_whole_products(value: Contract, over: Sequence[Atom]) -> bool:
    return all(atom in left.atoms and atom in right.atoms for left, right in value.pairs for atom in over)


def pull_factors(left: Value, right: Value, over: Sequence[Atom]) -> tuple[Value, Value, list[Value]]:
    """Return the operands of a product without factors that its sum does not touch, and those factors.

    A softmax divides by its sum. Behind the product this is done for each element of the result, which has
    fewer of them. A number costs nothing there: the result leaves PSUM by an instruction that multiplies.
    """
    size = math.prod(atom.size for atom in (left.atoms | right.atoms) - {*over})
    found: list[Value] = []
    sides = []
    for side in (left, right):
        while (split := _split_factor(side, frozenset(over), size)) is not None:
            side = split[0]  # noqa: PLW2901
            found.append(split[1])
        sides.append(side)
    return sides[0], sides[1], found


def _split_factor(side: Value, over: frozenset[Atom], size: int) -> tuple[Value, Value] | None:
    if not isinstance(side, Binary) or side.function != "multiply":
        return None
    for rest, factor in ((side.left, side.right), (side.right, side.left)):
        is_smaller = isinstance(factor, Number) or size <= math.prod(atom.size for atom in side.atoms)
        if is_smaller and not factor.atoms & over and over <= rest.atoms:
            return rest, factor
    return None


def push_number(value: Value) -> Value:
    """Return a product of matrices with the number behind it as a factor of its left side, to be added up."""
    match value:
        case Binary(function="multiply", left=Contract(pairs=((left, right),)) as product, right=Number()):
            scaled = Binary(value.node, "multiply", left, value.right)
            return replace(product, pairs=((scaled, right),))
    return value


def make_contraction(node: int, left: Value, right: Value, over: Sequence[Atom]) -> Value:
    """Return the sum over loops of left * right."""
    shared = [atom for atom in over if atom in left.atoms and atom in right.atoms]
    lone = [atom for atom in over if atom not in shared]
    by_element = left.atoms == right.atoms  # each result has its own sum: nothing for the tensor engine
    if by_element or len(lone) == len(over) or isinstance(left, Number) or isinstance(right, Number):
        return make_reduction(node, "add", make_binary(node, "multiply", left, right), over)
    if lone:
        sums = [atom for atom in lone if atom in left.atoms]
        left = make_reduction(node, "add", left, sums) if sums else left
        sums = [atom for atom in lone if atom in right.atoms]
        right = make_reduction(node, "add", right, sums) if sums else right
        copies = math.prod(atom.size for atom in lone if atom not in left.atoms | right.atoms)
        left = make_binary(node, "multiply", left, Number(node, float(copies)))
    left, right, factors = pull_factors(left, right, shared)
    found: Value = Contract(node, ((left, right),), (tuple(shared),))
    for factor in factors:
        found = make_binary(node, "multiply", found, factor)
    return found
