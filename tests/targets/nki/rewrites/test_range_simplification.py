"""What ranges of integers decide in a kernel's text, and that its values and its program stay the same."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nki_sim
from nki_sim import ArraySpec
from targets.nki.raising.raiser import program_digest
from targets.nki.rewrites.source_simplification import PASSES, simplify_source

RANGES = "known ranges used"
EIGHT = "for i in nl.affine_range(8):\n    "
SHAPE = "rows, columns = x.shape\n"
TILES = "p = nl.arange(128)[:, None]\nf = nl.arange(512)[None, :]\n"


def after(source: str) -> str:
    return simplify_source(source, (RANGES,))[0]


def assert_becomes(source: str, simpler: str) -> None:
    assert ast.dump(ast.parse(after(source))) == ast.dump(ast.parse(simpler))


@pytest.mark.parametrize(
    ("test", "simpler"),
    [
        ("i < 8 and j < n", "j < n"),
        ("j < n and 0 <= i", "j < n"),
        ("0 <= i < n", "i < n"),
        ("j < i <= 7", "j < i"),
        ("i < 4 and i < 4", "i < 4"),
        ("i < 4 and 4 > i", "i < 4"),
        ("i < 4 and i <= 3", "i < 4"),
        ("i < 6 and i < 4", "i < 4"),
        ("i * 128 < n * 128 and n * 128 - 128 * i > 0", "i * 128 < n * 128 and n * 128 - 128 * i > 0"),
        ("x < n and x < n", "x < n"),
        ("i < 4 or i < 2", "i < 4"),
        ("i > 9 or j < n", "j < n"),
        ("not (i > 9 or j < n)", "not (j < n)"),
        ("(i < 8) & (i < 4)", "(i < 4)"),
    ],
)
def test_a_bound_that_says_nothing_is_dropped(test: str, simpler: str):
    assert_becomes(f"{EIGHT}while {test}:\n        g(i)\n", f"{EIGHT}while {simpler}:\n        g(i)\n")


@pytest.mark.parametrize(
    "test",
    [
        "i < 7",
        "x < 0.5 and x < 0.7",
        "x < 1 and x <= 0",
        "f(i) < 2 and f(i) < 2",
        "i < n and i < k",
        "i & (i < 8)",
        "8 in i",
        "f() and i > 9",
    ],
)
def test_what_may_say_something_stays(test: str):
    source = f"{EIGHT}while {test}:\n        g(i)\n"
    assert simplify_source(source, (RANGES,)) == (source, ())


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        ("(i < 8) & (f < columns)", ", mask=f < columns"),
        ("i * 128 + p < 1024 and f < columns", ", mask=f < columns"),
        ("(i * 128 + p < 1000) & (i * 128 + p < 1000)", ", mask=i * 128 + p < 1000"),
        ("(p < 128) & (f < 512)", ""),
        ("p < 127", ", mask=p < 127"),
        ("known & (p < 128)", ", mask=known"),
    ],
)
def test_a_mask_keeps_the_bounds_that_cut(mask: str, left: str):
    before = SHAPE + TILES + EIGHT
    assert_becomes(f"{before}load(x[i * 128 + p, f], mask={mask})", f"{before}load(x[i * 128 + p, f]{left})")


def test_a_value_is_no_condition():
    source = f"{TILES}a = where((p < 128) & (f < 512), 1, 2)\nb = p < 128\n"
    assert simplify_source(source, (RANGES,)) == (source, ())


@pytest.mark.parametrize(
    ("before", "simpler"),
    [
        ("min(128, 1024 - i * 128)", "128"),
        ("min(128, 1000 - i * 128)", "min(128, 1000 - i * 128)"),
        ("max(i, 0)", "i"),
        ("min(rows, columns, rows + 3)", "min(rows, columns)"),
        ("(min(i + 1, 9) + 1) * 2", "(i + 2) * 2"),
        ("2 * min(i + 1, 9)", "2 * (i + 1)"),
        ("(a if i < 9 else b) * 2", "a * 2"),
        ("i * 128 // 128", "i"),
        ("(i * 128 + 64) // 128", "i"),
        ("(i * 128 + 64) % 128", "64"),
        ("(i * 128 + 130) // 128", "(i * 128 + 130) // 128"),
        ("i % 8 + i // 8", "i"),
        ("i * 128 + 128 - i * 128", "128"),
        ("rows * i // rows", "rows * i // rows"),
        ("-(-i * 128 // 128)", "i"),
        ("-(-(i * 128 + 1) // 128)", "-(-(i * 128 + 1) // 128)"),
        ("y + 1 - y", "y + 1 - y"),
        ("nl.min(i, 9)", "nl.min(i, 9)"),
        ("min(i, 9, key=f)", "min(i, 9, key=f)"),
    ],
)
def test_integers_become_shorter(before: str, simpler: str):
    assert_becomes(f"{SHAPE}{EIGHT}g({before})\n", f"{SHAPE}{EIGHT}g({simpler})\n")


def test_constants_keep_their_names():
    source = "ROWS = 1000\nTILE = 128\n"
    calls = "use(min(TILE, 128), -(-1024 // TILE), ROWS // TILE, -(-ROWS // TILE))\n"
    assert_becomes(source + calls, source + "use(TILE, 1024 // TILE, ROWS // TILE, -(-ROWS // TILE))\n")


def test_a_decided_condition_becomes_its_branch():
    source = """
N = 1024
for i in range(8):
    # all of it
    if i * 128 < N:
        f(i)
        g(i)
    else:
        h(i)
    if N % 128:
        tail(i)
    if i > 9:
        f(i)
    elif n > 2:
        g(i)
    elif i < 8:
        h(i)
"""
    assert (
        after(source)
        == """
N = 1024
for i in range(8):
    # all of it
    f(i)
    g(i)
    if n > 2:
        g(i)
    elif i < 8:
        h(i)
"""
    )


@pytest.mark.parametrize(
    "binding",
    [
        "n = 3\nn = 9",
        "n = 3\nn += 9",
        "def f(n): ...",
        "n = x",
        "n = True",
        "for n in range(9, 0, -1): ...",
        "for n in range(9): ...\nn = 7",
        "for n in x: ...",
        "n, m = 1, 2\nglobal n",
        "import n",
        "from m import x as n",
        "n = n + 1",
        "n = 3.0",
        "n = 9 // x",
        "[n for n in range(3)]",
        "n = min(3, 4)\nmin = max",
    ],
)
def test_a_name_of_another_kind_has_no_range(binding: str):
    source = f"{binding}\nwhile n < 99 and k:\n    pass\n"
    assert simplify_source(source, (RANGES,)) == (source, ())


expressions = st.recursive(
    st.sampled_from(["i", "j", "rows", "T", "3", "8", "16"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.sampled_from(["3", "8", "T"])),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
        st.builds("-(-{} // {})".format, inner, st.sampled_from(["3", "8", "T"])),
    ),
    max_leaves=8,
)
comparisons = st.builds(
    "{} {} {}".format, expressions, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), expressions
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=4,
)


@given(conditions, st.lists(expressions, min_size=1, max_size=3))
def test_values_and_decisions_stay_the_same(condition: str, values: list[str]):
    source = f"""
T = 8
rows, columns = x.shape
for i in range(3):
    for j in range(2, 9, 3):
        if {condition}:
            seen.append(1)
        elif {condition}:
            seen.append(3)
        else:
            seen.append(2)
        seen.append([{", ".join(values)}])
"""
    found, _ = simplify_source(source, tuple(PASSES))
    assert run_source(found) == run_source(source)


class _Shaped:
    shape = (5, 7)


def run_source(source: str) -> list[Any]:
    seen: list[Any] = []
    exec(source, {"x": _Shaped, "seen": seen})
    return seen


KERNEL = """import nki
import nki.isa as nisa
import nki.language as nl

ROWS = 300
TILE = 128


@nki.jit
def kernel(x):
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(-(-300 // 128)):
        start, size = i * TILE, min(TILE, ROWS - i * TILE)
        for j in range(2):
            if j < 2 and j * 256 < columns and j >= 0 and columns > j * 256:
                wide = min(256, 512 - j * 256)
                tile = nl.ndarray((TILE, 512 // 2 % 500), dtype=x.dtype, buffer=nl.sbuf)
                at = j * 256
                nisa.dma_copy(dst=tile[0:size, 0:wide], src=x[start : start + size, at : at + wide])
                nisa.dma_copy(dst=out[start : start + size, at : at + wide], src=tile[0:size, 0:wide])
    return out
"""

LEGACY = """from neuronxcc import nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    p = nl.arange(128)[:, None]
    f = nl.arange(512)[None, :]
    for i in nl.affine_range(-(-300 // 128)):
        at = i * 128 + p
        tile = nl.load(x[at, f], mask=(at < 300) & (f < 512) & (at <= 299) & (i < 3))
        nl.store(out[at, f], tile, mask=(at < 300) and (p < 128))
    return out
"""


@pytest.mark.parametrize(
    ("source", "gone"),
    [
        (KERNEL, ("-(-300", "j < 2", "columns > j", "wide = min", "512 // 2")),
        (LEGACY, ("-(-300", "i < 3", "<= 299", "p < 128", "f < 512")),
    ],
)
def test_the_program_of_a_kernel_stays_the_same(source: str, gone: tuple[str, ...]):
    found, passes = simplify_source(source, ("constants folded", RANGES))
    assert passes == ("constants folded", RANGES)
    assert not any(text in found for text in gone)
    assert digest_of(found) == digest_of(source)


def digest_of(source: str) -> str:
    return program_digest(nki_sim.trace(source, args=[ArraySpec((300, 512), "float32")]))
