"""Intrinsics: a chain of instructions that spells out a function ScalarE has becomes that function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import ClassVar

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.elementwise import (
    Apply,
    Expression,
    Leaf,
    computed,
    expanded,
    negated,
    unused_after,
)
from targets.nki.rewrites.model import Kernel, Node, Statement
from targets.nki.rewrites.polynomials import Sum, as_sum, frozen, is_close
from targets.nki.rewrites.transform import Choice, Refused, Transform


@dataclass(frozen=True, slots=True)
class Match:
    """At `root`, `function` of `argument`."""

    root: Statement
    function: str
    argument: Leaf


class Intrinsic(Transform[Statement]):
    """Replaces a spelled-out function by one activation."""

    id: ClassVar[str] = "intrinsic"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "the expression is the function's definition; intermediate tiles had no other user"

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        found: dict[str, Statement] = {}
        for item in kernel.operations():
            dst = item.access("dst")
            if dst is not None and dst.tensor.id in kernel.declarations and computed(item) is not None:
                found.setdefault(kernel.label(dst.tensor), item)
        return found

    def choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        del target
        return ({"function": _match(kernel, place).function},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del target, choice
        match = _match(kernel, place)
        gone = unused_after(kernel, place, frozenset({match.argument.view.tensor.id}))

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node in gone:
                return []
            return [_activation(kernel, match)] if node is place else None

        return syntax.source_of(kernel, syntax.rebuild(kernel.body, emit))


def _activation(kernel: Kernel, match: Match) -> cst.BaseStatement:
    code = (
        f"{kernel.nisa}.activation(dst={match.root.texts['dst']}, "
        f"op={kernel.nl}.{match.function}, data={match.argument.text})"
    )
    return syntax.at_front(syntax.statement(code), syntax.leading(match.root.node))


def _match(kernel: Kernel, root: Statement) -> Match:
    first = computed(root)
    whole = expanded(kernel, first, root) if first is not None else None
    found = _recognise(whole) if whole is not None else None
    if found is None or first == whole:
        raise Refused(f"what {root.op} computes is no function that ScalarE has")
    return Match(root, *found)


def _recognise(expression: Expression) -> tuple[str, Leaf] | None:
    """The intrinsic that an expression spells out, with its argument."""
    if isinstance(expression, Apply):
        for rule in _RULES:
            found = rule(expression)
            if found is not None and isinstance(found[1], Leaf):
                return found[0], found[1]
    return None


def _sigmoid(expression: Expression) -> tuple[str, Expression] | None:
    """1 / (1 + exp(-z))"""
    match expression:
        case Apply("reciprocal", (Apply("add", operands),)) | Apply("divide", (1.0, Apply("add", operands))):
            return _logistic(operands)
        case Apply("sigmoid", (inner,)):
            return "sigmoid", inner
    return None


def _logistic(operands: tuple[Expression, ...]) -> tuple[str, Expression] | None:
    for one, other in (operands, operands[::-1]):
        match one, other:
            case 1.0, Apply("exp", (inner,)):
                argument = negated(inner)
                return None if argument is None else ("sigmoid", argument)
    return None


def _silu(expression: Expression) -> tuple[str, Expression] | None:
    """z * sigmoid(z), or z / (1 + exp(-z))"""
    match expression:
        case Apply("multiply", (first, second)):
            for factor, other in ((first, second), (second, first)):
                gate = _sigmoid(other)
                if gate is not None and _same(gate[1], factor):
                    return "silu", factor
        case Apply("divide", (factor, Apply("add", operands))):
            gate = _logistic(operands)
            if gate is not None and _same(gate[1], factor):
                return "silu", factor
    return None


def _rsqrt(expression: Expression) -> tuple[str, Expression] | None:
    """1 / sqrt(z), or z ** -0.5"""
    match expression:
        case Apply("reciprocal", (Apply("sqrt", (inner,)),)) | Apply(
            "divide", (1.0, Apply("sqrt", (inner,)))
        ):
            return "rsqrt", inner
        case Apply("power", (inner, -0.5)):
            return "rsqrt", inner
    return None


def _gelu(expression: Expression) -> tuple[str, Expression] | None:
    """z times the normal distribution function, or one of the approximations that ScalarE has."""
    leaf = _only_leaf(expression)
    terms = as_sum(expression, leaf.view) if leaf is not None else None
    if leaf is None or terms is None:
        return None
    found = frozen(terms)
    return next(((name, leaf) for name, form in _GELUS.items() if is_close(found, frozen(form))), None)


def _only_leaf(expression: Expression) -> Leaf | None:
    """The view that an expression begins with."""
    match expression:
        case Leaf():
            return expression
        case Apply(_, operands):
            return next((leaf for item in operands if (leaf := _only_leaf(item)) is not None), None)
    return None


_SLOPE = sqrt(2 / pi)
_GELUS: dict[str, Sum] = {
    "gelu": {("x",): 0.5, ("x", ("erf", frozen({("x",): sqrt(0.5)}))): 0.5},
    "gelu_apprx_tanh": {
        ("x",): 0.5,
        ("x", ("tanh", frozen({("x",): _SLOPE, ("x", "x", "x"): _SLOPE * 0.044715}))): 0.5,
    },
    "gelu_apprx_sigmoid": {("x", ("sigmoid", frozen({("x",): 1.702}))): 1.0},
}


def _same(a: Expression, b: Expression) -> bool:
    return isinstance(a, Leaf) and isinstance(b, Leaf) and a.view == b.view


_RULES = (_silu, _sigmoid, _rsqrt, _gelu)
