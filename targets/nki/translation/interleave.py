"""Interleaves iterations of a kernel's outer loops, so that engines work on several of them at a time.

An engine takes its instructions in the order of the program. A tile whose steps alternate between engines
leaves each of them idle while the other works. With several iterations side by side, each instruction is
issued for all of them before the next one is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy


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
    count = loop_count(statement)
    side = max(part for part in range(1, min(ways, count) + 1) if count % part == 0)
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


def _with_body(loop: ast.For, body: Sequence[ast.stmt]) -> ast.For:
    found = deepcopy(loop)
    found.body = list(body)
    return found


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
            return _with_body(item, self.statements(item.body))
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
