"""Size expressions: what they compute, and that nothing else is one."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeds.errors import ExpressionError
from seeds.expressions import MAX_CHARS, evaluate_expression

DIMS = {"M": 6, "N": 35, "K": 4}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("M", 6),
        (" 2 * M * N ", 420),
        ("N // K", 8),
        ("(M + N) * K - 1", 163),
        ("128", 128),
        (128, 128),
        (0, 0),
    ],
)
def test_value(text, value):
    assert evaluate_expression(text, DIMS) == value


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Q", "unknown dimension 'Q' (known: K, M, N)"),
        ("M ** 99999", "only names, integers"),
        ("M / 2", "only names, integers"),
        ("-M", "only names, integers"),
        ("2.5", "only names, integers"),
        ("True", "only names, integers"),
        ("'M'", "only names, integers"),
        ("__import__('os')", "only names, integers"),
        ("M.bit_length()", "only names, integers"),
        ("M if N else K", "only names, integers"),
        ("M //", "is not an expression"),
        ("M; N", "is not an expression"),
        ("", "is not an expression"),
        ("M\0", "is not an expression"),
        ("M // (K - 4)", "divides by zero"),
        ("M" + " + M" * MAX_CHARS, "at most 200"),
    ],
)
def test_refusal_says_what_is_wrong(text, part):
    with pytest.raises(ExpressionError) as caught:
        evaluate_expression(text, DIMS)
    assert part in str(caught.value)
    assert caught.value.code == "bad_expression"


def _render(draw, depth):
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(["M", "N", "K", "1", "7", "512"]))
    operator = draw(st.sampled_from(["+", "-", "*"]))
    return f"({_render(draw, depth - 1)} {operator} {_render(draw, depth - 1)})"


@given(st.data())
def test_agrees_with_python_on_what_it_accepts(data):
    text = _render(data.draw, 3)
    assert evaluate_expression(text, DIMS) == eval(text, {"__builtins__": {}}, DIMS)


@given(st.text(max_size=60))
def test_any_text_is_a_number_or_a_clear_refusal(text):
    try:
        value = evaluate_expression(text, DIMS)
    except ExpressionError:
        return
    assert isinstance(value, int)
    nodes = ast.walk(ast.parse(text.strip(), mode="eval"))
    assert not any(isinstance(node, ast.Call | ast.Attribute | ast.Lambda) for node in nodes)
