"""Index arithmetic: replaced names, sums that fall together, and floats left as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from targets.nki.rewrites.arithmetic import substitute_names


@pytest.mark.parametrize(
    ("code", "meanings", "expected"),
    [
        ("end - start", {"start": "i * T", "end": "i * T + T"}, "T"),
        ("end - start", {"start": "i * T", "end": "(i + 1) * T"}, "T"),
        ("end - start", {"start": "rows // T * T", "end": "rows"}, "rows % T"),
        ("end - start", {"start": "3 * T", "end": "rows"}, "rows - 3 * T"),
        ("min(a + b, c) - a", {"min(a + b, c)": "a + b"}, "b"),
        ("x[a, 0:3].broadcast(0, 128)", {"a": "q + 1"}, "x[q + 1, 0:3].broadcast(0, 128)"),
        ("i * 128", {"i": "n // T"}, "n // T * 128"),
        ("a - b", {"a": "2", "b": "5"}, "-3"),
        ("a - b", {"a": "n", "b": "n"}, "0"),
        ("0.1 + a - 0.1", {"a": "n"}, "0.1 + n - 0.1"),
    ],
)
def test_names_are_replaced_and_sums_simplified(code: str, meanings: dict[str, str], expected: str):
    assert substitute_names(code, meanings) == expected


terms = st.recursive(
    st.sampled_from(["a", "b", "n", "1", "7"]),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//"]), inner),
    max_leaves=8,
)


@given(terms, terms, st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_what_is_simplified_has_the_same_value(first: str, second: str, a: int, b: int, n: int):
    values = {"a": a, "b": b, "n": n}
    code = f"x - ({second})"
    try:
        expected = eval(code, {"x": eval(first, dict(values)), **values})
    except ZeroDivisionError:
        return
    assert eval(substitute_names(code, {"x": first}), dict(values)) == expected
