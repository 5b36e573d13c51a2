"""What statements of a kernel do with tiles: the names that they read and write."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_RESULTS = frozenset({"dst", "reduce_res"})
_NO_TILES = frozenset({"nisa", "nl", "range", "min", "max", "float"})


class Statement:
    """A statement, the names that it reads or writes, and those of them that it writes."""

    def __init__(self, node: ast.stmt) -> None:
        self.node = node
        self.used, self.written = set[str](), set[str]()
        for item in ast.walk(node):
            if isinstance(item, ast.Name):
                self.used.add(item.id)
                if isinstance(item.ctx, ast.Store):
                    self.written.add(item.id)
            if isinstance(item, ast.Call):
                self.written.update(find_results(item))
        self.used -= _NO_TILES


def find_instruction(item: ast.stmt) -> ast.Call | None:
    """Return the instruction that a statement is; None for loops and assignments."""
    call = item.value if isinstance(item, ast.Expr) else None
    return call if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None


def instruction_name(call: ast.Call) -> str:
    """Return an instruction's name in `nisa`; nothing for other calls."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def arguments_of(call: ast.Call) -> dict[str, ast.expr]:
    """Return an instruction's arguments by name."""
    return {item.arg: item.value for item in call.keywords if item.arg is not None}


def find_results(call: ast.Call) -> Iterator[str]:
    """The names of the tiles that an instruction writes."""
    return (base_name(value) for name, value in arguments_of(call).items() if name in _RESULTS)


def declared_name(item: ast.stmt, memory: str = "") -> str:
    """Return the tile that a statement declares, in a memory if one is given; nothing for others."""
    if not isinstance(item, ast.Assign) or not isinstance(item.targets[0], ast.Name):
        return ""
    call = item.value
    is_tile = isinstance(call, ast.Call) and ast.unparse(call.func) == "nl.ndarray"
    is_there = not memory or ast.unparse(item).endswith(f"buffer=nl.{memory})")
    return item.targets[0].id if is_tile and is_there else ""


class Renamer(ast.NodeTransformer):
    """Puts one name in the place of another."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Return the new name for the old one."""
        return ast.Name(self._new, node.ctx) if node.id == self._old else node


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Return all names in statements or expressions."""
    return {item.id for node in nodes for item in ast.walk(node) if isinstance(item, ast.Name)}


def base_name(view: ast.expr) -> str:
    """Return the name of the tile that an operand is a view of."""
    while not isinstance(view, ast.Name):
        assert isinstance(view, ast.Subscript | ast.Attribute | ast.Call)
        view = view.func if isinstance(view, ast.Call) else view.value
    return view.id
