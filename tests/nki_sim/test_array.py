"""Tiles of the tensor engine's array: what runs side by side, and what waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nki_sim import ArraySpec, targets
from nki_sim.timing.activity import active_ns
from nki_sim.timing.schedule import QUEUES, Timeline, schedule

TRN2 = targets.load("trn2")
KERNEL = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(t, x)
    for i in range(COUNT):
        for rows, tile in TILES:
            p = nl.ndarray((32, 512), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(p, t[rows:rows + HEIGHT, 0:32], t[rows:rows + HEIGHT, :], **tile)
    nisa.dma_copy(out, t)
    return out
"""


def tile(row: int, column: int = 0, *, height: int = 64, width: int = 128) -> str:
    return f"dict(tile_position=({row}, {column}), tile_size=({height}, {width}))"


def timeline_of(
    tracing: Any, tiles: list[tuple[int, str]], *, height: int = 64, count: int = 400
) -> Timeline:
    pairs = ", ".join(f"({row}, {text})" for row, text in tiles)
    text = KERNEL.replace("TILES", f"({pairs},)").replace("COUNT", str(count)).replace("HEIGHT", str(height))
    return schedule(tracing(text, ArraySpec((128, 512), "bfloat16"), target="trn2"), TRN2)


def worked_ns(timeline: Timeline) -> float:
    return active_ns(timeline, ("tensor",))


@pytest.mark.parametrize(
    ("tiles", "height", "at_once"),
    [
        ([(0, tile(0)), (64, tile(64))], 64, 2),
        ([(0, tile(0, height=32)), (32, tile(32, height=32)), (64, tile(64, height=32))], 32, 3),
        ([(0, tile(0, 0, width=32)), (0, tile(0, 32, width=32))], 64, 2),
        ([(0, tile(0)), (0, tile(0))], 64, 1),
        ([(0, "{}"), (64, "{}")], 64, 1),
        ([(0, tile(0)), (64, "{}")], 64, 1),
        ([(0, tile(0)), (32, tile(32, height=32))], 32, 1),
    ],
)
def test_products_on_tiles_that_do_not_overlap_run_at_the_same_time(
    tiles: list[tuple[int, str]], height: int, at_once: int, tracing: Any
) -> None:
    together = worked_ns(timeline_of(tracing, tiles, height=height))
    alone = worked_ns(timeline_of(tracing, [(0, "{}")], height=height, count=400 * len(tiles)))
    assert together == pytest.approx(alone / at_once, rel=0.05)


def test_products_start_in_the_order_they_are_taken(tracing: Any) -> None:
    timeline = timeline_of(tracing, [(0, tile(0)), (64, tile(64)), (0, tile(0)), (0, "{}")])
    mine = timeline.queue == QUEUES.index("tensor")
    start, end = timeline.start_ns[mine], timeline.end_ns[mine]
    assert (np.diff(start) >= 0).all()
    whole = np.arange(len(start)) % 4 == 3
    assert (start[whole][1:] >= end[:-4][whole[:-4]]).all()
    for number in np.flatnonzero(whole).tolist():
        assert start[number] >= end[:number].max()


def test_the_path_through_tiles_adds_up(tracing: Any) -> None:
    timeline = timeline_of(tracing, [(0, tile(0)), (64, tile(64)), (0, "{}")])
    steps = timeline.critical_path()
    assert steps[0].begin_ns == 0.0
    assert sum(step.end_ns - step.begin_ns for step in steps) == pytest.approx(timeline.span_ns)
