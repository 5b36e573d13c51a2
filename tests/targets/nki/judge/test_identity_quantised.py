"""Kernels that multiply MX operands: the formula is proven, and wrong scales are told from right ones."""

from __future__ import annotations

import pytest

from remote.judge.identity.verdict import IdentityFinding, compare_formulas
from remote.judge.tiles import OutputTile
from tests.remote.identity.programs import sides, trace_kernel

SHAPES = ((512, 64), (512, 96))
"""left [K, M] and right [K, N]; four rows of the contraction go to each of the 128 partitions."""

PLAIN = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(left, right):
    out = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.psum)
    for step in range(4):
        a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        b = nl.ndarray((128, 96), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(a, left[step * 128 : (step + 1) * 128])
        nisa.dma_copy(b, right[step * 128 : (step + 1) * 128])
        nisa.nc_matmul(acc, a, b)
    r = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(r, acc)
    nisa.dma_copy(out, r)
    return out
"""

QUANTISED = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(left, right):
    out = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.psum)
    def quantise(source, columns):
        wide = nl.ndarray((128, 4 * columns), dtype=nl.float32, buffer=nl.sbuf)
        half = nl.ndarray((128, 4 * columns), dtype=nl.bfloat16, buffer=nl.sbuf)
        for step in range(4):
            loaded = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(loaded, source[step * 128 : (step + 1) * 128])
            nisa.tensor_copy(wide.ap([[4 * columns, 128], [4, columns]], offset=step), loaded)
        nisa.tensor_copy(half, wide)
        packed = nl.ndarray((128, columns), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        scales = nl.ndarray((128, columns), dtype=nl.{scale}, buffer=nl.sbuf)
        nisa.quantize_mx(packed, half, scales)
        return packed, scales
    a, a_scale = quantise(left, 64)
    b, b_scale = quantise(right, 96)
    {product}
    r = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(r, acc)
    nisa.dma_copy(out, r)
    return out
"""
WHOLE = "nisa.nc_matmul_mx(acc, a, b, a_scale, b_scale)"


def compare(kernel: str) -> IdentityFinding:
    """What the comparison of a kernel with the plain product finds."""
    ours, theirs = (trace_kernel(text, SHAPES, target="trn3") for text in (kernel, PLAIN))
    return compare_formulas(
        sides(ours, theirs, [OutputTile(0, ((8, 12), (40, 48))), OutputTile(0, ((60, 64), (90, 96)))])
    )


@pytest.mark.parametrize("scale", ["float8_e8m0fnu", "uint8"])
def test_a_product_of_quantised_operands_is_proven(scale: str) -> None:
    found = compare(QUANTISED.format(scale=scale, product=WHOLE))
    assert (found.verdict, found.reason) == ("proven", "")
    assert found.elements > 8


def test_parts_that_add_up_are_proven() -> None:
    product = """
    for start in (0, 32, 64, 96):
        rows = slice(start, start + 32)
        nisa.nc_matmul_mx(acc, a[rows], b[rows], a_scale[rows], b_scale[rows])
    """.strip()
    assert compare(QUANTISED.format(scale="uint8", product=product)).verdict == "proven"


OTHERS = """
nisa.nc_matmul_mx(acc[:, 0:64], a, b[:, 0:64], b_scale[:, 0:64], a_scale)
    nisa.nc_matmul_mx(acc[:, 64:96], a, b[:, 64:96], a_scale, b_scale[:, 64:96])
""".strip()


@pytest.mark.parametrize(("product", "verdict"), [
    ("nisa.nc_matmul_mx(acc, a, b, a_scale, b_scale[:, 0:1].broadcast(1, 96))", "tested"),
    (OTHERS, "tested"),
    ("nisa.nc_matmul_mx(acc, a[0:96], b[0:96], a_scale[0:96], b_scale[0:96])", "rejected"),
])  # fmt: skip
def test_scales_of_others_are_not_proven_and_parts_left_out_are_rejected(product: str, verdict: str) -> None:
    """The scales of a comparison are not those that the simulator computes: only numbers can reject them."""
    assert compare(QUANTISED.format(scale="uint8", product=product)).verdict == verdict
