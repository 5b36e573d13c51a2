"""Tiles that each iteration makes or loads again are kept, as the legacy compiler keeps them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from targets.nki.rewrites.kept_tiles import keep_tiles
from targets.nki.rewrites.reader import read_kernel
from tests.support.kernels import HEADER, TARGET, Sample, relative_error

KERNEL = """
@nki.jit
def kernel(x, w, g):
    out = nl.ndarray((1024, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(8):
        rows = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[i * 128 : (i + 1) * 128, :])
        scale = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=scale, src=g[0:1, :].broadcast(0, 128))
        for k in nl.affine_range({count}):
            part = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=part, src=w[k * 128 : (k + 1) * 128, :])
            double = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=double, data=part, op0=nl.multiply, operand0=2.0)
            nisa.tensor_tensor(dst=rows, data1=rows, data2=double, op=nl.add)
        scaled = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=scaled, data1=rows, data2=scale, op=nl.multiply)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=scaled)
    return out
"""


def meaning(x: NDArray[np.float64], w: NDArray[np.float64], g: NDArray[np.float64]) -> NDArray[np.float64]:
    return (x + np.tile(2 * w.reshape(-1, 128, 512).sum(axis=0), (8, 1))) * g


def sample(count: int) -> Sample:
    source = HEADER + KERNEL.format(count=count)
    return Sample(source, ((1024, 512), (128 * count, 512), (1, 512)), meaning)


@pytest.mark.parametrize(
    ("count", "computed", "sites"),
    [
        (4, True, ["double out of i", "scale out of i"]),
        (4, False, ["part out of i", "scale out of i"]),
    ],
)
def test_what_iterations_share_is_kept_while_there_is_room(
    count: int, computed: bool, sites: list[str]
) -> None:
    made = sample(count)
    kernel = read_kernel(made.source, made.arguments, TARGET)
    kept = keep_tiles(kernel, made.arguments, TARGET, computed=computed)
    assert [one.site for one in kept] == sites
    source = kept[-1].source
    # What is loaded stays in the loop's first iteration; what is computed comes before the loop.
    assert source.count("if i == 0:") == len(set(sites) - {"double out of i"})
    assert (source.index("nisa.tensor_scalar(") < source.index("for i in")) == ("double out of i" in sites)
    assert relative_error(made, kept[-1].source) < 2e-6


@pytest.mark.parametrize("computed", [True, False])
def test_nothing_is_kept_if_not_all_that_is_loaded_again_fits(computed: bool) -> None:
    made = sample(120)  # 240 KiB of each partition
    kernel = read_kernel(made.source, made.arguments, TARGET)
    assert keep_tiles(kernel, made.arguments, TARGET, computed=computed) == []


def test_computed_tiles_leave_room_for_loaded_ones() -> None:
    made = sample(20)
    wide = "double = nl.ndarray((128, {}), dtype=nl.float32, buffer=nl.sbuf)"
    source = made.source.replace(wide.format(512), wide.format(2048))
    source = source.replace("double, data=part", "double[:, 0:512], data=part").replace(
        "data2=double", "data2=double[:, 0:512]"
    )
    again = "nisa.tensor_tensor(dst=rows, data1=rows, data2=part, op=nl.add)"
    line = "nisa.tensor_tensor(dst=rows, data1=rows, data2=double[:, 0:512], op=nl.add)"
    source = source.replace(line, f"{line}\n            {again}")
    kernel = read_kernel(source, made.arguments, TARGET)
    sites = ["part out of i", "scale out of i"]
    for computed in (True, False):
        found = keep_tiles(kernel, made.arguments, TARGET, computed=computed)
        assert sorted(one.site for one in found) == sites


def test_nothing_is_kept_if_the_tiles_do_not_fit_as_they_are() -> None:
    made = sample(4)
    declared = "rows = nl.ndarray((128, {}), dtype=nl.float32, buffer=nl.sbuf)"
    source = made.source.replace(declared.format(512), declared.format(65536)).replace(
        "=rows", "=rows[:, 0:512]"
    )
    kernel = read_kernel(source, made.arguments, TARGET)
    assert keep_tiles(kernel, made.arguments, TARGET, computed=True) == []
