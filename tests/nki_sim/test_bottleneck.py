"""The bottleneck class by its thresholds, waits for places, and what transfers cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nki_sim import ArraySpec, targets
from nki_sim.timing import bottleneck as classes
from nki_sim.timing.bottleneck import find_bottleneck
from nki_sim.timing.explain import Explanation, explain_latency, summarize_transfers
from nki_sim.timing.forecast import Forecast, forecast_program
from nki_sim.timing.tile_reuse import reused_tensors
from nki_sim.timing.what_if import NO_DEPENDENCES, WhatIf

TRN2 = targets.load("trn2")

IN_PLACE = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    BEFORE
    for i in range(x.shape[0] // 128):
        INSIDE
        rows = nl.ds(128 * i, 128)
        nisa.dma_copy(dst=t, src=x[rows, :])
        nisa.activation(dst=t, op=nl.exp, data=t)
        nisa.dma_copy(dst=out[rows, :], src=t)
    return out
"""
TILE = "t = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)"
PLACED = TILE.replace("nl.sbuf)", "nl.sbuf, address=(0, 0))")


def predicted(tracing: Any, *, outside: bool, rows: int = 1024, tile: str = TILE) -> Forecast:
    before, inside = (tile, "pass") if outside else ("pass", tile)
    text = IN_PLACE.replace("BEFORE", before).replace("INSIDE", inside)
    return forecast_program(tracing(text, ArraySpec((rows, 512), "float32")), TRN2)


@pytest.fixture(scope="module")
def serial(tracing: Any) -> Forecast:
    return predicted(tracing, outside=True, tile=PLACED)


@pytest.fixture(scope="module")
def explained(serial: Forecast) -> Explanation:
    return explain_latency(serial)


def saving(**percents: float) -> list[WhatIf]:
    names = {"dependences": NO_DEPENDENCES}
    return [
        WhatIf(names.get(name, f"{name} free"), 1.0 - percent / 100, percent / 100, percent)
        for name, percent in percents.items()
    ]


@pytest.mark.parametrize(
    ("shares", "ifs", "named"),
    [
        ({"dma": 0.81, "vector": 0.1}, {"dependences": 90.0}, "dma"),
        ({"dma": 0.79, "vector": 0.1}, {"dependences": 20.0, "dma": 60.0}, "dependency"),
        ({"dma": 0.79, "vector": 0.5}, {"dependences": 19.0, "dma": 10.0, "vector": 12.0}, "vector"),
        ({"dma": 0.29, "vector": 0.1}, {"dependences": 19.0, "dma": 10.0}, "underutilised"),
        ({"dma": 0.31, "vector": 0.1}, {"dependences": 19.0, "dma": 10.0}, "dma"),
    ],
)
def test_classes_have_thresholds(
    shares: dict[str, float], ifs: dict[str, float], named: str, serial: Forecast
) -> None:
    span_ms = serial.timeline.span_ns / 1e6
    busy = {name: share * span_ms for name, share in shares.items()}
    assert find_bottleneck(serial, busy, saving(**ifs)) == named


def test_mostly_fixed_time_is_overhead(tracing: Any) -> None:
    found = explain_latency(predicted(tracing, outside=False, rows=128))
    assert found.overhead_ms > classes.OVERHEAD_RATIO * found.latency_ms
    assert found.bottleneck == "overhead"


def test_long_programs_go_by_what_is_busy(serial: Forecast, monkeypatch: Any) -> None:
    monkeypatch.setattr(classes, "MAX_WHAT_IFS", 1)
    monkeypatch.setattr(classes, "what_ifs", None)  # never called
    span_ms = serial.timeline.span_ns / 1e6
    assert find_bottleneck(serial, {"dma": 0.29 * span_ms}) == "underutilised"
    assert find_bottleneck(serial, {"dma": 0.31 * span_ms}) == "dependency"


def test_iterations_that_share_a_tile_wait_for_it(explained: Explanation) -> None:
    assert explained.bottleneck == "dependency"
    (tile,) = explained.reused
    assert (tile.name, tile.waits, tile.declared) == ("t", 7, True)
    dma = next(track for track in explained.tracks if track.engine == "dma")
    scalar = next(track for track in explained.tracks if track.engine == "scalar")
    assert {wait.cause for wait in scalar.waits} <= {"dependence", "table", "latency"}
    # Each load but the first waits for the store of the iteration before.
    assert {wait.cause for wait in dma.waits if wait.on} <= {"dependence", "reuse", "latency"}


def test_a_wait_until_a_tile_may_be_overwritten_is_reuse(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 8192), dtype=x.dtype, buffer=nl.sbuf, address=(0, 0))
        for i in range(8):
            nisa.memset(t, value=i)
            nisa.dma_copy(dst=out[128 * i:128 * i + 128, :], src=t)
        return out
    """
    found = explain_latency(forecast_program(tracing(text, ArraySpec((1024, 8192), "float32")), TRN2))
    waits = {track.engine: track.waits for track in found.tracks}
    (memsets,) = waits.keys() - {"dma"}
    assert (waits[memsets][0].cause, waits[memsets][0].on) == ("reuse", "dma")
    assert {(wait.cause, wait.on) for wait in waits["dma"]} >= {("dependence", memsets)}
    assert [tile.name for tile in found.reused] == ["t"]


@pytest.mark.parametrize("outside", [False, True])
def test_a_tile_that_the_compiler_places_is_not_reused(
    outside: bool, tracing: Any, explained: Explanation
) -> None:
    """Wherever it is declared: each value has a place of its own."""
    found = explain_latency(predicted(tracing, outside=outside))
    assert found.reused == []
    assert found.latency_ms < 0.8 * explained.latency_ms


def test_results_and_places_are_told_apart(serial: Forecast) -> None:
    program = serial.compiled.program
    # Load, activation in place, store, next load.
    found = reused_tensors(program, np.array([1, 2, 3, 3]), np.array([0, 1, 2, 1]))
    tile = int(program.cells.tensor[program.cells.first[1]])
    assert found.tolist() == [-1, -1, tile, tile]
    assert program.site(tile).name == "t"


def test_transfers_count_the_small_ones(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 8192), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        for i in range(3):
            nisa.dma_copy(dst=out[:, 4 * i:4 * i + 4], src=t[:, 4 * i:4 * i + 4])
        return out
    """
    found = summarize_transfers(tracing(text, ArraySpec((128, 8192), "float32")), TRN2)
    large, small = 128 * 8192 * 4, 128 * 4 * 4
    assert (found.count, found.small, found.limited_by) == (4, 3, "bytes")
    assert found.average_bytes == (large + 3 * small) / 4
    assert found.fixed_us == TRN2.dma_issue_ns / 1e3
