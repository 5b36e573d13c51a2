"""Memory in use over time: against accounts of random programs tile by tile, and tiles that share a place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.timing.forecast import Forecast, forecast_program
from nki_sim.timing.memory import tile_footprint
from nki_sim.timing.occupancy import MemoryOccupancy, measure_occupancy, thin_series
from tests.support.sweeps import scale_examples

TRN2 = targets.load("trn2")
WIDTHS = st.lists(st.integers(1, 12_000), min_size=1, max_size=8)


def found(predicted: Forecast, memory: str) -> MemoryOccupancy:
    uses = measure_occupancy(predicted.compiled.program, predicted.timeline, predicted.target)
    return next(use for use in uses if use.memory == memory)


def kernel_of(widths: list[int]) -> str:
    body = "".join(
        f"    t{n} = nl.ndarray((128, {width}), dtype=x.dtype, buffer=nl.sbuf)\n"
        f"    nisa.dma_copy(dst=t{n}, src=x[:, 0:{width}])\n"
        f"    nisa.tensor_reduce(r[:, {n}:{n + 1}], nl.add, t{n}, axis=1)\n"
        for n, width in enumerate(widths)
    )
    return (
        "@nki.jit\ndef kernel(x):\n    out = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.shared_hbm)\n"
        "    r = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.sbuf)\n    nisa.memset(r, 0.0)\n"
        f"{body}    nisa.dma_copy(dst=out, src=r)\n    return out\n"
    )


def used_at(predicted: Forecast, time: float) -> int:
    """Tile by tile: what is between the issue of its first access and the end of its last."""
    program, timeline, total = predicted.compiled.program, predicted.timeline, 0
    for tensor in range(len(program.tensor_sites)):
        mine = program.cells.instruction[program.cells.tensor == tensor]
        if program.site(tensor).buffer == "sbuf" and len(mine):
            begins, ends = timeline.issue_ns[mine].min(), timeline.end_ns[mine].max()
            total += tile_footprint(program.site(tensor), TRN2) if begins <= time < ends else 0
    return total


@settings(max_examples=scale_examples(25), deadline=None)
@given(widths=WIDTHS)
def test_use_is_that_of_the_tiles_which_are_there(widths: list[int], tracing: Any) -> None:
    predicted = forecast_program(tracing(kernel_of(widths), ArraySpec((128, 12_000), "float32")), TRN2)
    use = found(predicted, "sbuf")
    for at_ms, used in zip(use.at_ms, use.used, strict=True):
        assert used == used_at(predicted, at_ms * 1e6 + 1e-4)  # just behind the change, for rounding
    assert use.peak == max(use.used) <= use.capacity
    assert use.used[-1] == 0
    assert sum(holder.size for holder in use.holders) == use.peak
    ends = [*use.at_ms[1:], predicted.latency_ms - TRN2.kernel_overhead_ns / 1e6]
    area = sum(used * (end - at) for used, at, end in zip(use.used, use.at_ms, ends, strict=True) if end > at)
    assert use.mean == pytest.approx(area / ends[-1])


@pytest.mark.parametrize(
    ("second", "wanted"),
    [("(0, 0)", 256), ("(0, 128)", 128 + 256), ("(0, 1024)", 512), ("(0, 64)", 64 + 256)],
)
def test_tiles_that_share_a_place_count_once(second: str, wanted: int, tracing: Any) -> None:
    text = f"""
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
        a = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf, address=(0, 0))
        nisa.dma_copy(dst=a, src=x)
        b = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf, address={second})
        nisa.tensor_copy(b, a, engine=nisa.engine.vector)
        nisa.dma_copy(dst=out, src=b)
        return out
    """
    use = found(forecast_program(tracing(text, ArraySpec((128, 64), "float32")), TRN2), "sbuf")
    assert use.peak == wanted


def test_psum_is_counted_in_banks(tracing: Any, texts: Any) -> None:
    args = ArraySpec((256, 256), "float32"), ArraySpec((256, 1024), "float32")
    use = found(forecast_program(tracing(texts.matmul, *args), TRN2), "psum")
    assert (use.unit, use.capacity) == ("banks", 8)
    assert 1 <= use.peak <= 8
    assert {holder.name for holder in use.holders} <= {"flipped", "acc"}


def test_a_memory_that_is_not_used_is_empty(tracing: Any, texts: Any) -> None:
    use = found(forecast_program(tracing(texts.stream(), ArraySpec((128, 512), "float32")), TRN2), "psum")
    assert (use.peak, use.mean, use.used, use.holders) == (0, 0.0, [0], [])


@given(used=st.lists(st.integers(0, 100), min_size=1, max_size=60), points=st.integers(1, 20))
def test_thinning_keeps_every_peak(used: list[int], points: int) -> None:
    at_ms = np.cumsum(np.ones(len(used))).tolist()
    kept = thin_series(at_ms, used, points)
    assert len(kept) <= max(points, 1) or len(used) <= points
    assert max(value for _, value in kept) == max(used)
    assert kept[0][0] == at_ms[0]
