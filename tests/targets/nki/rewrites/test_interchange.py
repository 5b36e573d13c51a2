"""Loop interchange where iterations share something: only their order may not change."""

from __future__ import annotations

from tests.support.kernels import HEADER, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, list_rewrites_by_site

TOTALS = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    totals = [nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf) for _ in range(4)]
    for j in range(4):
        nisa.memset(dst=totals[j], value=0.0)
    for i in nl.affine_range(3):
        for j in nl.affine_range(4):
            t = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128])
            nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=0.5)
            nisa.tensor_tensor(dst=totals[j], data1=totals[{added}], data2=t, op=nl.subtract)
    for j in range(4):
        nisa.dma_copy(dst=out[:, j * 128 : (j + 1) * 128], src=totals[j])
    return out
"""
SHAPES = ((384, 512),)


def test_totals_of_outer_iterations_keep_their_order():
    made = Sample(
        HEADER + TOTALS.format(added="j"), SHAPES, lambda x: -0.5 * (x[:128] + x[128:256] + x[256:])
    )
    ((_, swapped),) = list_rewrites_by_site(made, "interchange")["i and j#2"]
    assert swapped.rindex("for i in nl.affine_range(3)") > swapped.rindex("for j in nl.affine_range(4)")
    assert relative_error(made, swapped) < 1e-6


def test_totals_that_other_inner_iterations_need_keep_the_loops_in_place():
    made = Sample(HEADER + TOTALS.format(added="3 - j"), SHAPES, lambda x: x)
    refusal = find_refusal(made, "interchange", "i and j#2")
    assert refusal.startswith("iterations over i share tensor_tensor's totals")


BLOCKS = """
@nki.jit
def kernel(x):
    out = nl.ndarray((512, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    parts = [nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf) for _ in range(20)]
    for c in nl.affine_range(2):
        for r in nl.affine_range(4):
            for j in nl.affine_range(2):
                nisa.dma_copy(
                    dst=parts[c * {apart} + r * 2 + j],
                    src=x[r * 128 : (r + 1) * 128, c * 256 + j * 128 : c * 256 + (j + 1) * 128],
                )
                nisa.tensor_tensor(
                    dst=parts[c * {apart} + r * 2 + j],
                    data1=parts[c * {apart} + r * 2 + j],
                    data2=parts[{other}],
                    op=nl.add,
                )
    for c in nl.affine_range(2):
        for r in nl.affine_range(4):
            for j in nl.affine_range(2):
                nisa.dma_copy(
                    dst=out[r * 128 : (r + 1) * 128, c * 256 + j * 128 : c * 256 + (j + 1) * 128],
                    src=parts[c * {apart} + r * 2 + j],
                )
    return out
"""


def blocks(apart: int, other: str) -> Sample:
    return Sample(HEADER + BLOCKS.format(apart=apart, other=other), ((512, 512),), lambda x: 2 * x)


def test_blocks_of_tiles_in_a_list_lie_apart_in_all_blocks_of_columns():
    made = blocks(8, "c * 8 + r * 2 + j")
    ((_, swapped),) = list_rewrites_by_site(made, "interchange")["c and r"]
    assert relative_error(made, swapped) < 1e-6


def test_tiles_that_two_blocks_of_columns_share_keep_the_loops_in_place():
    for made in (blocks(6, "c * 6 + r * 2 + j"), blocks(8, "(1 - c) * 8 + 7 - r * 2 - j")):
        refusal = find_refusal(made, "interchange", "c and r")
        assert refusal == "iterations over c share dma_copy's parts"


def test_loops_that_count_the_same_name_stay():
    """Inside, the name would be that of the other loop."""
    made = blocks(8, "c * 8 + r * 2 + j")
    text = made.source.replace("for c in nl.affine_range(2):", "for r in nl.affine_range(1):", 1)
    text = text.replace("c * 8", "0 * 8").replace("c * 256", "0 * 256")
    shadowed = Sample(text, made.shapes, made.meaning)
    assert find_refusal(shadowed, "interchange", "r and r#2") == "two loops of the nest count r"
