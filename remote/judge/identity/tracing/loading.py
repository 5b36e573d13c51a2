"""Loads a reference's module so that it can be traced."""

from __future__ import annotations

import ast
from importlib.machinery import SourceFileLoader
from types import CodeType

_NUMPY_NAMES = frozenset({"np", "numpy"})


class TracedReferenceLoader(SourceFileLoader):
    """Loads a module in which `np.ndarray(shape, dtype)` is `np.empty(shape, dtype)`.

    The recorder puts its own functions in the place of NumPy's that create arrays. It cannot do so for a
    class, because a program may ask which class an array has.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Compile the module's text; no compiled file of it is used or written."""
        del fullname
        tree = _CreationByFunction().visit(ast.parse(self.get_data(self.path), self.path))
        return compile(tree, self.path, "exec")


class _CreationByFunction(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        named = {item.arg for item in node.keywords}
        if (
            isinstance(function, ast.Attribute)
            and function.attr == "ndarray"
            and isinstance(function.value, ast.Name)
            and function.value.id in _NUMPY_NAMES
            and len(node.args) <= 2
            and named <= {"shape", "dtype"}
        ):
            function.attr = "empty"
        return node
