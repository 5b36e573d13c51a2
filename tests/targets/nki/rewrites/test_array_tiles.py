"""Tiles of the array: short products of several iterations side by side."""

from __future__ import annotations

import re

import numpy as np
import pytest

from targets.nki.rewrites.estimate import estimate_kernel
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from tests.support.kernels import HEADER, TARGET, Sample, join_wrapped_calls, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite, list_rewrites_by_site

SITE = "nc_matmul to acc over j"
KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x, w):
    k, m = x.shape
    n = w.shape[1]
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    left = nl.ndarray((k, m), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=x)
    right = nl.ndarray((k, n), dtype=w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=right, src=w)
    FRONT
    for j in nl.affine_range(n // 64):
        acc = nl.ndarray((m, 64), dtype=nl.float32, buffer=nl.psum)
        BEFORE
        nisa.nc_matmul(dst=acc, stationary=left, moving=right[:, j * 64 : (j + 1) * 64]MORE)
        tile = nl.ndarray((m, 64), dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=acc)
        nisa.dma_copy(dst=out[:, j * 64 : (j + 1) * 64], src=tile)
    return out
"""
)


def sample(
    rows: int = 64, columns: int = 256, *, front: str = "", before: str = "", more: str = ""
) -> Sample:
    source = KERNEL.replace("FRONT", front).replace("BEFORE", before).replace("MORE", more)
    return Sample(source, ((rows, 32), (rows, columns)), lambda x, w: x.T @ w)


@pytest.mark.parametrize(
    ("rows", "columns", "count"), [(64, 256, 2), (48, 128, 2), (32, 256, 4), (20, 256, 4)]
)
def test_products_take_turns_on_rows_of_the_array(rows: int, columns: int, count: int):
    made = sample(rows, columns)
    source = find_rewrite(made, "array_tiles", SITE, {"iterations": count})
    text = join_wrapped_calls(source)
    assert text.count("nisa.nc_matmul(") == count
    for number in range(count):
        start = number * (128 // count)
        assert f"tile_position=({start}, 0), tile_size=({128 // count}, 128)" in text
        if start:
            assert f"stationary=left[{start} : {start} + k, :]" in text
            assert f"nisa.dma_copy(dst=right[{start} : {start} + k, :], src=w)" in text
    assert f"for j in nl.affine_range(j_group * {count}, (j_group + 1) * {count}):" in text
    assert relative_error(made, source) < 2e-5


def busy_ns(made: Sample, source: str) -> float:
    """What the static estimate has the tensor engine do."""
    arguments = [ArrayArgument(shape, "float32") for shape in made.shapes]
    return estimate_kernel(read_kernel(source, arguments, TARGET), TARGET).busy_ns["tensor"]


def test_the_tensor_engine_is_busy_for_a_part_of_the_time():
    made = sample(columns=512)
    source = find_rewrite(made, "array_tiles", SITE, {"iterations": 2})
    assert busy_ns(made, source) == pytest.approx(busy_ns(made, made.source) / 2)


def test_a_second_product_of_the_iteration_stays_on_the_first_rows():
    """On all partitions that the operands have now, it would add up every stretch of them."""
    again = """
        more = nl.ndarray((m, 64), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=more, stationary=left, moving=right[:, j * 64 : (j + 1) * 64])
        nisa.tensor_tensor(dst=tile, data1=tile, data2=more, op=nl.add)"""
    source = sample().source.replace("src=acc)", f"src=acc){again}")
    made = Sample(source, sample().shapes, lambda x, w: 2.0 * x.T @ w)
    assert relative_error(made, made.source) < 2e-5
    rewrite = find_rewrite(made, "array_tiles", SITE, {"iterations": 2})
    assert "dst=more, stationary=left[0:k, :], moving=right[0:k, j * 64" in join_wrapped_calls(rewrite)
    assert relative_error(made, rewrite) < 2e-5


def test_products_of_the_same_operands_in_several_loops_go_side_by_side_together():
    """On stretches of their own, the operands' first rows could not be taken by themselves again."""
    again = """
    for h in nl.affine_range(n // 128):
        wide = nl.ndarray((m, 128), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=wide, stationary=left, moving=right[:, h * 128 : (h + 1) * 128])
        more = nl.ndarray((m, 128), dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=more, src=wide)
        nisa.dma_copy(dst=out[:, n + h * 128 : n + (h + 1) * 128], src=more)
    return out"""
    source = (
        sample().source.replace("\n    return out", again).replace("(m, n), dtype=x", "(m, 2 * n), dtype=x")
    )
    made = Sample(source, sample().shapes, lambda x, w: np.tile(x.T @ w, (1, 2)))
    assert relative_error(made, made.source) < 2e-5
    rewrite = join_wrapped_calls(find_rewrite(made, "array_tiles", SITE, {"iterations": 2}))
    assert re.findall(r"nc_matmul\(dst=(\S+), stationary=left\[(\d+)", rewrite) == [
        ("acc[0]", "0"), ("acc[1]", "64"), ("wide[0]", "0"), ("wide[1]", "64"),
    ]  # fmt: skip
    assert rewrite.count("tile_position=(64, 0)") == 2
    assert relative_error(made, rewrite) < 2e-5


def test_products_of_the_same_operands_in_a_loop_and_one_around_it_are_refused():
    inner = """
        for g in nl.affine_range(n // 64):
            more = nl.ndarray((m, 64), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=more, stationary=left, moving=right[:, g * 64 : (g + 1) * 64])
            nisa.tensor_tensor(dst=tile, data1=tile, data2=more, op=nl.add)"""
    source = sample().source.replace("src=acc)", f"src=acc){inner}")
    made = Sample(source, sample().shapes, lambda x, w: x.T @ w)
    reason = find_refusal(made, "array_tiles", SITE)
    assert reason == "the loop over g lies in another one with such products"


def test_another_tile_of_an_operand_s_name_keeps_its_rows():
    first = """left = nl.ndarray((128, n), dtype=w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=w)
    right = nl.ndarray((k, n), dtype=w.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=right, src=left[64:128, :])
    left = nl.ndarray((k, m)"""
    lines = sample().source.splitlines(keepends=True)
    source = "".join(
        line for line in lines if not line.lstrip().startswith(("right =", "nisa.dma_copy(dst=right"))
    )
    source = source.replace("left = nl.ndarray((k, m)", first)
    made = Sample(source, ((64, 32), (128, 256)), lambda x, w: x.T @ w[64:])
    assert relative_error(made, made.source) < 2e-5
    rewrite = find_rewrite(made, "array_tiles", "nc_matmul to acc over j", {"iterations": 2})
    assert rewrite.count("src=left[64:128, :]") == 2
    assert relative_error(made, rewrite) < 2e-5


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (sample(front="k = 32"), "the number of rows of left may be called otherwise at nc_matmul"),
        (
            sample(columns=192),
            "the 3 iterations over j do not fall into groups whose products of 64 rows fit",
        ),
        (sample(more=", accumulate=False"), "the product says accumulate"),
        (sample(before="nisa.memset(dst=right[:, 0:1], value=0.0)"), "more than declarations stands before"),
        (
            sample(front="nisa.tensor_copy(dst=left[0:32, :], src=left[32:64, :])"),
            "tensor_copy takes partitions of left in part or rearranged",
        ),
        (
            sample(front="nisa.tensor_tensor(dst=left, data1=left, data2=right[:, 0:32], op=nl.add)"),
            "tensor_tensor makes left of an operand",
        ),
        (
            sample(front="nisa.iota(dst=left, pattern=[[1, 32]], offset=0, channel_multiplier=1)"),
            "iota does not write left alike on any partitions",
        ),
    ],
)
def test_it_is_refused_where_products_are_not_alike_on_any_rows(made: Sample, reason: str):
    assert find_refusal(made, "array_tiles", SITE).startswith(reason)


def test_products_over_more_than_half_of_the_rows_have_no_place():
    assert not list_rewrites_by_site(sample(rows=96), "array_tiles")
