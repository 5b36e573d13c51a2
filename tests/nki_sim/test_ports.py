"""Ports: which engines get in each other's way on which generation, and which do not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from nki_sim import ArraySpec, targets
from nki_sim.timing.schedule import PORT, QUEUES, Timeline, schedule

KERNEL = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = [nl.ndarray(x.shape, dtype=nl.DTYPE, buffer=nl.sbuf) for _ in range(4)]
    for t in tiles:
        nisa.memset(t, 1.0)
    p, q = (nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum) for _ in range(2))
    nisa.nc_matmul(p, tiles[0][:, 0:128], tiles[1])
    nisa.nc_matmul(q, tiles[0][:, 0:128], tiles[1])
    for i in range(4):
        FIRST
        SECOND
    nisa.dma_copy(out, x)
    return out
"""

VECTOR = "nisa.tensor_copy(tiles[2], tiles[1])"
GPSIMD = "nisa.tensor_copy(tiles[3], tiles[0], engine=nisa.engine.gpsimd)"
SCALAR = "nisa.activation(tiles[3], nl.copy, tiles[0])"
VECTOR_PSUM = "nisa.tensor_copy(tiles[2], p)"
SCALAR_SAME = "nisa.activation(tiles[3], nl.copy, p)"
SCALAR_OTHER = "nisa.activation(tiles[3], nl.copy, q)"


def timeline_of(tracing: Any, name: str, dtype: str, pair: tuple[str, str]) -> Timeline:
    text = KERNEL.replace("DTYPE", dtype).replace("FIRST", pair[0]).replace("SECOND", pair[1])
    return schedule(tracing(text, ArraySpec((128, 512), "float32"), target=name), targets.load(name))


@pytest.mark.parametrize(
    ("name", "dtype", "pair", "shared"),
    [
        ("trn1", "float32", (VECTOR, GPSIMD), True),
        ("trn2", "float32", (VECTOR, GPSIMD), False),
        ("trn2", "bfloat16", (VECTOR, GPSIMD), True),
        ("trn1", "float32", (VECTOR, SCALAR), False),
        ("trn1", "float32", (VECTOR_PSUM, SCALAR_OTHER), True),
        ("trn2", "float32", (VECTOR_PSUM, SCALAR_SAME), True),
        ("trn2", "float32", (VECTOR_PSUM, SCALAR_OTHER), False),
    ],
)
def test_who_shares_a_port_waits(
    name: str, dtype: str, pair: tuple[str, str], shared: bool, tracing: Any
) -> None:
    timeline = timeline_of(tracing, name, dtype, pair)
    assert (PORT in timeline.cause[6:].tolist()) == shared
    both = sorted(zip(timeline.start_ns[6:14], timeline.end_ns[6:14], strict=True))
    apart = all(one[1] <= other[0] for one, other in pairwise(both))
    assert apart == shared
    if shared:
        waiting = np.flatnonzero(timeline.cause == PORT)
        assert np.all(timeline.queue[timeline.blocker[waiting]] != timeline.queue[waiting])


DESCRIPTORS = "nisa.dma_copy(tiles[3], x, dge_mode=nisa.dge_mode.MODE)"


@pytest.mark.parametrize(
    ("name", "dtype", "mode", "shared"),
    [
        ("trn1", "float32", "swdge", True),
        ("trn1", "float32", "unknown", False),
        ("trn2", "float32", "swdge", False),
        ("trn2", "bfloat16", "swdge", True),
        ("trn2", "bfloat16", "none", False),
    ],
)
def test_gpsimd_writes_descriptors_to_sbuf(
    name: str, dtype: str, mode: str, shared: bool, tracing: Any
) -> None:
    pair = (VECTOR, DESCRIPTORS.replace("MODE", mode))
    timeline = timeline_of(tracing, name, dtype, pair)
    assert (PORT in timeline.cause[6:].tolist()) == shared


PLACED = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t, u = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
    p = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.psum, address=(0, 0))
    q = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum, address=(0, 2048 * BANK))
    for part in (p[:, 0:512], p[:, 512:1024], q):
        nisa.memset(part, 1.0)
    nisa.tensor_copy(t, p[:, COLUMNS])
    nisa.activation(u, nl.copy, q)
    nisa.dma_copy(out, x)
    return out
"""


@pytest.mark.parametrize(("columns", "bank", "same"), [
    ("512:1024", 1, True), ("512:1024", 2, False), ("0:512", 1, False), ("0:512", 0, True),
])  # fmt: skip
def test_placed_tiles_share_the_banks_they_lie_in(columns: str, bank: int, same: bool, tracing: Any) -> None:
    text = PLACED.replace("COLUMNS", columns).replace("BANK", str(bank))
    timeline = schedule(tracing(text, ArraySpec((128, 512), "float32")), targets.load("trn2"))
    first, second = (
        int(np.flatnonzero(timeline.queue == QUEUES.index(name))[-1]) for name in ("vector", "scalar")
    )
    overlap = timeline.start_ns[second] < timeline.end_ns[first]
    assert overlap != same
