"""Products after products in narrow parts: the sum that they leave is one number, as precise as its parts."""

from __future__ import annotations

import textwrap

import pytest

import nki_sim
from nki_sim.forms import ArraySpec
from nki_sim.program.ir import Program
from targets.nki.judge.precision import find_lost_precision

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x, y, z):
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    def load(a):
        made = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(made, a)
        return made
    def split(tile):
        high = nl.ndarray(tile.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        low = nl.ndarray(tile.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(high, tile)
        nisa.tensor_tensor(low, tile, high, op=nl.subtract)
        return high, low
    sx, sy, sz = load(x), load(y), load(z)
    (x_high, x_low), (y_high, y_low) = split(sx), split(sy)
    first = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
{body}
    between = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(between, first)
    acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    for part in range(SECOND):
        nisa.nc_matmul(acc, between, sz)
    r = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(r, acc)
    nisa.dma_copy(out, r)
    return out
"""

HIGH, HIGH_LOW, LOW_HIGH = (
    f"nisa.nc_matmul(first, {left}, {right})"
    for left, right in (("x_high", "y_high"), ("x_high", "y_low"), ("x_low", "y_high"))
)


def traced(body: str, *, second: int = 1) -> Program:
    source = KERNEL.format(body=textwrap.indent(body, "    ")).replace("SECOND", str(second))
    square, wide = ArraySpec((128, 128), "float32"), ArraySpec((128, 512), "float32")
    return nki_sim.trace(source, args=[square, square, wide], target="trn2")


@pytest.mark.parametrize("second", [1, 8])
def test_a_product_of_what_a_split_product_leaves_has_it_whole(second: int) -> None:
    assert find_lost_precision(traced(f"{HIGH}\n{HIGH_LOW}\n{LOW_HIGH}", second=second)) is None


@pytest.mark.parametrize("second", [1, 8])
@pytest.mark.parametrize(
    ("body", "lost"),
    [(HIGH, "x"), (f"{HIGH}\n{HIGH_LOW}", "x"), (f"{HIGH}\n{LOW_HIGH}", "y")],
    ids=["no remainder", "without x's", "without y's"],
)
def test_a_remainder_that_is_left_out_is_missed_however_long_the_chain(
    body: str, lost: str, second: int
) -> None:
    found = find_lost_precision(traced(body, second=second))
    assert found is not None
    assert f"input {lost} " in found[0]
    assert found[0].endswith("only as bfloat16")


def test_one_remainder_of_many_products_does_not_excuse_the_others() -> None:
    many = "\n".join([HIGH] * 20)
    found = find_lost_precision(traced(f"{many}\n{HIGH_LOW}\n{LOW_HIGH}", second=200))
    assert found is not None
    assert found[0].startswith("90 % of the products have input x only as bfloat16")
