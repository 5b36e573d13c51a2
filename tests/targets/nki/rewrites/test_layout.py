"""Layout of rewritten lines: calls that are too long are wrapped, all else stays."""

from __future__ import annotations

import ast

import pytest

from targets.nki.rewrites.source_layout import LINE_WIDTH, wrap_long_lines

A = "a" * 44

CALLS = {
    # In one line of arguments where they fit, else a line for each.
    f"    nisa.a_long_function({A}, src=(b), c=b.broadcast(0, (n + 3)), d=c[0:3, i])\n": (
        f"    nisa.a_long_function(\n        {A}, src=(b), c=b.broadcast(0, (n + 3)), d=c[0:3, i]\n    )\n"
    ),
    f"x = g({A}, {A}, b=(1, 2), c={A}, d='a, b',)\n": (
        f"x = g(\n    {A},\n    {A},\n    b=(1, 2),\n    c={A},\n    d='a, b',\n)\n"
    ),
}
OTHERS = (
    f"f({A})  # {'comment ' * 20}\n",
    f"x = {A} + {A} + {A} + {A}\n",
    f"for i in range({A}, {A}, {A}):\n",
)


@pytest.mark.parametrize("line", CALLS)
def test_long_calls_are_wrapped(line: str):
    assert len(line) > LINE_WIDTH
    assert wrap_long_lines(line, "") == CALLS[line]


@pytest.mark.parametrize("line", [*OTHERS, "f(a, b)\n"])
def test_other_lines_stay(line: str):
    assert wrap_long_lines(line, "") == line


def test_lines_that_were_there_stay():
    line = f"f({A}, {A}, {A})\n"
    assert wrap_long_lines(line, line) == line
    assert wrap_long_lines(line, "") != line
    assert ast.dump(ast.parse(wrap_long_lines(line, ""))) == ast.dump(ast.parse(line))
