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
