"""What measurements change in predictions: factors by kind, one exponent, and little while there are few."""

from __future__ import annotations

import random
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.fleet.residual_model import MeasuredPair, ResidualModel, fit_residuals

LATENCIES = st.floats(min_value=1e-3, max_value=1e3)
PAIRS = st.lists(
    st.builds(MeasuredPair, st.sampled_from(["dma", "tensor"]), LATENCIES, LATENCIES), max_size=30
)


def test_nothing_measured_changes_nothing() -> None:
    assert fit_residuals([]) == ResidualModel()
    assert ResidualModel().correct("dma", 3.0) == pytest.approx(3.0)


@given(pairs=PAIRS, one=LATENCIES, other=LATENCIES)
def test_the_order_within_a_kind_stays(pairs: list[MeasuredPair], one: float, other: float) -> None:
    model = fit_residuals(pairs)
    if one < other:
        assert model.correct("dma", one) <= model.correct("dma", other)


def test_kinds_that_are_off_by_different_factors_are_told_apart() -> None:
    rng = random.Random(2)
    truth = {"dma": 1.0, "tensor": 2.0}
    pairs = [
        MeasuredPair(kind, ms, factor * ms * rng.gauss(1, 0.02))
        for kind, factor in truth.items()
        for ms in (rng.uniform(0.5, 2) for _ in range(40))
    ]
    model = fit_residuals(pairs)
    assert log(model.correct("dma", 1.0)) == pytest.approx(0.0, abs=0.1)
    assert log(model.correct("tensor", 1.0)) == pytest.approx(log(2.0), abs=0.1)
    assert model.correct("dma", 1.5) < model.correct("tensor", 1.0)  # predictions alone say the opposite


def test_one_measurement_moves_less_than_many() -> None:
    off = MeasuredPair("dma", 1.0, 3.0)
    once, often = (fit_residuals([off] * count).correct("dma", 1.0) for count in (1, 50))
    assert 1.0 < once < 2.0 < often < 3.0
