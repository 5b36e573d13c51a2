"""Integer expressions over a problem's dimensions, such as `2 * M * N * K`.

They allow only names, non-negative integers, `+ - * //` and parentheses. That is enough for shapes and work,
and cannot run code or take long.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from seeds.errors import ExpressionError, describe_unknown

MAX_CHARS = 200

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def evaluate_expression(expression: str | int, dims: Mapping[str, int]) -> int:
    """Return the value of `expression` with the dimensions `dims`.

    Raises:
        ExpressionError: it is not such an expression, uses an unknown dimension, or divides by zero.
    """
    if isinstance(expression, int):
        return expression
    try:
        return _evaluate_node(_parse_expression(expression).body, dims)
    except ZeroDivisionError as error:
        raise ExpressionError(f"{expression!r} divides by zero") from error


def _parse_expression(text: str) -> ast.Expression:
    if len(text) > MAX_CHARS:
        raise ExpressionError(f"{text[:20]!r}... has {len(text)} characters; at most {MAX_CHARS} are allowed")
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ExpressionError(f"{text!r} is not an expression") from error


def _evaluate_node(node: ast.expr, dims: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in dims:
            return dims[name]
        case ast.Name(id=name):
            raise ExpressionError(describe_unknown("dimension", name, dims))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate_node(left, dims), _evaluate_node(right, dims))
    raise ExpressionError(
        f"{ast.unparse(node)!r}: only names, integers, + - * // and parentheses are allowed"
    )
