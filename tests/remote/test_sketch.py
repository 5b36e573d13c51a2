"""Sketches tell how far arrays are apart, whatever NumPy makes them, and nobody hides from one unforeseen."""

from __future__ import annotations

import numpy as np
import pytest

from remote.judge import sketch
from seeds.inputs import dtype_of
from tests.support.sweeps import parametrize_sweep

BINS = sketch.BINS


def distance(found, truth, seed):
    sums, _ = sketch.unpack_sketch(sketch.pack_sketch(found, seed))
    return float(np.linalg.norm(sums - sketch.sketch_sums(truth, seed)[0]))


@parametrize_sweep("dtype", ["float32", "bfloat16", "float16"], quick=1)
def test_the_distance_is_estimated_within_six_deviations(dtype):
    generator = np.random.default_rng(1)
    truth = generator.standard_normal((300, 1000)).astype(dtype_of(dtype))
    found = (truth.astype(np.float32) * (1 + 0.01 * generator.standard_normal(truth.shape))).astype(
        truth.dtype
    )
    real = float(np.linalg.norm(found.astype(np.float64) - truth.astype(np.float64)))
    for seed in map(str, range(20)):
        assert real / (1 + 6 * (2 / BINS) ** 0.5) <= distance(found, truth, seed) <= real * 1.6


def test_one_element_that_differs_is_told_exactly():
    truth = np.random.default_rng(2).standard_normal(1 << 19).astype(np.float32)
    found = truth.copy()
    found[123_456] += 0.5
    assert distance(found, truth, "a seed") == pytest.approx(0.5, rel=1e-2)
    assert distance(truth, truth, "a seed") < 1e-4


def test_who_knows_another_seed_hides_nothing():
    """A change in the null space of one seed's sketch shows under every other."""
    truth = np.zeros(4096, dtype=np.float32)
    size = BINS + 44  # more elements than sums, so that some changes of them leave all sums as they are
    columns = np.stack([sketch.sketch_sums(row, "known")[0] for row in np.eye(size, 4096, dtype=np.float32)])
    _, _, right = np.linalg.svd(columns.T)
    found = truth.copy()
    found[:size] = right[-1]
    assert distance(found, truth, "known") < 1e-5
    assert distance(found, truth, "revealed later") > 0.5


def test_elements_that_are_not_finite_are_counted():
    array = np.ones(1000, dtype=np.float32)
    array[[3, 7]] = np.nan, np.inf
    _, bad = sketch.unpack_sketch(sketch.pack_sketch(array, "s"))
    assert bad == 2


def test_the_stream_is_the_one_that_hosts_draw():
    """Golden: both ends have to draw the same, under any version of NumPy."""
    sums, _ = sketch.sketch_sums(np.arange(1, 1001, dtype=np.float32), "a seed", 8)
    assert sums.tolist() == GOLDEN


GOLDEN = [2815.0, -2774.0, 292.0, -1627.0, 3095.0, 10442.0, 1440.0, 10551.0]


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 15, sketch.HEADER.pack(1.0, 0), sketch.HEADER.pack(float("nan"), 0) + bytes(8),
     sketch.HEADER.pack(1.0, -1) + bytes(8), sketch.HEADER.pack(1.0, 0) + np.float32(2).tobytes(),
     sketch.HEADER.pack(1.0, 0) + np.float32(np.nan).tobytes()],
    ids=range(7),
)  # fmt: skip
def test_bytes_that_are_no_sketch_are_refused(data):
    with pytest.raises(ValueError, match=r"sketch|range"):
        sketch.unpack_sketch(data)
