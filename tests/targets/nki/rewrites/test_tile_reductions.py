"""Reductions over tiles are cut into other tiles; of a single tile neither a loop nor a sum is left."""

from __future__ import annotations

import ast
import textwrap

import numpy as np
import pytest

from tests.support.kernels import HEADER
from tests.targets.nki.rewrites.test_retile import compute, explore, raise_source

SHAPES = ((96, 384),)

RUNNING_TOTAL = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((96, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.ndarray((96, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for c in range(3):
            t = nl.ndarray((96, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[:, 128 * c : 128 * c + 128])
            part = nl.ndarray((96, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=part, op=nl.add, data=t, axis=1)
            nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
        nisa.dma_copy(dst=out, src=total)
        return out
"""

SIDE_BY_SIDE = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((96, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        peaks = nl.ndarray((96, 6), dtype=nl.float32, buffer=nl.sbuf)
        for c in range(6):
            t = nl.ndarray((96, 64), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[:, 64 * c : 64 * c + 64])
            nisa.tensor_reduce(dst=peaks[:, c : c + 1], op=nl.maximum, data=t, axis=1)
        low = nl.ndarray((96, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=low, op=nl.maximum, data=peaks, axis=1, negate=True)
        nisa.dma_copy(dst=out, src=low)
        return out
"""

PRODUCTS_IN_SBUF = """
    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for k in range(4):
            left = nl.ndarray((32, 64), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=a[32 * k : 32 * k + 32, :])
            right = nl.ndarray((32, 96), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=right, src=b[32 * k : 32 * k + 32, :])
            part = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=part, stationary=left, moving=right)
            nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
        nisa.dma_copy(dst=out, src=total)
        return out
"""


def retile(text: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[str, dict[str, str], list[str]]:
    """The raised source, the sources with other tiles by title, without comments, and the refusals."""
    source = raise_source(HEADER + textwrap.dedent(text), shapes)
    made, reasons = explore(source, shapes, "retile")
    return source, {title: ast.unparse(ast.parse(code)) for title, code in made}, reasons


@pytest.mark.parametrize("text", [RUNNING_TOTAL, SIDE_BY_SIDE])
def test_every_other_size_of_tiles_gives_the_same_reduction(text: str) -> None:
    source, made, _ = retile(text, SHAPES)
    expected = compute(source, SHAPES)
    assert made
    for changed in made.values():
        assert np.allclose(compute(changed, SHAPES), expected, rtol=1e-5, atol=1e-4)


def test_a_single_tile_leaves_no_loop_and_no_total() -> None:
    _, made, _ = retile(RUNNING_TOTAL, SHAPES)
    (whole,) = (text for title, text in made.items() if "width 384" in title)
    for gone in ("for ", "memset", "tensor_tensor", "part"):
        assert gone not in whole
    assert "tensor_reduce(dst=total, op=nl.add, data=t, axis=1)" in whole


def test_a_reduction_of_one_column_becomes_a_product_with_minus_one() -> None:
    _, made, _ = retile(SIDE_BY_SIDE, SHAPES)
    (whole,) = (text for title, text in made.items() if "width 384" in title)
    assert whole.count("tensor_reduce") == 1
    assert "tensor_scalar(dst=low, data=peaks, op0=nl.multiply, operand0=-1.0)" in whole


def test_products_that_are_added_up_in_sbuf_get_deeper() -> None:
    shapes = (128, 64), (128, 96)
    source, made, _ = retile(PRODUCTS_IN_SBUF, shapes)
    (whole,) = (text for title, text in made.items() if "width 128" in title)
    assert "tensor_copy(dst=total, src=part)" in whole
    assert "memset" not in whole
    assert np.allclose(compute(whole, shapes), compute(source, shapes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data2=part, op=nl.add)\n", "data2=part, op=nl.maximum)\n"),
        ("op=nl.add, data=t, axis=1)", "op=nl.add, data=t, axis=1, negate=True)"),
        ("op=nl.add, data=t", "op=nl.maximum, data=t"),
        (
            "data2=part, op=nl.add)\n",
            "data2=part, op=nl.add)\n            nisa.dma_copy(dst=out, src=total)\n",
        ),
        (
            "data2=part, op=nl.add)\n",
            "data2=part, op=nl.add)\n            nisa.activation(dst=total, op=nl.exp, data=total)\n",
        ),
        ("data2=part, op=nl.add)\n", "data2=total, op=nl.add)\n"),
    ],
)
def test_what_sees_single_tiles_keeps_their_size(old: str, new: str) -> None:
    assert old in RUNNING_TOTAL
    _, made, reasons = retile(RUNNING_TOTAL.replace(old, new), SHAPES)
    assert not made
    assert reasons


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("op=nl.maximum, data=t", "op=nl.add, data=t"),
        ("data=peaks, axis=1", "data=peaks[:, 0:3], axis=1"),
        ("dst=out, src=low", "dst=out, src=peaks[:, 2:3]"),
    ],
)
def test_results_side_by_side_that_are_used_otherwise_stay(old: str, new: str) -> None:
    assert old in SIDE_BY_SIDE
    _, made, reasons = retile(SIDE_BY_SIDE.replace(old, new), SHAPES)
    assert not made
    assert reasons
