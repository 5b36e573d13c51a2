"""Cuts a function out of a module, with the statements that it needs, into a file of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from targets.nki.knobs.nkigym_shim import PACKAGE


def excerpt_function(source: str, function: str, *, keeps_lines: bool = False) -> str:
    """Return the lines of a module that define `function` and the names it uses, in their order.

    Names are looked up among the module's own statements. Every `import *` is kept except that of the
    operators, which a NumPy function does not need. With `keeps_lines` every line keeps its number.
    """
    tree = ast.parse(source)
    needed = [*_needed_statements(tree, function)]
    lines = source.splitlines()
    parts, end = list[str](), 0
    for node in needed:
        first, last = max(_first_line(node), end + 1), node.end_lineno or 0
        gap = first - end - 1
        if not keeps_lines:
            gap = min(2, gap) if parts else 0
        parts += [""] * gap + lines[first - 1 : last]
        end = max(end, last)
    return "\n".join(parts) + "\n"


def names_needed(source: str, function: str) -> set[str]:
    """Return the names that `excerpt_function` binds."""
    return {name for node in _needed_statements(ast.parse(source), function) for name in _names_bound(node)}


def _needed_statements(tree: ast.Module, function: str) -> Iterator[ast.stmt]:
    wanted, known = {function}, set[str]()
    while wanted - known:
        known |= wanted
        found = [node for node in tree.body if known & _names_bound(node)]
        wanted = {name for node in found for name in _names_loaded(node)}
    for node in tree.body:
        always = isinstance(node, ast.ImportFrom) and (node.module == "__future__" or _is_star(node))
        if always or known & _names_bound(node):
            yield node


def _is_star(node: ast.ImportFrom) -> bool:
    operators = (node.module or "").split(".")[0] == PACKAGE
    return any(item.name == "*" for item in node.names) and not operators


def _names_bound(node: ast.stmt) -> set[str]:
    """The names that a module's statement binds, anywhere in it."""
    found: set[str] = set()
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    for item in ast.walk(node):
        match item:
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {one.asname or one.name.split(".")[0] for one in names}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()):
                found.add(name)
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                found.add(name)
    return found


def _names_loaded(node: ast.stmt) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}


def _first_line(node: ast.stmt) -> int:
    """The first line of a statement, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(item.lineno for item in decorators)])
