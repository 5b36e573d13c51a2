"""Which rewrites save work, by the busy times of a kernel's engines."""

from __future__ import annotations

import pytest

from targets.nki.rewrites.estimate import ENGINES, StaticEstimate, saves_work

BUSY = dict(zip(ENGINES, (10.0, 100.0, 50.0, 80.0, 40.0, 5.0), strict=True))


def estimate_of(**busy: float) -> StaticEstimate:
    return StaticEstimate(BUSY | busy, 0, 0, 100.0, 0)


@pytest.mark.parametrize(("busy", "saves"), [
    ({}, False),
    ({"gpsimd": 60.0}, True),
    ({"gpsimd": 79.0}, False),  # less than 1 % of the three
    ({"gpsimd": 60.0, "tensor": 90.0, "dma": 80.0}, True),
    ({"gpsimd": 0.0, "vector": 101.0}, False),  # moved, in part
    ({"tensor": 0.0, "dma": 0.0}, False),
])  # fmt: skip
def test_work_is_saved_on_engines_that_can_do_each_others(busy, saves):
    assert saves_work(estimate_of(), estimate_of(**busy)) is saves
