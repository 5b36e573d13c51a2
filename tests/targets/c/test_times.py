"""What times say: intervals of medians, when to stop, and the latency that follows."""

from __future__ import annotations

import random

import pytest

from targets.c.evaluator import MeasuredKernel, make_benchmark
from targets.c.jailed.output_agreement import have_equal_outputs
from targets.c.jailed.paired_times import Interval, compare_times, is_decided
from targets.c.jailed.shared_memory import SharedArray


def _times(middle: float, count: int = 60, seed: int = 1) -> list[int]:
    chance = random.Random(seed)
    return [int(middle * chance.lognormvariate(0, 0.05)) for _ in range(count)]


def test_drift_that_both_kernels_share_cancels_in_the_ratio() -> None:
    drift = [1 + 2 * number / 60 for number in range(60)]
    mine = [int(100_000 * one) for one in drift]
    other = [int(200_000 * one) for one in drift]
    assert compare_times([mine, other]).width_ratio < 1e-3
    assert compare_times([mine]).width_ratio > 0.2


def test_measuring_stops_when_the_answer_is_known() -> None:
    assert is_decided([_times(3e6), _times(1e6, seed=2)])  # hopelessly slow
    assert not is_decided([_times(1e6), _times(1.02e6, seed=2)])
    assert is_decided([[1_000_000] * 20])


def test_a_kernel_that_cannot_be_told_from_its_parent_gets_its_latency() -> None:
    own = Interval(1e6, 0.9e6, 1.1e6)
    alike = make_benchmark(MeasuredKernel(own, Interval(0.99, 0.98, 1.01), 20), 2.0)
    assert (alike.latency_ms, alike.lo_ms, alike.hi_ms) == (2.0, 1.96, 2.02)
    faster = make_benchmark(MeasuredKernel(own, Interval(0.5, 0.49, 0.52), 20), 2.0)
    assert faster.latency_ms == 1.0
    alone = make_benchmark(MeasuredKernel(own, None, 20), None)
    assert alone.latency_ms == pytest.approx(1.0)
    assert not alone.predicted


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "bfloat16"])
def test_outputs_agree_up_to_a_tolerance_of_any_type(dtype: str) -> None:
    import numpy as np

    from seeds.inputs import dtype_of

    kind = dtype_of(dtype)
    values = np.arange(1, 301).astype(kind)
    mine, other = (SharedArray(values.nbytes, is_input=False) for _ in range(2))
    mine.data[:] = other.data[:] = values.tobytes()
    same = {"tolerance": 1e-3, "chance": random.Random(1)}
    assert have_equal_outputs([mine], [other], [dtype], **same)  # type: ignore[arg-type]
    other.data[:] = (values * 2).astype(kind).tobytes()
    assert not have_equal_outputs([mine], [other], [dtype], **same)  # type: ignore[arg-type]
    other.poison()
    assert not have_equal_outputs([mine], [other], [dtype], **same)  # type: ignore[arg-type]


def test_writing_beside_an_array_is_seen() -> None:
    array = SharedArray(100, is_input=False)
    assert array.is_intact()
    array._mapping[array._start - 1] = 0
    assert not array.is_intact()
