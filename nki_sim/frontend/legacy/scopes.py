"""Scopes of tensors in legacy kernels: the loops and conditions of the kernel's own file.

In Python a variable outlives the block that sets it; in this namespace a tensor does not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class ScopeBlock(NamedTuple):
    """Lines of a function or of a block in it, and the line where the function begins."""

    first: int
    last: int
    function: int
    whole: bool


class Scopes:
    """The innermost block around each line of a file."""

    def __init__(self, tree: ast.Module) -> None:
        self._blocks = sorted(
            _find_blocks(tree.body, 0), key=lambda block: block.last - block.first, reverse=True
        )
        self._around: dict[int, ScopeBlock | None] = {}
        self._inside: dict[tuple[int, int], bool] = {}

    def innermost_block(self, line: int) -> ScopeBlock | None:
        """Return the innermost block that contains a line, None outside functions."""
        if line not in self._around:
            found = [block for block in self._blocks if block.first <= line <= block.last]
            self._around[line] = found[-1] if found else None
        return self._around[line]

    def is_in_scope(self, made: int, used: int) -> bool:
        """Whether a tensor made at one line may be used at another; in other functions it always may."""
        known = self._inside.get((made, used))
        if known is None:
            known = self._inside[made, used] = self._compute_in_scope(made, used)
        return known

    def _compute_in_scope(self, made: int, used: int) -> bool:
        home, place = self.innermost_block(made), self.innermost_block(used)
        if home is None or place is None or home.whole or home.function != place.function:
            return True
        return home.first <= used <= home.last

    def is_nested(self, line: int, function: int) -> bool:
        """Whether a line is in a block, or in a function other than the one that begins at `function`."""
        home = self.innermost_block(line)
        known = any(block.whole and block.function == function for block in self._blocks)
        return known and home is not None and not (home.whole and home.function == function)


_RANGES = frozenset({"range", "affine_range", "sequential_range"})


def _find_blocks(
    body: Sequence[ast.stmt], function: int, traced: frozenset[str] = frozenset()
) -> Iterator[ScopeBlock]:
    """Find the blocks; `traced` are variables whose values the namespace's compiler does not know."""
    for node in body:
        if isinstance(node, _FUNCTIONS):
            begin = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            yield ScopeBlock(begin, node.end_lineno or begin, begin, whole=True)
            yield from _find_blocks(node.body, begin)
            continue
        scoped = function > 0 and _opens_scope(node, traced)
        if scoped and isinstance(node, ast.For):
            traced |= _collect_names(node.target)
        if isinstance(node, ast.Assign) and _depends_on_traced(node.value, traced):
            traced |= frozenset[str]().union(*map(_collect_names, node.targets))
        for part in _statement_bodies(node):
            if scoped:
                yield ScopeBlock(part[0].lineno, part[-1].end_lineno or part[0].lineno, function, whole=False)
            yield from _find_blocks(part, function, traced)


def _opens_scope(node: ast.stmt, traced: frozenset[str]) -> bool:
    """Whether a statement is a loop over a range, or a condition on its variable or on the program's id.

    All other conditions and loops are Python's: only one branch, or every repetition, is traced.
    """
    if isinstance(node, ast.For):
        return isinstance(node.iter, ast.Call) and not _RANGES.isdisjoint(_collect_names(node.iter.func))
    return isinstance(node, ast.If) and _depends_on_traced(node.test, traced)


def _depends_on_traced(value: ast.expr, traced: frozenset[str]) -> bool:
    """Whether the value is computed from traced variables or `program_id`."""
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    if any("program_id" not in _collect_names(node.func) for node in calls):
        return False
    return bool(calls) or not traced.isdisjoint(_collect_names(value))


def _collect_names(node: ast.expr) -> frozenset[str]:
    found = [getattr(item, "id", None) or getattr(item, "attr", None) for item in ast.walk(node)]
    return frozenset(name for name in found if name)


def _statement_bodies(node: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value
        for item in value if isinstance(value, list) else ():
            if isinstance(item, ast.ExceptHandler | ast.match_case):
                yield item.body
