"""Issues the last instructions of each iteration after the first ones of the next: a pipeline of two stages.

An engine takes its instructions in the order of the program. One that begins an iteration and ends it, such
as ScalarE in a chain over VectorE, otherwise waits at the end for the others before it begins the next one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

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


@dataclass(frozen=True)
class _Pipeline:
    """A loop: what begins its first iteration, what is kept of it, what overlaps, and what ends the last."""

    begin: Sequence[ast.stmt]
    keep: Sequence[ast.stmt]
    middle: Sequence[ast.stmt]
    end: Sequence[ast.stmt]


def _delay_statement(statement: ast.stmt, late: int, taken: set[str]) -> list[ast.stmt]:
    """A loop as a pipeline; other statements as they are."""
    found = _delay_loop(statement, late, taken) if isinstance(statement, ast.For) else None
    return [statement] if found is None else [*found.begin, *found.keep, *found.middle, *found.end]


def _delay_loop(loop: ast.For, late: int, taken: set[str]) -> _Pipeline | None:
    """The pipeline of a loop: of the one inside, if that is long enough; None if neither is."""
    *_, last = loop.body
    inside = _delay_loop(last, late, taken) if isinstance(last, ast.For) and _is_nest_loop(last) else None
    if inside is not None:
        return _carry_over(loop, inside, taken)
    instructions = [at for at, item in enumerate(loop.body) if not isinstance(item, ast.Assign)]
    if loop_count(loop) < 2 or len(instructions) <= late:
        return None
    split = instructions[-late]
    return _overlap(loop, loop.body[:split], loop.body[split:], taken)


def _is_nest_loop(statement: ast.stmt) -> bool:
    """Whether a statement is a loop around tiles; those inside of tiles may share one."""
    target = statement.target if isinstance(statement, ast.For) else None
    return isinstance(target, ast.Name) and _NEST_LOOP.fullmatch(target.id) is not None


def _overlap(
    loop: ast.For, first: Sequence[ast.stmt], last: Sequence[ast.stmt], taken: set[str]
) -> _Pipeline:
    variable, final = _variable(loop), loop_count(loop) - 1
    kept = _kept_names(first, last, taken)
    keep = _keep(kept)
    beginning, ending = _moved(first, variable, f"{variable} + 1"), _moved(last, variable, variable, kept)
    middle = _with_iterations(loop, final, [*beginning, *ending, *keep])
    return _Pipeline(_moved(first, variable, "0"), keep, [middle], _moved(last, variable, str(final), kept))


def _carry_over(loop: ast.For, inside: _Pipeline, taken: set[str]) -> _Pipeline:
    """The pipeline of a loop around another one: what ends that one is issued in the next iteration."""
    variable, final = _variable(loop), loop_count(loop) - 1
    first = [*loop.body[:-1], *inside.begin]
    kept = _kept_names(loop.body[:-1], inside.end, taken)
    keep = [*inside.keep, *_keep(kept)]
    middle = _moved(inside.middle, variable, str(final))
    if final:
        ending = _moved(inside.end, variable, variable, kept)
        body = [*inside.middle, *_moved(first, variable, f"{variable} + 1"), *ending, *keep]
        middle.insert(0, _with_iterations(loop, final, body))
    return _Pipeline(
        _moved(first, variable, "0"), keep, middle, _moved(inside.end, variable, str(final), kept)
    )


def _variable(loop: ast.For) -> str:
    assert isinstance(loop.target, ast.Name)
    return loop.target.id


def _kept_names(first: Sequence[ast.stmt], last: Sequence[ast.stmt], taken: set[str]) -> dict[str, str]:
    """Names for what the beginning of an iteration assigns and its end uses, when the next one has begun."""
    assigned = {
        item.targets[0].id: None
        for item in first
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name)
    }
    used = {node.id for item in last for node in ast.walk(item) if isinstance(node, ast.Name)}
    return {name: _free_name(f"{name}_before", taken) for name in assigned if name in used}


def _keep(names: Mapping[str, str]) -> list[ast.stmt]:
    return [
        ast.Assign([ast.Name(late, ast.Store())], ast.Name(name, ast.Load())) for name, late in names.items()
    ]


def _moved(
    items: Sequence[ast.stmt], variable: str, place: str, names: Mapping[str, str] | None = None
) -> list[ast.stmt]:
    """Copies of statements for one iteration of a loop, with other names for some tiles."""
    change = _Renaming({variable: place, **(names or {})})
    return [change.visit(deepcopy(item)) for item in items]


def _with_iterations(loop: ast.For, count: int, body: Sequence[ast.stmt]) -> ast.For:
    found = deepcopy(loop)
    assert isinstance(found.iter, ast.Call)
    found.iter.args = [ast.Constant(count)]
    found.body = deepcopy([*body])
    return found


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
