"""A row that is copied part by part is not made: its reader takes each part where the copy took it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.kernels import HEADER, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite

KERNEL = """
@nki.jit
def kernel(x, w, z):
    out = nl.ndarray((256, 1024), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        left = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=x[i * 128 : (i + 1) * 128, :])
        scale = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=scale, op=nl.add, data=left, axis=1)
        row = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
        {before}
        for j in nl.affine_range(2):
            acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            right = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=right, src=w[:, j * 512 : (j + 1) * 512])
            nisa.nc_matmul(dst=acc, stationary=left, moving=right)
            {copy}
        {between}
        other = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=other, src=z[i * 128 : (i + 1) * 128, :])
        done = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
        # The sum.
        {reader}
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=done)
    return out
"""
SHAPES = ((256, 128), (128, 1024), (256, 1024))
COPY = "nisa.tensor_copy(dst=row[:, j * 512 : (j + 1) * 512], src=acc)"
ADD = "nisa.tensor_tensor(dst=done, data1=row, data2=other, op=nl.add)"
SITE = "copy to row[:, j * 512 : (j + 1) * 512]"
PARTS = {"by": "compute each part where it is copied"}


def product(x: NDArray[np.float64], w: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([x[:128].T @ w, x[128:].T @ w])


def sample(
    reader: str = ADD, copy: str = COPY, before: str = "pass", between: str = "pass", scaled: bool = False
) -> Sample:
    def meaning(
        x: NDArray[np.float64], w: NDArray[np.float64], z: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        return product(x, w) * (x.sum(axis=1, keepdims=True) if scaled else 1) + (0 if scaled else z)

    lines = KERNEL.format(reader=reader, copy=copy, before=before, between=between).splitlines()
    source = HEADER + "\n".join(line for line in lines if line.strip() != "pass") + "\n"
    return Sample(source, SHAPES, meaning)


def test_what_reads_the_row_reads_each_product_instead() -> None:
    made = sample()
    source = find_rewrite(made, "forward", SITE, PARTS)
    assert relative_error(made, source) < 2e-5
    assert "row" not in source
    loop = source.index("for j in")
    assert source.index("src=z[") < loop < source.index("# The sum.") < source.index("src=done")
    assert "dst=done[:, j * 512 : (j + 1) * 512], data1=acc, data2=other[:, j * 512 : (j + 1) * 512]" in (
        " ".join(source.split()).replace("j * 512:(j", "j * 512 : (j")
    )


def test_a_number_for_each_row_stays_as_it_is() -> None:
    made = sample("nisa.tensor_scalar(dst=done, data=row, op0=nl.multiply, operand0=scale)", scaled=True)
    source = find_rewrite(made, "forward", SITE, PARTS)
    assert relative_error(made, source) < 2e-5
    assert "operand0=scale" in source


SCALE = "nisa.tensor_scalar(dst=done, data=row, op0=nl.multiply, operand0=scale)"
SUM = "nisa.tensor_reduce(dst=scale, op=nl.add, data=left, axis=1)"
HALF_COPY = "nisa.tensor_copy(dst=row[:, 0:512], src=acc)"
HALF_ADD = "nisa.tensor_tensor(dst=done[:, 0:512], data1=row[:, 0:512], data2=other[:, 0:512], op=nl.add)"
SCAN = "nisa.tensor_tensor_scan(dst=done, data0=row, data1=other, initial=0.0, op0=nl.multiply, op1=nl.add)"
CHANGED = f"{COPY}\n            nisa.tensor_copy(dst=scale, src=acc[:, 0:1])"
LATE = f"for k in nl.affine_range(1):\n            {SUM}"


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (sample(copy=HALF_COPY), "the copies do not fill the columns of row one after the other"),
        (sample(before="nisa.memset(dst=row, value=0.0)"), "row is not copied in parts for one reader"),
        (sample(HALF_ADD), "done is not made by this tensor_tensor alone"),
        (sample(copy=COPY.replace("], src", "][:, 0:512], src")), "not said by one slice"),
        (sample(SCAN), "tensor_tensor_scan does not compute column by column"),
        (sample(SCALE, copy=CHANGED), "scale changes, or is used, in between"),
        (sample(SCALE, between=LATE), "what tensor_scalar needs is made in a loop after the copies"),
    ],
)
def test_a_row_that_is_more_than_its_parts_stays(made: Sample, reason: str) -> None:
    (copied,) = re.findall(r"tensor_copy\(dst=(row\[.*), src=acc\)", made.source)
    site = f"copy to {copied}"
    assert reason in find_refusal(made, "forward", site)
