"""Intrinsics: replaces a chain of instructions that spells out a ScalarE function by that function."""

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
    element_expression,
    expand_expression,
    find_unused_after,
    negation_operand,
)
from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement
from targets.nki.rewrites.polynomials import Polynomial, expand_polynomial, freeze_polynomial, is_close
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform


@dataclass(frozen=True, slots=True)
class IntrinsicMatch:
    """The value at `root` is `function` of `argument`."""

    root: Statement
    function: str
    argument: Leaf


class Intrinsic(Transform[Statement]):
    """Replaces a spelled-out function by one activation."""

    id: ClassVar[str] = "intrinsic"
    counter: ClassVar[str] = "vector_engine_active_time_percent"
    keeps: ClassVar[str] = "the expression is the function's definition; intermediate tiles had no other user"

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, Statement]:
        del target
        found: dict[str, Statement] = {}
        for item in kernel.operations():
            dst = item.find_access("dst")
            if (
                dst is not None
                and dst.tensor.id in kernel.declarations
                and element_expression(item) is not None
            ):
                found.setdefault(kernel.unique_label(dst.tensor), item)
        return found

    def list_choices(self, kernel: Kernel, target: Target, place: Statement) -> tuple[Choice, ...]:
        del target
        return ({"function": _match_intrinsic(kernel, place).function},)

    def apply(self, kernel: Kernel, target: Target, place: Statement, choice: Choice) -> str:
        del target, choice
        match = _match_intrinsic(kernel, place)
        gone = find_unused_after(kernel, place, frozenset({match.argument.view.tensor.id}))

        def emit(node: Node) -> list[cst.BaseStatement] | None:
            if node in gone:
                return []
            return [_write_activation(kernel, match)] if node is place else None

        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _write_activation(kernel: Kernel, match: IntrinsicMatch) -> cst.BaseStatement:
    code = (
        f"{kernel.nisa}.activation(dst={match.root.texts['dst']}, "
        f"op={kernel.nl}.{match.function}, data={match.argument.text})"
    )
    return syntax.with_leading_lines(syntax.parse_statement(code), syntax.leading_lines(match.root.node))


def _match_intrinsic(kernel: Kernel, root: Statement) -> IntrinsicMatch:
    first = element_expression(root)
    whole = expand_expression(kernel, first, root) if first is not None else None
    found = _recognise_function(whole) if whole is not None else None
    if found is None or first == whole:
        raise RewriteRefused(f"what {root.op} computes is no function that ScalarE has")
    return IntrinsicMatch(root, *found)


def _recognise_function(expression: Expression) -> tuple[str, Leaf] | None:
    """Return the intrinsic that an expression spells out, and its argument."""
    if isinstance(expression, Apply):
        for rule in _INTRINSIC_RULES:
            found = rule(expression)
            if found is not None and isinstance(found[1], Leaf):
                return found[0], found[1]
    return None


def _match_sigmoid(expression: Expression) -> tuple[str, Expression] | None:
    """1 / (1 + exp(-z))"""
    match expression:
        case Apply("reciprocal", (Apply("add", operands),)) | Apply("divide", (1.0, Apply("add", operands))):
            return _match_logistic(operands)
        case Apply("sigmoid", (inner,)):
            return "sigmoid", inner
    return None


def _match_logistic(operands: tuple[Expression, ...]) -> tuple[str, Expression] | None:
    for one, other in (operands, operands[::-1]):
        match one, other:
            case 1.0, Apply("exp", (inner,)):
                argument = negation_operand(inner)
                return None if argument is None else ("sigmoid", argument)
    return None


def _match_silu(expression: Expression) -> tuple[str, Expression] | None:
    """z * sigmoid(z), or z / (1 + exp(-z))"""
    match expression:
        case Apply("multiply", (first, second)):
            for factor, other in ((first, second), (second, first)):
                gate = _match_sigmoid(other)
                if gate is not None and _is_same_view(gate[1], factor):
                    return "silu", factor
        case Apply("divide", (factor, Apply("add", operands))):
            gate = _match_logistic(operands)
            if gate is not None and _is_same_view(gate[1], factor):
                return "silu", factor
    return None


def _match_rsqrt(expression: Expression) -> tuple[str, Expression] | None:
    """1 / sqrt(z), or z ** -0.5"""
    match expression:
        case Apply("reciprocal", (Apply("sqrt", (inner,)),)) | Apply(
            "divide", (1.0, Apply("sqrt", (inner,)))
        ):
            return "rsqrt", inner
        case Apply("power", (inner, -0.5)):
            return "rsqrt", inner
    return None


def _match_gelu(expression: Expression) -> tuple[str, Expression] | None:
    """z times the normal distribution function, or one of the approximations that ScalarE has."""
    leaf = _first_leaf(expression)
    terms = expand_polynomial(expression, leaf.view) if leaf is not None else None
    if leaf is None or terms is None:
        return None
    found = freeze_polynomial(terms)
    return next(
        (
            (name, leaf)
            for name, form in _GELU_POLYNOMIALS.items()
            if is_close(found, freeze_polynomial(form))
        ),
        None,
    )


def _first_leaf(expression: Expression) -> Leaf | None:
    """The first view in an expression."""
    match expression:
        case Leaf():
            return expression
        case Apply(_, operands):
            return next((leaf for item in operands if (leaf := _first_leaf(item)) is not None), None)
    return None


_TANH_SLOPE = sqrt(2 / pi)
_GELU_POLYNOMIALS: dict[str, Polynomial] = {
    "gelu": {("x",): 0.5, ("x", ("erf", freeze_polynomial({("x",): sqrt(0.5)}))): 0.5},
    "gelu_apprx_tanh": {
        ("x",): 0.5,
        (
            "x",
            ("tanh", freeze_polynomial({("x",): _TANH_SLOPE, ("x", "x", "x"): _TANH_SLOPE * 0.044715})),
        ): 0.5,
    },
    "gelu_apprx_sigmoid": {("x", ("sigmoid", freeze_polynomial({("x",): 1.702}))): 1.0},
}


def _is_same_view(a: Expression, b: Expression) -> bool:
    return isinstance(a, Leaf) and isinstance(b, Leaf) and a.view == b.view


_INTRINSIC_RULES = (_match_silu, _match_sigmoid, _match_rsqrt, _match_gelu)
