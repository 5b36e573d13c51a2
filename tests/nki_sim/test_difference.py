"""Comparisons of kernels that differ in one thing: the one that is faster, and for what reason."""

from __future__ import annotations

from typing import Any

import pytest

from nki_sim import ArraySpec, targets
from nki_sim.timing.forecast import Forecast, forecast_program
from nki_sim.timing.forecast_difference import (
    FigureChange,
    ForecastDifference,
    PathChange,
    compare_forecasts,
    explain_difference,
)
from nki_sim.timing.units import format_size, format_time

TRN2 = targets.load("trn2")

EXP_AND_SUM = """
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in range(m // 128):
        t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[128 * i:128 * i + 128, :])
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        BODY
        nisa.dma_copy(dst=out[128 * i:128 * i + 128, :], src=total)
    return out
"""
APART = """nisa.activation(dst=t, op=nl.exp, data=t)
        nisa.tensor_tensor(t, t, t, nl.multiply)
        nisa.tensor_reduce(dst=total, op=nl.add, data=t, axis=1)"""
TOGETHER = "nisa.activation_reduce(dst=t, op=nl.exp, data=t, reduce_op=nl.add, reduce_res=total)"


def predicted(tracing: Any, body: str) -> Forecast:
    text = EXP_AND_SUM.replace("BODY", body)
    return forecast_program(tracing(text, ArraySpec((1024, 2048), "float32")), TRN2)


@pytest.fixture(scope="module")
def fused(tracing: Any) -> ForecastDifference:
    return compare_forecasts(predicted(tracing, APART), predicted(tracing, TOGETHER))


def test_the_faster_one_is_named_with_its_speedup(fused: ForecastDifference) -> None:
    assert fused.faster == "b"
    assert fused.speedup == pytest.approx(fused.a_ms / fused.b_ms)
    assert fused.speedup > 1.2


def test_parts_of_the_path_add_up_to_the_difference(fused: ForecastDifference) -> None:
    assert sum(part.a_ms for part in fused.path) == pytest.approx(fused.a_ms)
    assert sum(part.b_ms for part in fused.path) == pytest.approx(fused.b_ms)
    changes = [abs(part.a_ms - part.b_ms) for part in fused.path]
    assert changes == sorted(changes, reverse=True)
    for part in fused.path:
        moved = sum(change.b - change.a for change in part.operators)
        assert moved == pytest.approx(part.b_ms - part.a_ms)


def test_instructions_and_counters_that_changed_are_listed(fused: ForecastDifference) -> None:
    assert {change.name: (change.a, change.b) for change in fused.instructions} == {
        "scalar activation": (8, 0),
        "scalar activation_reduce": (0, 8),
        "vector tensor_tensor": (8, 0),
        "vector tensor_reduce": (8, 0),
    }
    names = [change.name for change in fused.counters]
    assert "vector_engine_instruction_count" in names
    assert "hbm_read_bytes" not in names
    weights = [change.weight for change in fused.counters]
    assert weights == sorted(weights, reverse=True)


def test_the_reason_is_what_went_away(fused: ForecastDifference) -> None:
    vector = next(part for part in fused.path if part.part == "vector")
    assert vector.busy is not None
    assert fused.reasons[0] == (
        f"vector is on the critical path for 0 us instead of {format_time(vector.a_ms, fused.a_ms)} "
        f"and busy for 0 us instead of {format_time(vector.busy.a, fused.a_ms)}, "
        "with 0 tensor_reduce instead of 8, 0 tensor_tensor instead of 8"
    )


def test_a_reason_for_being_faster_is_never_more_of_something() -> None:
    path = [
        PathChange("dma", 0.06, 0.01, FigureChange("busy_ms", 0.0250001, 0.025), []),
        PathChange("vector", 0.05, 0.04, FigureChange("busy_ms", 0.02, 0.03), []),
        PathChange("scalar", 0.01, 0.03, FigureChange("busy_ms", 0.01, 0.03), []),
    ]
    found = explain_difference("b", path, [FigureChange("vector tensor_tensor", 4, 6)], [])
    assert found == [
        "dma is on the critical path for 10 us instead of 60 us",
        "vector is on the critical path for 40 us instead of 50 us, with 6 tensor_tensor instead of 4",
    ]


def test_rounding_is_no_change() -> None:
    assert not PathChange("dma", 0.0085, 0.0085 + 5e-18, None, []).is_changed
    assert PathChange("dma", 0.0085, 0.0086, None, []).is_changed


def test_the_order_of_the_two_does_not_matter(tracing: Any, fused: ForecastDifference) -> None:
    other = compare_forecasts(predicted(tracing, TOGETHER), predicted(tracing, APART))
    assert (other.faster, other.speedup, other.reasons) == ("a", fused.speedup, fused.reasons)


def test_equal_kernels_have_nothing_between_them(tracing: Any) -> None:
    one = predicted(tracing, TOGETHER)
    found = compare_forecasts(one, one)
    assert (found.faster, found.speedup, found.reasons) == ("neither", 1.0, [])
    assert found.instructions == found.counters == []


def test_saved_traffic_is_a_reason(tracing: Any) -> None:
    twice = TOGETHER.replace("\n", "") + "\n        nisa.dma_copy(dst=t, src=x[128 * i:128 * i + 128, :])"
    found = compare_forecasts(predicted(tracing, twice), predicted(tracing, TOGETHER))
    assert found.faster == "b"
    assert "it reads from HBM 8.389 MB instead of 16.78 MB" in found.reasons


@pytest.mark.parametrize(
    ("ms", "among", "said"),
    [
        (0.0, None, "0 us"),
        (0.11084, None, "110.8 us"),
        (0.11084, 35.2, "0.1108 ms"),
        (35.2, 0.5, "35200 us"),
        (0.0000412, 2.0, "0 ms"),
        (0.00412, 2.0, "0.00412 ms"),
        (123456.7, None, "123457 ms"),
    ],
)
def test_times_have_the_unit_of_what_they_stand_among(ms: float, among: float | None, said: str) -> None:
    assert format_time(ms, among) == said


def test_sizes_have_the_unit_that_people_would_use() -> None:
    assert [format_size(nbytes) for nbytes in (0, 999, 2048, 8_388_608, 1.5e9)] == [
        "0 B", "999 B", "2.048 KB", "8.389 MB", "1.5 GB",
    ]  # fmt: skip
