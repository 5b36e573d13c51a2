"""The text of a kernel made simpler: each pass, what it leaves alone, and that kernels compute the same."""

from __future__ import annotations

import ast

import numpy as np
import pytest

import nki_sim
from nki_sim import ArraySpec
from nki_sim.checks import program as checks
from nki_sim.running import numerics
from targets.nki.rewrites.source_simplification import PASSES, measure_complexity, simplify_source
from targets.nki.rewrites.source_tree import SourceError
from tests.support.kernels import TARGET

LOOPS, CONSTANTS, RANGES, NEIGHBOURS, WHOLE, NAMES = PASSES


def after(source: str, *passes: str) -> str:
    return simplify_source(source, passes or tuple(PASSES))[0]


@pytest.mark.parametrize(
    ("source", "simpler"),
    [
        ("a = 2 * 64", "a = 128"),
        ("a = x[0 * 128 : (0 + 1) * 128]", "a = x[0 : 128]"),
        ("a = i * 1 + 0", "a = i"),
        ("a = (i + 0) * 3", "a = i * 3"),
        ("a = (i + j + 0) * 3", "a = (i + j) * 3"),
        ("a = i + 2 - 2", "a = i"),
        ("a = i + 5 - 7", "a = i - 2"),
        ("a = i - (j + 0 + k)", "a = i - (j + k)"),
        ("a = 7 // 2 + n // 1", "a = 3 + n"),
        ("a = i * 0", "a = 0"),
        ("a = 3 - 5", "a = -2"),
        ("a = (3 - 5) ** 2", "a = (-2) ** 2"),
        ("a = 1000 // 128 + n * (1000 % 128)", "a = 7 + n * 104"),
        ("a = -(-1000 // 128)", "a = 8"),
        ("a = -7 // 2", "a = -4"),
        ("a = -7 % 4", "a = 1"),
        ("a = -(3 - 5)", "a = 2"),
    ],
)
def test_constants_are_folded(source, simpler):
    assert ast.dump(ast.parse(after(source, CONSTANTS))) == ast.dump(ast.parse(simpler))


@pytest.mark.parametrize(
    "source",
    [
        "a = 1 / 2",
        "a = x * 1.0",
        "a = 3 // 0",
        "a = 5 % 0",
        "a = x + 0.0",
        "a = 2 ** 3",
        "a = -2 ** 2",
        "a = x // 2",
    ],
)
def test_what_is_no_sum_of_integers_stays(source):
    assert simplify_source(source, (CONSTANTS,)) == (source, ())


def test_a_loop_of_one_iteration_becomes_its_body():
    source = """
def kernel(x):
    # why
    for i in nl.affine_range(1):
        # how
        t = load(x[i * 128 : i * 128 + 128], i=i, at=x.i)
        store(t, i)
    return t
"""
    assert (
        after(source, LOOPS, CONSTANTS)
        == """
def kernel(x):
    # why
    # how
    t = load(x[0 : 128], i=0, at=x.i)
    store(t, 0)
    return t
"""
    )


@pytest.mark.parametrize(
    ("loop", "body"),
    [
        ("for i in range(3, 4):\n    f(i)", "f(3)"),
        ("for i in range(0, 128, 128):\n    f(i)", "f(0)"),
        ("for i in range(n, n + 1):\n    f(i)", "f(n)"),
        ("for i in range(n * 2 - 1, 2 * n):\n    f(i * 2)", "f((n * 2 - 1) * 2)"),
        ("for i in range(1):\n    f(i)\nfor i in range(4, 5):\n    g(i)", "f(0)\ng(4)"),
        ("for i in range(1):\n    f(i)\nfor i in range(4):\n    g(i)", "f(0)\nfor i in range(4):\n    g(i)"),
    ],
)
def test_loops_of_one_value_are_found_by_their_bounds(loop, body):
    assert ast.dump(ast.parse(after(f"{loop}\n", LOOPS))) == ast.dump(ast.parse(body))


@pytest.mark.parametrize(
    "loop",
    [
        "for i in nl.affine_range(2):\n    f(i)\n",
        "for i in range(1, 3):\n    f(i)\n",
        "for i in range(2, 1):\n    f(i)\n",
        "for i in range(n, 1 + m):\n    f(i)\n",
        "for i in range(n, n + 1):\n    n = f(i)\n",
        "for i in range(1):\n    i = f(i)\n",
        "for i in range(2):\n    for i in range(1):\n        f(i)\n    g(i)\n",
        "for i in range(1):\n    f(i)\nfor i in range(i, i + 2):\n    g(i)\n",
        "for i in range(1):\n    f(i)\n    break\n",
        "for i in range(1):\n    f(i)\nelse:\n    g()\n",
        "for i in range(1):\n    f(i)\ng(i)\n",
        "for i, j in zip(a, b):\n    f(i)\n",
    ],
)
def test_other_loops_stay(loop):
    assert simplify_source(loop, (LOOPS,)) == (loop, ())


@pytest.mark.parametrize(
    ("calls", "merged"),
    [
        ("f(t[:, 0:8], a=x[:, 0:8])\nf(t[:, 8:9], a=x[:, 8:9])", "f(t[:, 0:9], a=x[:, 0:9])"),
        ("f(t[0:1], 2)\nf(t[1:2], 2)\nf(t[2:3], 2)", "f(t[0:3], 2)"),
        ("f(t[i * 8 : i * 8 + 4])\nf(t[i * 8 + 4 : (i + 1) * 8])", "f(t[i * 8 : (i + 1) * 8])"),
    ],
)  # fmt: skip
def test_calls_on_neighbouring_slices_become_one(calls, merged):
    found = after(in_kernel(calls), NEIGHBOURS)
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(in_kernel(merged)))


def in_kernel(calls: str) -> str:
    return "def kernel():\n" + "".join(f"    {line}\n" for line in calls.splitlines())


@pytest.mark.parametrize(
    "calls",
    [
        "f(t[0:1], 2)\nf(t[2:3], 2)",
        "f(t[0:1], 2)\nf(t[1:2], 3)",
        "f(t[0:1], 2)\ng(t[1:2], 2)",
        "f(t[0:1], 2)\nf(u[1:2], 2)",
        "f(t[0:1, 0:1])\nf(t[1:2, 1:2])",
        "f(t[0:4:2])\nf(t[4:8:2])",
        "f(t[0:1], a=2)\nf(t[1:2], b=2)",
        "f(t[0:1])\nh()\nf(t[1:2])",
        "f(t)\nf(t)",
        "f(t[0])\nf(t[1])",
    ],
)
def test_other_calls_stay_apart(calls):
    source = in_kernel(calls)
    assert simplify_source(source, (NEIGHBOURS,)) == (source, ())


TILE = "t = nl.ndarray((128, n), buffer=nl.sbuf)\n"


@pytest.mark.parametrize(
    ("call", "simpler"),
    [
        ("f(t[:, 0:])", "f(t)"),
        ("f(t[0:128, 0 : n])", "f(t)"),
        ("f(t[:, 0:8])", "f(t[:, 0:8])"),
        ("f(t[0:128, 0:8])", "f(t[:, 0:8])"),
        ("f(t[0:128])", "f(t[:])"),
        ("f(x[0:, i])", "f(x[:, i])"),
        ("f(x[0:128, :])", "f(x[0:128, :])"),
        ("t = g()\nf(t[:, :])", "t = g()\nf(t[:, :])"),
        ("for t in a:\n    f(t[:, :])", "for t in a:\n    f(t[:, :])"),
        ("for a, (c, t) in b:\n    f(t[:, :])", "for a, (c, t) in b:\n    f(t[:, :])"),
        ("for a, t in b:\n    f(t[:, :])", "for a, t in b:\n    f(t[:, :])"),
    ],
)
def test_a_view_of_all_of_a_tile_is_the_tile(call, simpler):
    assert ast.dump(ast.parse(after(TILE + call, WHOLE))) == ast.dump(ast.parse(TILE + simpler))


def test_names_that_nothing_reads_go_and_what_they_needed_goes_with_them():
    source = """import os
import nki.isa as nisa
from math import pi, tau
A = 3
B = A + 1
USED = 2


def kernel(x):
    m, n = x.shape
    spare = nl.ndarray((2, 2), dtype=x.dtype)
    for i in range(3):
        unread = i * 3
    kept = launch(x)
    k, j = x.shape
    total = 0
    total += k
    nisa.copy(x[0:USED], tau)
    return x
"""
    assert (
        after(source)
        == """import nki.isa as nisa
from math import tau
USED = 2


def kernel(x):
    kept = launch(x)
    k, j = x.shape
    total = 0
    total += k
    nisa.copy(x[0:USED], tau)
    return x
"""
    )


def test_what_changes_nothing_keeps_the_text_as_it_is():
    source = "x  =  f( 1 )   # odd\n"
    assert simplify_source(source, tuple(PASSES)) == (source, ())


def test_a_text_that_is_no_python_is_refused():
    with pytest.raises(SourceError):
        simplify_source("def (:\n", tuple(PASSES))


def test_complexity_counts_statements_first():
    assert (
        measure_complexity("a = 1\n")
        < measure_complexity("a = 1 + 2\n")
        < measure_complexity("a = 1\nb = 2\n")
    )


KERNEL = """import nki
import nki.isa as nisa
import nki.language as nl

SPARE = 12


@nki.jit
def kernel(x):
    rows, columns = x.shape
    out = nl.ndarray((128, 2 * 256), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(1):
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[:, 0:256], src=x[i * 128 : (i + 1) * 128, 0:256])
        nisa.dma_copy(dst=tile[:, 256:512], src=x[i * 128 : (i + 1) * 128, 256 : 256 + 256])
        result = nl.ndarray((128, max(512, 300)), dtype=x.dtype, buffer=nl.sbuf)
        nisa.activation(dst=result[:, 0:256], op=nl.exp, data=tile[:, 0:256])
        nisa.activation(dst=result[:, 256:512], op=nl.exp, data=tile[:, 256:512])
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=result)
    return out
"""


def test_a_kernel_computes_the_same_in_fewer_statements():
    found, passes = simplify_source(KERNEL, tuple(PASSES))
    assert passes == tuple(PASSES)
    assert found.count("dma_copy") == 2
    assert found.count("activation") == 1
    assert measure_complexity(found)[0] == measure_complexity(KERNEL)[0] - 5
    x = np.linspace(-3, 3, 128 * 512, dtype=np.float32).reshape(128, 512)
    arrays = [simulate_kernel(source, x) for source in (KERNEL, found)]
    np.testing.assert_array_equal(*arrays)


def simulate_kernel(source: str, x: np.ndarray) -> np.ndarray:
    program = nki_sim.trace(source, args=[ArraySpec(x.shape, "float32")])
    assert not checks.check(program, TARGET)
    (found,) = numerics.run(program, [x])
    return found
