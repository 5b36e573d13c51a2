"""Issues the last instructions of each iteration after the first ones of the next: a pipeline of two stages.

An engine takes its instructions in the order of the program. One that begins an iteration and ends it, such
as ScalarE in a chain over VectorE, otherwise waits at the end for the others before it begins the next one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy

from targets.nki.translation.interleave import change_statements, loop_count

_NEST_LOOP = re.compile(r"i_(row|\d+)")
"""The variables of a nest's outer loops and of its row loop."""


def delay_last(source: str, late: int) -> str | None:
    """Return a kernel whose loops issue their last so many instructions late; None if no loop is long enough.

    Iterations of `nl.affine_range` depend on nothing but tiles from before the loop, so any order will do.
    """
    if late == 0:
        return None

    def delay(kernel: ast.FunctionDef) -> list[ast.stmt]:
        taken = {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name)}
        return [new for item in kernel.body for new in _delay_statement(item, late, taken)]

    return change_statements(source, delay)


def _delay_statement(statement: ast.stmt, late: int, taken: set[str]) -> list[ast.stmt]:
    """A loop as its beginning, a loop over what overlaps, and its end; other statements as they are.

    If a loop inside is long enough, it is that one: the chain of instructions is in the innermost loop.
    """
    if not isinstance(statement, ast.For):
        return [statement]
    inner = [
        new
        for item in statement.body
        for new in (_delay_statement(item, late, taken) if _is_nest_loop(item) else [item])
    ]
    if inner != statement.body:
        found = deepcopy(statement)
        found.body = inner
        return [found]
    instructions = [at for at, item in enumerate(statement.body) if not isinstance(item, ast.Assign)]
    count = loop_count(statement)
    if count < 2 or len(instructions) <= late:
        return [statement]
    split = instructions[-late]
    return _overlap(statement, statement.body[:split], statement.body[split:], count=count, taken=taken)


def _is_nest_loop(statement: ast.stmt) -> bool:
    """Whether a statement is a loop around tiles; those inside of tiles may share one."""
    target = statement.target if isinstance(statement, ast.For) else None
    return isinstance(target, ast.Name) and _NEST_LOOP.fullmatch(target.id) is not None


def _overlap(
    loop: ast.For, first: Sequence[ast.stmt], last: Sequence[ast.stmt], *, count: int, taken: set[str]
) -> list[ast.stmt]:
    assert isinstance(loop.target, ast.Name)
    variable = loop.target.id
    assigned = {
        item.targets[0].id: None
        for item in first
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name)
    }
    used = {node.id for item in last for node in ast.walk(item) if isinstance(node, ast.Name)}
    kept = {name: _free_name(f"{name}_before", taken) for name in assigned if name in used}
    keep: list[ast.stmt] = [
        ast.Assign([ast.Name(late, ast.Store())], ast.Name(name, ast.Load())) for name, late in kept.items()
    ]

    def at(items: Sequence[ast.stmt], place: str, names: Mapping[str, str]) -> list[ast.stmt]:
        change = _Renaming({variable: place, **names})
        return [change.visit(deepcopy(item)) for item in items]

    middle = deepcopy(loop)
    assert isinstance(middle.iter, ast.Call)
    middle.iter.args = [ast.Constant(count - 1)]
    middle.body = [*at(first, f"{variable} + 1", {}), *at(last, variable, kept), *deepcopy(keep)]
    return [*at(first, "0", {}), *keep, middle, *at(last, str(count - 1), kept)]


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


class _Renaming(ast.NodeTransformer):
    """Puts expressions in the place of names that are read."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return what a name stands for now."""
        if node.id in self._names and isinstance(node.ctx, ast.Load):
            return ast.parse(self._names[node.id], mode="eval").body
        return node
