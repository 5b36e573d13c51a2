"""Sums on the tensor engine: additions become products with the identity, and zeros a first product.

Products with a row that are added up can be made on the way, of the tile turned around.
"""

from __future__ import annotations

from typing import Any

import pytest

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, relative_error
from tests.support.sweeps import parametrize_sweep

KERNEL = """
T = {columns}


@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for j in nl.affine_range(n // T):
        total = nl.ndarray((128, T), dtype={dtype}, buffer=nl.sbuf)
        nisa.memset(dst=total, value={start})
        for i in nl.sequential_range(m // 128):
            part = nl.ndarray((128, T), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=part, src=x[i * 128 : (i + 1) * 128, j * T : (j + 1) * T])
            # All rows together.
            {add}
        nisa.dma_copy(dst=out[:, j * T : (j + 1) * T], src=total)
    return out
"""
ADD = "nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)"

MADE = (
    "part = nl.ndarray((128, T), dtype=nl.float32, buffer=nl.psum)\n"
    "            nisa.tensor_copy(dst=part, src=loaded)"
)


def sample(add: str = ADD, columns: int = 1024, start: str = "0.0", dtype: str = "nl.float32") -> Sample:
    source = HEADER + KERNEL.format(add=add, columns=columns, start=start, dtype=dtype)
    return Sample(source, ((384, 2 * columns),), lambda x: x.reshape(3, 128, -1).sum(axis=0))


def rewritten(made: Sample, technique: str = "tensor_sum") -> tuple[list[str], list[str]]:
    """Sources, and reasons against."""
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS[technique]])
    return [child.source for child in children], refusals


@pytest.mark.parametrize("add", [ADD, ADD.replace("data1=total, data2=part", "data1=part, data2=total")])
def test_a_sum_over_a_loop_is_added_up_in_psum(add: str):
    made = sample(add)
    ((source,), _) = rewritten(made)
    assert relative_error(made, source) < 1e-6
    assert "total_sum = nl.ndarray((128, T), dtype=nl.float32, buffer=nl.psum)" in source
    assert "# All rows together.\n            for i_bank in nl.affine_range(T // 512):" in source
    assert "moving=part[:, i_bank * 512 : (i_bank + 1) * 512]" in source
    assert "nisa.tensor_copy(dst=total, src=total_sum, engine=nisa.engine.scalar)" in source
    assert source.index("affine_select") < source.index("for j in")
    assert "nisa.tensor_tensor" not in source


def test_one_bank_needs_no_loop():
    made = sample(columns=256)
    ((source,), _) = rewritten(made)
    assert "nisa.nc_matmul(dst=total_sum, stationary=identity, moving=part," in source
    assert relative_error(made, source) < 1e-6


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (sample(ADD.replace("add", "maximum")), "tensor_tensor does not add a tile to total"),
        (sample(start="1.0"), "total does not begin as zeros"),
        (sample(dtype="nl.bfloat16"), "total is no tile of float32 on chip"),
        (
            sample(ADD.replace("total", "total[:, 0:256]").replace("=part", "=part[:, 0:256]")),
            "total is no matrix, or is added in part",
        ),
        (
            sample(f"{ADD}\n            nisa.tensor_copy(dst=part, src=total)"),
            "total is used before it is complete",
        ),
        (sample(columns=640), "the 640 columns of total are no multiple of the 512 of a bank of PSUM"),
    ],
)
def test_what_is_no_such_sum_stays(made: Sample, reason: str):
    assert rewritten(made) == ([], [f"tensor_sum total: {reason}"])


def test_a_part_in_psum_is_made_in_sbuf_instead():
    text = sample().source.replace("src=x[i", "src=loaded_from[i").replace(ADD, f"{MADE}\n            {ADD}")
    text = text.replace("part = nl", "loaded = nl", 1).replace("dst=part", "dst=loaded", 1)
    made = Sample(text.replace("loaded_from", "x"), sample().shapes, sample().meaning)
    assert relative_error(made, made.source) < 1e-6
    ((source,), _) = rewritten(made)
    assert "part = nl.ndarray((128, T), dtype=nl.float32, buffer=nl.sbuf)" in source
    assert relative_error(made, source) < 1e-6


def test_what_happens_to_the_sum_after_the_loop_stays():
    store = "        nisa.dma_copy(dst=out"
    twice = "        nisa.tensor_tensor(dst=total, data1=total, data2=total, op=nl.add)\n"
    made = sample()
    made = Sample(
        made.source.replace(store, twice + store),
        made.shapes,
        lambda x: 2 * x.reshape(3, 128, -1).sum(axis=0),
    )
    ((source,), _) = rewritten(made)
    assert relative_error(made, source) < 1e-6


ROWS = """
@nki.jit
def kernel(x, w):
    m, n = x.shape
    out = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    for i in nl.sequential_range(m // 128):
        data = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.{memory})
        {load}
        row = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        {fill}
        # What is added.
        part = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=part, {operands}, op=nl.{op})
        {between}
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
        {after}
    nisa.dma_copy(dst=out, src=total)
    return out
"""
OPERANDS = "data1=data, data2=row"
LOAD = "nisa.dma_copy(dst=data, src=x[i * 128 : (i + 1) * 128, :])"
THROUGH = (
    "loaded = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)\n        "
    + LOAD.replace("data", "loaded")
    + "\n        nisa.tensor_copy(dst=data, src=loaded)"
)
FILL = "nisa.dma_copy(dst=row, src=w[i : i + 1, :].broadcast(0, 128))"


def with_rows(columns: int = 512, rows: int = 3, step: int = 1, first: int = 0, **words: str) -> Sample:
    """`rows` tiles, each times the row of its number times `step`, the first one `first`, added up."""
    texts = {
        "memory": "sbuf", "load": LOAD, "fill": FILL, "operands": OPERANDS, "op": "multiply",
        "between": "pass", "after": "pass",
    }  # fmt: skip
    return Sample(
        HEADER + ROWS.format_map(texts | words),
        ((rows * 128, columns), (rows * 128, columns)),
        lambda x, w: (x.reshape(rows, 128, -1) * w[first : first + rows * step : step, None, :]).sum(axis=0),
    )


APART = {"fill": FILL.replace("i : i + 1", "2 * i : 2 * i + 1"), "step": 2}


@pytest.mark.parametrize(
    "words",
    [{}, {"operands": "data1=row, data2=data"}, {"memory": "psum", "load": THROUGH}, {"between": "assert m"}],
)
def test_products_with_a_row_are_made_of_the_tile_turned_around(words: dict[str, str]):
    made = with_rows(**APART, **words)
    ((turned,), _) = rewritten(made, "turned_sum")
    assert relative_error(made, turned) < 1e-6
    assert "nisa.tensor_tensor" not in turned
    assert "# What is added.\n        # Turned, row is one factor for each partition.\n" in turned
    assert "data=row[0:1, i_part * 128 : (i_part + 1) * 128]" in turned
    assert "data = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)" in turned


@pytest.mark.parametrize("window", ["i : i + 1", "i + 1 : i + 2", "nl.ds(i, 1)"])
def test_neighbouring_rows_are_loaded_and_turned_together(window: str):
    made = with_rows(fill=FILL.replace("i : i + 1", window), first=int("i + 1 :" in window))
    ((turned,), _) = rewritten(made, "turned_sum")
    assert relative_error(made, made.source) < 1e-6
    assert relative_error(made, turned) < 1e-6
    assert "broadcast" not in turned
    assert turned.index("nisa.dma_copy(dst=row_rows, src=w[") < turned.index("for i in")
    assert "nl.ndarray((128, n // 128, m // 128), dtype=nl.float32, buffer=nl.psum)" in turned
    assert "scale=row_factor[:, i_part, i : i + 1]" in turned


@parametrize_sweep(
    "words",
    [
        {"fill": FILL.replace("w[i : i + 1, :].", "(w[i : i + 1, :]).reshape_dim(0, (1, 1))[0].")},
        {"fill": FILL.replace("w[i : i + 1, :]", "w[i : i + 1]")},
        {"columns": 1024, "rows": 72},  # a bank has no room for as many turned rows
    ],
)
def test_rows_that_cannot_be_turned_together_are_turned_one_by_one(words: dict[str, Any]):
    made = with_rows(**words)
    ((turned,), _) = rewritten(made, "turned_sum")
    assert relative_error(made, turned) < 1e-6
    assert "broadcast(0, 128)" in turned


def test_a_row_that_is_used_otherwise_stays():
    made = with_rows(between="nisa.tensor_copy(dst=row_too[:, 0:n], src=row)")
    declared = "row_too = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)\n    "
    source = made.source.replace("for i in", f"{declared}for i in")
    ((turned,), _) = rewritten(Sample(source, made.shapes, made.meaning), "turned_sum")
    assert relative_error(made, turned) < 1e-6
    assert "broadcast(0, 128)" in turned
    assert "nisa.dma_copy(dst=row_rows, src=w[" in turned


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (with_rows(op="subtract"), "part is no product with a row that was loaded into all partitions"),
        (
            with_rows(fill="nisa.dma_copy(dst=row, src=w[0:128, :])"),
            "part is no product with a row that was loaded into all partitions",
        ),
        (
            with_rows(fill=f"{FILL}\n        nisa.activation(dst=row, op=nl.exp, data=row)"),
            "part is no product with a row that was loaded into all partitions",
        ),
        (with_rows(between="nisa.tensor_copy(dst=data, src=part)"), "part is used otherwise, too"),
        (with_rows(after="nisa.tensor_copy(dst=data, src=part)"), "part is used otherwise, too"),
        (
            with_rows(between="nisa.activation(dst=part, op=nl.exp, data=part)"),
            "part is not made by one instruction beside the one that adds it",
        ),
        (
            with_rows(between="nisa.activation(dst=data, op=nl.exp, data=data)"),
            "data changes before part is added",
        ),
        (with_rows(columns=448), "part is not made of blocks of 128 by 128"),
        (with_rows(columns=2048), "part and its sum do not fit in PSUM together"),
    ],
)
def test_what_is_no_sum_of_products_with_a_row_stays(made: Sample, reason: str):
    assert rewritten(made, "turned_sum") == ([], [f"turned_sum total: {reason}"])
