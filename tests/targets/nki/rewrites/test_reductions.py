"""Reductions: into the loop that makes a tile, and into the instruction that makes it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import HEADER, Array, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite

SOFTMAX = """
T = 128

@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        rows = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[i * 128 : (i + 1) * 128, :])
        scores = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        # One part after the other.
        for j in nl.affine_range(n // T):
            nisa.tensor_copy(dst=scores[:, j * T : (j + 1) * T], src=rows[:, j * T : (j + 1) * T])
            {inside}
        top = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=1, negate=True)
        exps = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=exps, op=nl.exp, data=scores, bias=top)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=exps, axis=1)
        inverse = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=total)
        nisa.tensor_scalar(dst=rows, data=exps, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=rows)
    return out
"""
SCORES = "scores = nl.ndarray((128, n), dtype=nl.float32"
SPLIT = "tensor_reduce to top"
BY_VECTOR, BY_SCALAR = {"by": "tensor_scalar_reduce"}, {"by": "activation_reduce"}
FUSED = "tensor_copy and tensor_reduce to top_parts"


def meaning(x: Array) -> Array:
    exps = np.exp(x - x.max(axis=1, keepdims=True))
    return exps / exps.sum(axis=1, keepdims=True)


def softmax(old: str = "", new: str = "", inside: str = "pass") -> Sample:
    source = HEADER + SOFTMAX.format(inside=inside)
    assert old in source
    return Sample(source.replace(old, new) if old else source, ((256, 512),), meaning)


def after(sample: Sample, source: str) -> Sample:
    return Sample(source, sample.shapes, sample.meaning)


def test_a_reduction_follows_the_loop_that_makes_the_parts():
    source = find_rewrite(softmax(), "split_reduction", SPLIT, {})
    assert (
        """
        # One part after the other.
        top_parts = nl.ndarray((128, n // T), dtype=nl.float32, buffer=nl.sbuf)
        for j in nl.affine_range(n // T):
            nisa.tensor_copy(dst=scores[:, j * T : (j + 1) * T], src=rows[:, j * T : (j + 1) * T])
            nisa.tensor_reduce(
                dst=top_parts[:, j : j + 1], op=nl.maximum, data=scores[:, j * T : (j + 1) * T], axis=1
            )
            pass
        top = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=top_parts, axis=1, negate=True)
"""
        in source
    )
    assert relative_error(softmax(), source) < 2e-5


def test_parts_of_nested_loops_are_counted_through():
    nested = softmax(
        """for j in nl.affine_range(n // T):
            nisa""",
        """for h in nl.affine_range(2):
          for j in nl.affine_range(2):
            nisa""",
    )
    part = "[:, j * T : (j + 1) * T]"
    nested = after(nested, nested.source.replace(part, "[:, (h * 2 + j) * T : (h * 2 + j + 1) * T]"))
    source = find_rewrite(nested, "split_reduction", SPLIT, {})
    assert "top_parts = nl.ndarray((128, 2 * 2), dtype=nl.float32, buffer=nl.sbuf)" in source
    assert "dst=top_parts[:, h * 2 + j : h * 2 + j + 1]" in source
    assert relative_error(nested, source) < 2e-5


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (softmax("data=scores, axis=1", "data=scores[:, 0:256], axis=1"), "does not reduce all of scores"),
        (softmax(inside="nisa.memset(dst=scores[:, 0:1], value=0.0)"), "2 instructions write scores"),
        (softmax("in nl.affine_range(n // T):", "in nl.affine_range(n // T - 1):"), "do not make up scores"),
        (softmax("scores[:, j * T : (j + 1) * T]", "scores"), "do not make up scores"),
        (softmax(inside="if m > 1:\n                nisa.memset(dst=rows, value=0.0)"), "cannot be read"),
        (softmax(SCORES, SCORES.replace("float", "int")),
         "does not hold floating-point numbers"),
    ],
)  # fmt: skip
def test_split_says_why_not(sample: Sample, reason: str):
    assert reason in find_refusal(sample, "split_reduction", SPLIT)


def test_what_is_made_at_once_is_not_split():
    assert "by a loop in front" in find_refusal(softmax(), "split_reduction", "tensor_reduce to total")


def test_a_copy_finds_the_maximum_on_its_way():
    split = after(softmax(), find_rewrite(softmax(), "split_reduction", SPLIT, {}))
    source = find_rewrite(split, "fuse_reduction", FUSED, BY_VECTOR)
    assert source == find_rewrite(softmax(), "split_reduction", SPLIT, BY_VECTOR)
    assert (
        """
            nisa.tensor_scalar_reduce(
                dst=scores[:, j * T : (j + 1) * T], data=rows[:, j * T : (j + 1) * T], op0=nl.multiply, """
        """operand0=1.0, reduce_op=nl.maximum, reduce_res=top_parts[:, j : j + 1]
            )
""" in source
    )
    assert relative_error(softmax(), source) < 2e-5


def test_an_activation_adds_up_what_it_makes():
    source = find_rewrite(softmax(), "fuse_reduction", "activation and tensor_reduce to total", BY_SCALAR)
    assert (
        """
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(
            dst=exps, op=nl.exp, data=scores, bias=top, reduce_op=nl.add, reduce_res=total
        )
        inverse"""
        in source
    )
    assert relative_error(softmax(), source) < 2e-5


SQUARES = """
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        a = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
        y = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=y, data1=a, data2=a, op=nl.multiply)
        {between}
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=y, axis=1)
        nisa.tensor_scalar(dst=y, data=y, op0=nl.add, operand0=total)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=y)
    return out
"""


def squares(old: str = "", new: str = "", between: str = "pass") -> Sample:
    source = HEADER + SQUARES.format(between=between)
    assert old in source
    return Sample(
        source.replace(old, new) if old else source,
        ((256, 512),),
        lambda x: x * x + (x * x).sum(axis=1, keepdims=True),
    )


def test_a_square_and_its_sum_are_one_instruction():
    source = find_rewrite(squares(), "fuse_reduction", "tensor_tensor and tensor_reduce to total", BY_SCALAR)
    assert "nisa.activation_reduce(dst=y, op=nl.square, data=a, reduce_op=nl.add, reduce_res=total)" in source
    assert relative_error(squares(), source) < 2e-5


def test_a_scaled_tile_offers_the_vector_engine():
    scaled = squares(
        "nisa.tensor_tensor(dst=y, data1=a, data2=a, op=nl.multiply)",
        "nisa.tensor_scalar(dst=y, data=a, op0=nl.multiply, operand0=0.5)",
    )
    scaled = Sample(scaled.source, scaled.shapes, lambda x: x / 2 + (x / 2).sum(axis=1, keepdims=True))
    source = find_rewrite(scaled, "fuse_reduction", "tensor_scalar and tensor_reduce to total", BY_VECTOR)
    assert "tensor_scalar_reduce(" in source
    assert relative_error(scaled, source) < 2e-5


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (squares("data2=a", "data2=y"), "no instruction does what tensor_tensor does"),
        (squares("data=y, axis=1)", "data=y, axis=1, negate=True)"), "reduces with add, negated"),
        (squares("data=y, axis=1", "data=y[:, 0:256], axis=1"), "does not make what is reduced"),
        (squares("y = nl.ndarray((128, n), dtype=nl.float32", "y = nl.ndarray((128, n), dtype=nl.bfloat16"),
         "rounded to another type"),
        (squares(between="if m > 1:\n            nisa.memset(dst=y, value=0.0)"), "cannot be read"),
        (squares("axis=1)", "axis=1)\n        if m < 0:\n            nisa.activation(reduce_cmd=0)"),
         "the engine's registers"),
    ],
)  # fmt: skip
def test_fuse_says_why_not(sample: Sample, reason: str):
    assert reason in find_refusal(sample, "fuse_reduction", "tensor_tensor and tensor_reduce to total")
