"""Checks assignments that declare a tensor's shape, such as `data: nt.tensor[128, 512] = nl.zeros(...)`.

Python ignores annotations of local variables, so the kernel's file is compiled with a check of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from nki_sim.frontend.types import TensorType

_NAME = "__nki_annotated__"


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


def compile_with_checks(tree: ast.Module, filename: str, namespace: dict[str, Any]) -> Any:
    """Compile a file with its checks; adds the functions that they call to the namespace it will run in."""
    namespace[_NAME] = _check_annotation
    return compile(_AnnotationChecker().visit(tree), filename, "exec", dont_inherit=True)


def _check_annotation(name: str, value: Any, note: Callable[[], Any]) -> Any:
    try:
        wanted = note()
    except Exception:  # noqa: BLE001  Python would not have evaluated it either
        return value
    if isinstance(wanted, TensorType):
        wanted.check_shape(name, value)
    return value
