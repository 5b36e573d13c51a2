"""Highlighting gives every character back, of whatever is called a kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seeds
from agentctl.views.highlight import highlight_source


def joined(source: str) -> str:
    return "\n".join("".join(text for _, text in line) for line in highlight_source(source))


@pytest.mark.parametrize("name", seeds.builtin_problems())
def test_kernels_keep_their_text_and_get_colours(name):
    kernel = seeds.load_problem(name).kernel
    assert joined(kernel) == kernel
    kinds = {kind for line in highlight_source(kernel) for kind, _ in line}
    assert {"kw", "name", "call", "num", "op"} <= kinds


def test_a_piece_is_what_it_is_called():
    (line,) = highlight_source('def f(x): return len(x) + 2  # <b>"')
    assert line == [
        ("kw", "def"), ("", " "), ("name", "f"), ("op", "("), ("", "x"), ("op", ")"), ("op", ":"), ("", " "),
        ("kw", "return"), ("", " "), ("built", "len"), ("op", "("), ("", "x"), ("op", ")"), ("", " "),
        ("op", "+"), ("", " "), ("num", "2"), ("", "  "), ("com", '# <b>"'),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "source", ["x = '''\nnever closed", "if x:\n  a\n b", "a\r\nb = 1\r\n", "'a\\\nb'\n", "", "\x00", "(\n"]
)
def test_what_is_no_python_is_text(source):
    assert joined(source) == source


@given(st.text(max_size=200))
def test_any_text_comes_back(source):
    assert joined(source) == source
