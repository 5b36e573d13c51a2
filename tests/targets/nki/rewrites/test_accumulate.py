"""Accumulation in PSUM: what SBUF collected of products is added up by the products themselves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import HEADER, Sample, join_wrapped_calls, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite

KERNEL = """
T = {tile}


@nki.jit
def kernel(x, w):
    k, m = x.shape
    n = w.shape[1]
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value={start})
    for i in nl.sequential_range(k // 256):
        left = nl.ndarray((128, 2, m), dtype=x.dtype, buffer=nl.sbuf)
        right = nl.ndarray((128, 2, n), dtype=w.dtype, buffer=nl.sbuf)
        for h in nl.affine_range(2):
            nisa.dma_copy(dst=left[:, h, :], src=x[i * 256 + h * 128 : i * 256 + h * 128 + 128, :])
            nisa.dma_copy(dst=right[:, h, :], src=w[i * 256 + h * 128 : i * 256 + h * 128 + 128, :])
        for j in nl.affine_range(n // T):
            # One tile of columns.
            part = nl.ndarray((m, T), dtype=nl.float32, buffer=nl.psum)
            for h in nl.affine_range(2):
                {product}
            {add}
    {after}
    return out
"""
PRODUCT = "nisa.nc_matmul(dst=part, stationary=left[:, h, :], moving=right[:, h, j * T : (j + 1) * T])"
AT = "[:, j * T : (j + 1) * T]"
ADD = "nisa.tensor_tensor(dst=total{0}, data1=total{0}, data2=part, op=nl.add)"
STORE = "nisa.dma_copy(dst=out, src=total)"


def sample(
    add: str = ADD.format(AT),
    product: str = PRODUCT,
    *,
    shape: str = "(m, n)",
    start: str = "0.0",
    after: str = STORE,
    tile: int = 256,
) -> Sample:
    source = KERNEL.format(add=add, product=product, shape=shape, start=start, after=after, tile=tile)
    return Sample(HEADER + source, ((512, 64), (512, 512)), lambda x, w: x.T @ w)


@pytest.mark.parametrize(
    "add",
    [
        ADD.format(AT),
        ADD.format(AT).replace("data1=total", "data2=total", 1).replace("data2=part", "data1=part"),
    ],
)
def test_products_add_up_in_psum_tile_by_tile(add: str):
    made = sample(add)
    source = join_wrapped_calls(find_rewrite(made, "accumulate", "total", {}))
    assert relative_error(made, source) < 1e-6
    assert "total_sum = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.psum)" in source
    assert "# One tile of columns." in source
    assert "nisa.nc_matmul(dst=total_sum[:, j * T : (j + 1) * T], stationary=left[:, h, :]" in source
    copy = f"nisa.tensor_copy(dst=total{AT}, src=total_sum{AT}, engine=nisa.engine.scalar)"
    assert f"    for j in nl.affine_range(n // T):\n        {copy}\n    nisa.dma_copy" in source
    assert "part" not in source
    assert "memset" not in source


def test_one_tile_is_written_whole():
    made = sample(ADD.format(""), tile=512)
    source = join_wrapped_calls(find_rewrite(made, "accumulate", "total", {}))
    assert relative_error(made, source) < 1e-6
    assert "nisa.nc_matmul(dst=total_sum, stationary=" in source
    assert "\n    nisa.tensor_copy(dst=total, src=total_sum, engine=nisa.engine.scalar)" in source


def test_what_only_the_loop_knows_is_copied_at_once():
    at = "[:, first : first + T]"
    made = sample(f"first = j * T\n            assert first >= 0\n            {ADD.format(at)}")
    source = find_rewrite(made, "accumulate", "total", {})
    assert relative_error(made, source) < 1e-6


def test_tiles_may_have_a_dimension_of_their_own():
    store = f"nisa.dma_copy(dst=out{AT}, src=total[:, j, :])"
    after = f"for j in nl.affine_range(n // T):\n        {store}"
    made = sample(ADD.format("[:, j, :]"), shape="(m, n // T, T)", after=after)
    source = join_wrapped_calls(find_rewrite(made, "accumulate", "total", {}))
    assert relative_error(made, source) < 1e-6
    assert "nisa.nc_matmul(dst=total_sum[:, j, :], stationary=" in source


def rename_operand(asked: str = "") -> Sample:
    """The products' `g` is not the adder's."""
    product = PRODUCT.replace("j *", "g *").replace("(j", "(g")
    add = f"g = j\n            {asked}\n            {ADD.format('[:, g * T : (g + 1) * T]')}"
    made = sample(add, f"g = 1 - j\n                {product}")
    return Sample(made.source, made.shapes, lambda x, w: np.roll(x.T @ w, 256, axis=1))


def test_a_name_that_changes_on_the_way_means_what_it_meant():
    made = rename_operand()
    assert relative_error(made, made.source) < 1e-6
    assert relative_error(made, find_rewrite(made, "accumulate", "total", {})) < 1e-6


def test_a_name_that_must_stay_and_changes_on_the_way_keeps_the_sum_where_it_is():
    made = rename_operand("len(str(g))")  # nobody can read this, so that `g` cannot be replaced by its value
    assert relative_error(made, made.source) < 1e-6
    reason = "total[:, g * T : (g + 1) * T] may be something else where its products are made"
    assert find_refusal(made, "accumulate", "total") == reason


OTHERWISE = "part is not made by products alone, or is used otherwise, too"


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (sample(ADD.format(AT).replace("add", "maximum")), "tensor_tensor does not add a tile to total"),
        (
            sample(f"{ADD.format(AT)}\n            nisa.tensor_copy(dst=right[0:m, 0, 0:T], src=part)"),
            OTHERWISE,
        ),
        (sample(product=PRODUCT[:-1] + ", accumulate=True)"), OTHERWISE),
        (
            sample(product=f"if h == 0:\n                    {PRODUCT}"),
            OTHERWISE,
        ),
        (
            sample(shape="(m, n + T)", after="nisa.dma_copy(dst=out, src=total[:, 0:n])"),
            "total is not made up of what is added",
        ),
        (
            sample(ADD.format("[:, 0:T]"), after="nisa.dma_copy(dst=out, src=total)"),
            "total is not made up of what is added",
        ),
    ],
)
def test_what_is_no_such_sum_stays_in_sbuf(made: Sample, reason: str):
    assert find_refusal(made, "accumulate", "total") == reason


def test_a_sum_that_begins_with_something_takes_it_in_at_the_end():
    zero = sample(start="1.0")
    made = Sample(zero.source, zero.shapes, lambda x, w: x.T @ w + 1.0)
    source = join_wrapped_calls(find_rewrite(made, "accumulate", "total", {}))
    assert relative_error(made, source) < 1e-6
    assert "nisa.memset(dst=total, value=1.0)" in source
    assert f"nisa.tensor_tensor(dst=total{AT}, data1=total{AT}, data2=total_sum{AT}, op=nl.add)" in source
