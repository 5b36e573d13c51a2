"""The shape and type of an array that NumPy makes, from its expression alone.

Rewrites need no more than that of constant data in HBM. Any expression will do whose last steps say both, as
in `(...).astype(np.float32).reshape((128, 64))`; what the dots stand for is not read.
"""

from __future__ import annotations

import ast

from targets.nki.rewrites.evaluate import ExpressionEvaluator, evaluate_shape
from targets.nki.rewrites.source_tree import SourceTree, StatementPath
from targets.nki.rewrites.values import Affine, UnreadableSyntax

_SHAPED_CALLS = frozenset({"np.full", "np.zeros", "np.ones", "np.empty"})
_SQUARE_CALLS = frozenset({"np.eye", "np.tri", "np.identity"})
_TYPES = {
    f"np.{name}": name
    for name in ("float32", "float16", "int32", "uint32", "int16", "uint16", "int8", "uint8")
}


def read_array_layout(node: ast.expr, evaluator: ExpressionEvaluator) -> tuple[tuple[int, ...], str]:
    """Return the shape and the type of an array.

    Raises:
        UnreadableSyntax: the expression does not say one of them.
    """
    shape, dtype = _find_shape(node, evaluator), _find_type(node)
    if shape is None or dtype is None:
        raise UnreadableSyntax(f"the shape or type of `{ast.unparse(node)}`")
    return shape, dtype


def makes_identity(tree: SourceTree, place: StatementPath) -> bool:
    """Whether a statement binds a square constant in HBM to an identity matrix, as NumPy makes it."""
    (line,) = tree.find_line(place)
    match line:
        case ast.Assign(value=ast.Call(args=[array], keywords=[])):
            return _is_identity(array)
    return False


def _is_identity(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=inner, attr="T") | ast.Call(func=ast.Attribute(value=inner, attr="astype")):
            return _is_identity(inner)
        case ast.Call(func=function, args=[_] | [_, _], keywords=words):
            return ast.unparse(function) in {"np.eye", "np.identity"} and all(
                word.arg == "dtype" for word in words
            )
    return False


def _find_shape(node: ast.expr, evaluator: ExpressionEvaluator) -> tuple[int, ...] | None:
    """The shape, if the expression says it; a step that keeps it is looked through."""
    match node:
        case ast.Attribute(value=inner, attr="T"):
            turned = _find_shape(inner, evaluator)
            return None if turned is None else turned[::-1]
        case ast.Call(func=ast.Attribute(value=inner, attr="astype"), args=[_]):
            return _find_shape(inner, evaluator)
        case ast.Call(func=ast.Attribute(attr="reshape"), args=[ast.Tuple() as shape], keywords=[]):
            return evaluate_shape(evaluator.evaluate(shape))
        case ast.Call(func=function, args=[first, *rest]):
            name = ast.unparse(function)
            if name in _SHAPED_CALLS:
                value = evaluator.evaluate(first)
                return evaluate_shape((value,) if isinstance(value, Affine) else value)
            if name in _SQUARE_CALLS:
                sides = first, rest[0] if rest else first
                return evaluate_shape(tuple(evaluator.evaluate(side) for side in sides))
    return None


def _find_type(node: ast.expr) -> str | None:
    match node:
        case ast.Attribute(value=inner, attr="T"):
            return _find_type(inner)
        case ast.Call(func=ast.Attribute(attr="astype"), args=[kind]):
            return _TYPES.get(ast.unparse(kind))
        case ast.Call(func=ast.Attribute(value=inner, attr="reshape")):
            return _find_type(inner)
        case ast.Call(keywords=words):
            return next((_TYPES.get(ast.unparse(word.value)) for word in words if word.arg == "dtype"), None)
    return None
