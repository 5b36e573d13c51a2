"""Moments: a sum and a sum of squared deviations become one pass of `bn_stats`, in any spelling."""

from __future__ import annotations

import pytest

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, relative_error

KERNEL = """
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        data = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x[i * 128 : (i + 1) * 128, :])
        # Mean of a row.
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=data, axis=1)
        mean = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=mean, data=total, op0=nl.multiply, operand0={share})
        centred = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        {centre}
        squares = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        deviation = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        {square}
        root = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=root, op=nl.rsqrt, data=deviation, scale={share})
        result = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=centred, op0=nl.multiply, operand0=root)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src={result})
    return out
"""
CENTRES = {
    "subtracted": "nisa.tensor_scalar(dst=centred, data=data, op0=nl.subtract, operand0=mean)",
    "added": (
        "turned = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)\n"
        "        nisa.tensor_scalar(dst=turned, data=mean, op0=nl.multiply, operand0=-1.0)\n"
        "        nisa.tensor_scalar(dst=centred, data=data, op0=nl.add, operand0=turned)"
    ),
}
SQUARES = {
    "activation": (
        "nisa.activation_reduce(dst=squares, op=nl.square, data=centred, "
        "reduce_op=nl.add, reduce_res=deviation)"
    ),
    "product": (
        "nisa.tensor_tensor(dst=squares, data1=centred, data2=centred, op=nl.multiply)\n"
        "        nisa.tensor_reduce(dst=deviation, op=nl.add, data=squares, axis=1)"
    ),
    "square": (
        "nisa.activation(dst=squares, op=nl.square, data=centred)\n"
        "        nisa.tensor_reduce(dst=deviation, op=nl.add, data=squares, axis=1)"
    ),
}


def standardise(x):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / (centred**2).mean(axis=1, keepdims=True) ** 0.5


def sample(centre="subtracted", square="activation", *, columns=768, share=None, result="result"):
    source = KERNEL.format(
        centre=CENTRES.get(centre, centre),
        square=SQUARES.get(square, square),
        share=1 / columns if share is None else share,
        result=result,
    )
    return Sample(HEADER + source, ((256, columns),), standardise)


def rewritten(made):
    """Sources, and reasons against."""
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["moments"]])
    return [child.source for child in children], refusals


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("centre", CENTRES)
def test_both_sums_come_from_one_pass(centre, square):
    made = sample(centre, square)
    ((source,), _) = rewritten(made)
    assert relative_error(made, source) < 1e-6
    assert "# Mean of a row." in source
    assert "for i_part in nl.affine_range(2):" in source
    assert "data=data[:, i_part * 384 : (i_part + 1) * 384]" in source
    assert "tensor_reduce" not in source
    assert "squares" not in source


def test_a_short_row_is_one_part():
    made = sample(columns=512)
    ((source,), _) = rewritten(made)
    assert "nisa.bn_stats(dst=statistics, data=data)" in source
    assert relative_error(made, source) < 1e-6


def test_a_second_moment_keeps_its_deviations():
    ((source,), _) = rewritten(sample())
    assert "operand0=mean" in source  # the result is made of them


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (sample(share=0.25), "0.25 times the sum is not the mean of 768 elements"),
        (sample(columns=1021), "fall into no equal parts of at most 512"),
        (sample(result="squares"), "the squares in squares are used"),
        (
            sample("nisa.tensor_scalar(dst=centred, data=data, op0=nl.multiply, operand0=mean)"),
            "no tile with something taken away",
        ),
        (
            sample(
                CENTRES["subtracted"]
                + "\n        nisa.tensor_scalar(dst=data, data=data, op0=nl.add, operand0=1.0)"
            ),
            "data may change between the sums",
        ),
    ],
)
def test_what_is_no_mean_and_variance_stays(made, reason):
    sources, refusals = rewritten(made)
    assert not sources
    assert any(reason in refusal for refusal in refusals), refusals
