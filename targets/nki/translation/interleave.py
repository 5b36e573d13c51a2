"""Interleaves iterations of a kernel's outer loops, so that engines work on several of them at a time.

An engine takes its instructions in the order of the program. A tile whose steps alternate between engines
leaves each of them idle while the other works. With several iterations side by side, each instruction is
issued for all of them before the next one is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy

_TILE_LOOP = re.compile(r"i_(?!row)[a-z]")
"""The variables of loops inside a tile, other than those over tiles."""


def interleave_kernel(source: str, ways: int) -> str | None:
    """Return a kernel with so many iterations of its outermost loops side by side; None if no loop fits.

    Iterations of `nl.affine_range` depend on nothing but tiles from before the loop, so any order will do.
    """
    if ways == 1:
        return None
    counter = iter(range(1, 1 << 20))
    return change_statements(
        source, lambda kernel: [_interleave_statement(item, ways, counter) for item in kernel.body]
    )


def change_statements(source: str, change: Callable[[ast.FunctionDef], list[ast.stmt]]) -> str | None:
    """Return the kernel with the body that `change` makes of it; None if all its statements are as before."""
    module = ast.parse(source)
    kernel = module.body[-1]
    assert isinstance(kernel, ast.FunctionDef)
    body = change(kernel)
    if len(body) == len(kernel.body) and all(new is old for new, old in zip(body, kernel.body, strict=True)):
        return None
    kernel.body = body
    ast.fix_missing_locations(module)
    return ast.unparse(module) + "\n"


def _interleave_statement(statement: ast.stmt, ways: int, counter: Iterator[int]) -> ast.stmt:
    """The statement, with a loop's iterations side by side; what is left of `ways` goes to loops inside."""
    if not isinstance(statement, ast.For):
        return statement
    if len(statement.body) == 1:
        (inside,) = statement.body
        inner_loop = _interleave_statement(inside, ways, counter)
        return statement if inner_loop is inside else _with_body(statement, [inner_loop])
    if not _has_known_count(statement):
        return statement
    count = loop_count(statement)
    side = max(part for part in range(1, min(ways, count) + 1) if count % part == 0)
    if side > 1 and _decides_counts(statement):
        side = 1
    inner = [_interleave_statement(item, ways // side, counter) for item in statement.body]
    if side == 1:
        changed = any(new is not old for new, old in zip(inner, statement.body, strict=True))
        return _with_body(statement, inner) if changed else statement
    assert isinstance(statement.target, ast.Name)
    together = _SideBySide(statement.target.id, f"side_{next(counter)}", side, inner)
    changed_loop = _with_body(statement, together.statements(inner))
    assert isinstance(changed_loop.iter, ast.Call)
    changed_loop.iter.args = [ast.Constant(count // side)]
    return changed_loop


def _is_on_array_tile(statement: ast.stmt) -> bool:
    """Whether a statement is an instruction on a part of the tensor engine's array."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and any(item.arg == "tile_position" for item in call.keywords)


def loop_count(loop: ast.For) -> int:
    """Return how many iterations a loop of a kernel has."""
    assert isinstance(loop.iter, ast.Call)
    count = ast.literal_eval(loop.iter.args[0])
    assert isinstance(count, int)
    return count


def _has_known_count(loop: ast.For) -> bool:
    """Whether a loop always has the same number of iterations."""
    return isinstance(loop.iter, ast.Call) and isinstance(loop.iter.args[0], ast.Constant)


def _decides_counts(loop: ast.For) -> bool:
    """Whether tiles of rows have other counts of iterations inside, so that they cannot share a loop."""
    assert isinstance(loop.target, ast.Name)
    inside = [item for item in ast.walk(loop) if isinstance(item, ast.For)]
    return loop.target.id == "i_row" and not all(map(_has_known_count, inside))


def replace_body(item: ast.stmt, change: Callable[[Sequence[ast.stmt]], list[ast.stmt]]) -> ast.stmt:
    """Return a loop with the body that `change` makes of it; the same statement if nothing changes."""
    if not isinstance(item, ast.For):
        return item
    body = change(item.body)
    is_same = len(body) == len(item.body) and all(
        new is old for new, old in zip(body, item.body, strict=True)
    )
    return item if is_same else ast.For(item.target, item.iter, body, [])


def _with_body(loop: ast.For, body: Sequence[ast.stmt]) -> ast.For:
    found = deepcopy(loop)
    found.body = list(body)
    return found


def share_copies(source: str, engine: str) -> str | None:
    """Return a kernel in which the other engine does every second of an engine's copies in loops.

    `engine` is "scalar" or "vector". Returns None if a kernel's loops have no such copies.
    """
    order = ("scalar", "vector") if engine == "scalar" else ("vector", "scalar")
    engines = ", ".join(f"nisa.engine.{name}" for name in order)
    change = _SharedCopies(engine, engines)
    return change_statements(source, lambda kernel: [change.change(item) for item in kernel.body])


class _SharedCopies(ast.NodeTransformer):
    """Gives copies of one engine two engines, which take turns in the innermost loop around them."""

    def __init__(self, engine: str, engines: str) -> None:
        self._engine, self._engines = engine, engines
        self._variables: list[str] = []
        self._is_changed = False

    def change(self, statement: ast.stmt) -> ast.stmt:
        """Return the statement with its copies shared; the same one if it has none."""
        self._is_changed = False
        found = self.visit(deepcopy(statement))
        return found if self._is_changed else statement

    def visit_For(self, node: ast.For) -> ast.For:
        """Change what is inside a loop."""
        assert isinstance(node.target, ast.Name)
        self._variables.append(node.target.id)
        self.generic_visit(node)
        self._variables.pop()
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Have two engines take turns if the call is a copy of the engine."""
        is_copy = isinstance(node.func, ast.Attribute) and node.func.attr == "tensor_copy"
        given = [item.value for item in node.keywords if item.arg == "engine"]
        engine = ast.unparse(given[0]).rpartition(".")[2] if given else "vector"
        is_repeated = any(_TILE_LOOP.match(name) for name in self._variables)
        if is_copy and is_repeated and engine == self._engine:
            text = f"({self._engines})[{self._variables[-1]} % 2]"
            others = [item for item in node.keywords if item.arg != "engine"]
            node.keywords = [*others, ast.keyword("engine", ast.parse(text, mode="eval").body)]
            self._is_changed = True
        return node


class _FirstOfLists(ast.NodeTransformer):
    """Puts the first item of lists in the place of names."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the first item if the name is one of a list."""
        return ast.parse(f"{node.id}[0]", mode="eval").body if node.id in self._names else node


class _SideBySide(ast.NodeTransformer):
    """Puts lists of tiles in the place of tiles, and one loop over the list around each instruction."""

    def __init__(self, variable: str, place: str, side: int, body: Sequence[ast.stmt]) -> None:
        self._variable, self._place, self._side = variable, place, side
        nodes = [node for item in body for node in ast.walk(item)]
        self._listed = {
            node.targets[0].id
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }

    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements of a loop, each for all iterations that are side by side.

        Products on different tiles of the array run at the same time, so they stay together.
        """
        found: list[ast.stmt] = []
        for item in body:
            made = self._statement(item)
            if found and _is_on_array_tile(item) and isinstance(found[-1], ast.For):
                before = found[-1]
                if isinstance(made, ast.For) and _is_on_array_tile(before.body[-1]):
                    before.body += made.body
                    continue
            found.append(made)
        return found

    def _statement(self, item: ast.stmt) -> ast.stmt:
        if isinstance(item, ast.For):
            found = _with_body(item, self.statements(item.body))
            if not _has_known_count(item):  # it is the same for all iterations
                found.iter = _FirstOfLists(self._listed).visit(found.iter)
            return found
        places = ast.parse(f"range({self._side})", mode="eval").body
        place = ast.Name(self._place, ast.Store())
        if isinstance(item, ast.Assign):
            value = self.visit(deepcopy(item.value))
            comprehension = ast.comprehension(place, places, [], 0)
            return ast.Assign(deepcopy(item.targets), ast.ListComp(value, [comprehension]))
        return ast.For(place, places, [self.visit(deepcopy(item))], [])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A tile of the list, or the index of one of the iterations."""
        if node.id == self._variable:
            return ast.parse(f"{node.id} * {self._side} + {self._place}", mode="eval").body
        if node.id in self._listed:
            return ast.Subscript(ast.Name(node.id, ast.Load()), ast.Name(self._place, ast.Load()), ast.Load())
        return node
