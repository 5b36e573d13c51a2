"""Compiles a kernel's file with what Python itself leaves out.

Assignments that declare a tensor's shape, such as `data: nt.tensor[128, 512] = nl.zeros(...)`, are checked,
because Python ignores annotations of local variables. `and` between masks of the legacy namespace joins them
like `&`; Python would ask each for its truth.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from nki_sim.frontend.types import TensorType

_NAME = "__nki_annotated__"
_JOIN = "__nki_join__"


class _AnnotationChecker(ast.NodeTransformer):
    """Rewrites `name: note[...] = value` to pass the value through `annotated`."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is None or not isinstance(node.target, ast.Name):
            return node
        if not isinstance(node.annotation, ast.Subscript):
            return node
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        note = ast.Lambda(args=nothing, body=node.annotation)
        call = ast.Name(id=_NAME, ctx=ast.Load())
        node.value = ast.copy_location(
            ast.Call(func=call, args=[ast.Constant(node.target.id), node.value, note], keywords=[]),
            node.value,
        )
        return ast.fix_missing_locations(node)


class _MaskJoiner(ast.NodeTransformer):
    """Rewrites `a and b` to pass `a`, and `b` not yet evaluated, to `join_lazily`."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        binds = any(isinstance(part, ast.NamedExpr | ast.Yield | ast.YieldFrom) for part in ast.walk(node))
        if not isinstance(node.op, ast.And) or binds:  # a lambda would bind another name, and yield itself
            return node
        joined, *others = node.values
        for other in others:
            called = ast.Name(id=_JOIN, ctx=ast.Load())
            nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            later = ast.Lambda(args=nothing, body=other)
            joined = ast.copy_location(ast.Call(func=called, args=[joined, later], keywords=[]), node)
        return ast.fix_missing_locations(joined)


def _imports_legacy(tree: ast.Module) -> bool:
    for node in tree.body:
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if any(name.partition(".")[0] == "neuronxcc" for name in names):
            return True
    return False


def compile_with_checks(tree: ast.Module, filename: str, namespace: dict[str, Any]) -> Any:
    """Compile a file with its checks; adds the functions that they call to the namespace it will run in."""
    namespace[_NAME] = _check_annotation
    if _imports_legacy(tree):
        from nki_sim.frontend.legacy.masks import join_lazily  # not at the top: few files need it

        namespace[_JOIN] = join_lazily
        tree = _MaskJoiner().visit(tree)
    return compile(_AnnotationChecker().visit(tree), filename, "exec", dont_inherit=True)


def _check_annotation(name: str, value: Any, note: Callable[[], Any]) -> Any:
    try:
        wanted = note()
    except Exception:  # noqa: BLE001  Python would not have evaluated it either
        return value
    if isinstance(wanted, TensorType):
        wanted.check_shape(name, value)
    return value
