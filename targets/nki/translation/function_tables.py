"""Orders the instructions of an iteration so that ScalarE loads fewer function tables.

ScalarE loads a table whenever the next function needs another one, which takes as long as 1500 elements. So a
function waits, with what needs its results, while others follow that need the table that is there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nki_sim.functions import FUNCTION_TABLES
from targets.nki.translation.interleave import change_statements, replace_body
from targets.nki.translation.statements import Statement, arguments_of, instruction_name

_SEVERAL = "several"


def order_functions(source: str) -> str | None:
    """Return a kernel in which functions of one table follow each other; None if that changes nothing."""
    return change_statements(source, lambda kernel: _order(kernel.body))


def _order(items: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements of a block, and of the loops in it, in the new order; the same ones if none moves."""
    waiting = [Statement(replace_body(item, _order)) for item in items]
    found: list[ast.stmt] = []
    loaded = ""
    while waiting:
        late = _Waiting()
        for step in waiting:
            table = _find_table(step.node)
            if late.holds(step) or (table and loaded and table != loaded):
                late.add(step)
                continue
            loaded = table or loaded
            found.append(step.node)
        waiting, loaded = late.steps, ""
    return found


def _find_table(statement: ast.stmt) -> str:
    """The table that a statement needs; nothing if every table will do."""
    tables = {table for node in ast.walk(statement) if isinstance(node, ast.Call) for table in _tables(node)}
    return _SEVERAL if len(tables) > 1 else next(iter(tables), "")


def _tables(call: ast.Call) -> Iterator[str]:
    if instruction_name(call) in {"activation", "activation_reduce"}:
        function = arguments_of(call)["op"]
        table = FUNCTION_TABLES.get(function.attr, "") if isinstance(function, ast.Attribute) else ""
        if table:
            yield table


@dataclass
class _Waiting:
    """Statements that wait for another table, and what they read and write."""

    steps: list[Statement] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def holds(self, step: Statement) -> bool:
        """Whether a statement has to wait for one of these."""
        return not self.written.isdisjoint(step.used) or not self.used.isdisjoint(step.written)

    def add(self, step: Statement) -> None:
        """Have a statement wait."""
        self.steps.append(step)
        self.used |= step.used
        self.written |= step.written
