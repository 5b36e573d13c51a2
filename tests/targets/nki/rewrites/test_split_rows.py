"""Splitting by rows: tiles for the parts of a tile that are used by themselves, and what must stay whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.kernels import HEADER, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite

KERNEL = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        # Both halves at once.
        t = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src={load})
        low = nl.ndarray((64, 128), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=low, src=t[64:128, :])
        u = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=u[0:64, :], data1=t[0:64, :], data2=low, op=nl.add)
        nisa.tensor_tensor(dst=u[64:128, 0:128], data1={upper}, data2=low, op=nl.subtract)
        {more}
        nisa.dma_copy(dst=out[:, i * 128 : (i + 1) * 128], src=u)
    return out
"""
LOAD = "x[128:256, i * 128 : (i + 1) * 128]"
UPPER = "t[0:64, :]"


def add_and_subtract(x: NDArray[np.float32]) -> NDArray[np.float32]:
    upper, lower = x[128:192], x[192:256]
    return np.concatenate([upper + lower, upper - lower])


def sample(load: str = LOAD, upper: str = UPPER, more: str = "pass") -> Sample:
    source = HEADER + KERNEL.format(load=load, upper=upper, more=more)
    return Sample(source, ((256, 512),), add_and_subtract)


def split_tiles(made: Sample) -> str:
    return find_rewrite(made, "split_rows", "all tiles", {})


def test_each_half_has_a_tile_and_transfers_move_half_after_half():
    made = sample()
    source = split_tiles(made)
    assert relative_error(made, source) < 1e-6
    assert "# Both halves at once.\n        t_0 = nl.ndarray((64, 128)" in source
    assert "nisa.dma_copy(dst=t_0, src=x[128:192, i * 128 : (i + 1) * 128])" in source
    assert "nisa.dma_copy(dst=t_64, src=x[192:256, i * 128 : (i + 1) * 128])" in source
    assert "nisa.tensor_copy(dst=low, src=t_64)" in source
    assert "nisa.tensor_tensor(dst=u_64[:, 0:128], data1=t_0, data2=low, op=nl.subtract)" in source
    assert "nisa.dma_copy(dst=out[64:128, i * 128 : (i + 1) * 128], src=u_64)" in source


def test_then_the_copy_goes_and_iterations_share_the_partitions():
    made = sample()
    source = split_tiles(made)
    source = find_rewrite(replace(made, source=source), "forward", "copy to low", {"by": "read the source"})
    source = find_rewrite(replace(made, source=source), "stack", "i", {"iterations": 2})
    assert relative_error(made, source) < 1e-6
    assert "tensor_copy" not in source
    assert source.count("nisa.tensor_tensor(") == 2


def test_rows_that_nothing_uses_have_no_tile():
    made = sample(upper="low")
    source = made.source.replace("nisa.dma_copy(dst=t, src=", "nisa.dma_copy(dst=t[64:128, :], src=")
    source = source.replace(LOAD, "x[192:256, i * 128 : (i + 1) * 128]").replace(
        "data1=t[0:64, :]", "data1=low"
    )
    doubled = Sample(source, made.shapes, lambda x: np.concatenate([2 * x[192:256], 0 * x[192:256]]))
    split = split_tiles(doubled)
    assert relative_error(doubled, split) < 1e-6
    assert "t_64 = nl.ndarray((64, 128)" in split
    assert "t_0" not in split


SCALE = "nisa.tensor_scalar(dst={0}, data={0}, op0=nl.multiply, operand0=1.0)"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"upper": "t[32:96, :]"}, "the parts of t overlap"),
        ({"more": SCALE.format("t")}, "tensor_scalar takes all of t"),
        ({"upper": "t[0:64, :].permute((0, 1))"}, "takes t rearranged"),
        ({"load": "x[0:256:2, i * 128 : (i + 1) * 128]"}, "a transfer of x skips rows"),
        ({"load": "x[128:256, i * 128 : (i + 1) * 128].permute((0, 1))"}, "a transfer rearranges t"),
    ],
)
def test_a_tile_that_is_not_used_in_parts_stays_whole(changes: dict[str, str], reason: str):
    split = split_tiles(sample(**changes))
    assert "t_64" not in split
    assert "u_64" in split  # the other tile can be split
    neither = {**changes, "more": f"{changes.get('more', 'pass')}\n        {SCALE.format('u')}"}
    assert reason in find_refusal(sample(**neither), "split_rows", "all tiles")
