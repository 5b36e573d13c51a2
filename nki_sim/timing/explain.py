"""Explains why a kernel takes the time it is predicted to take.

An explanation holds the bottleneck, the critical path by source line, what every engine does and waits for,
the place under the roofline, memory over time, and the tiles that the compiler spills. All times are
predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.bottleneck import find_bottleneck
from nki_sim.timing.bounds import MinimalWork
from nki_sim.timing.critical_path import EngineTrack, PathPart, busy_ms, critical_path, engine_tracks
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.occupancy import MemoryOccupancy, measure_occupancy
from nki_sim.timing.roofline import Roofline, roofline
from nki_sim.timing.spill_origins import SpilledTile, find_spilled_tiles
from nki_sim.timing.tile_reuse import ReusedTile, find_reused_tiles
from nki_sim.timing.traffic import count_forms
from nki_sim.timing.what_if import WhatIf


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a kernel takes its predicted latency.

    `bottleneck` is `overhead`, an engine, `dependency` (engines wait for each other) or `underutilised`.
    `busy_ms` is how long each engine is predicted to run. The parts of `critical_path`, the costliest first,
    add up to `latency_ms`, of which `overhead_ms` is a kernel's fixed time. `reused` are tiles that make
    iterations of a loop wait for each other although they share no data.
    """

    bottleneck: str
    latency_ms: float
    overhead_ms: float
    busy_ms: dict[str, float]
    critical_path: list[PathPart]
    tracks: list[EngineTrack]
    reused: list[ReusedTile]
    transfers: TransferSummary
    roofline: Roofline
    occupancy: list[MemoryOccupancy]
    spilled: list[SpilledTile]


def explain_latency(
    forecast: Forecast, work: MinimalWork | None = None, ifs: Sequence[WhatIf] | None = None
) -> Explanation:
    """Explain a prediction, with the problem's minimal work and the what-ifs if the caller has them."""
    program, timeline = forecast.compiled.program, forecast.timeline
    busy = busy_ms(timeline)
    return Explanation(
        bottleneck=find_bottleneck(forecast, busy, ifs),
        latency_ms=forecast.latency_ms,
        overhead_ms=timeline.kernel_overhead_ns / 1e6,
        busy_ms=busy,
        critical_path=critical_path(program, timeline),
        tracks=engine_tracks(program, timeline),
        reused=find_reused_tiles(forecast.compiled, forecast.traced, timeline),
        transfers=summarize_transfers(program, forecast.target),
        roofline=roofline(forecast, work),
        occupancy=measure_occupancy(program, timeline, forecast.target),
        spilled=find_spilled_tiles(forecast.compiled),
    )


@dataclass(frozen=True, slots=True)
class TransferSummary:
    """`small` of `count` transfers are on the DMA engines no longer than the time `fixed_us` to issue one.

    `limited_by` is what takes most of the DMA engines' time: "fixed cost" or "bytes"; None if there are no
    transfers.
    """

    count: int
    small: int
    fixed_us: float
    average_bytes: float
    limited_by: Literal["bytes", "fixed cost"] | None


def summarize_transfers(program: Program, target: Target) -> TransferSummary:
    """Summarise the predicted costs of a program's transfers."""
    times = count_forms(program)
    moves = [index for index, form in enumerate(program.forms) if form.engine == "dma" and form.operands]
    forms = [program.forms[index] for index in moves]
    costs = [OPERATORS[form.op].cost(form, target) for form in forms]
    counts = np.array([times[index] for index in moves], dtype=np.int64)
    nbytes = np.array([max(item.nbytes for item in form.tiles) for form in forms], dtype=np.int64)
    took = counts * np.array([cost.busy_ns * max(1, cost.channels) for cost in costs])
    small = np.array([cost.busy_ns <= target.dma_issue_ns for cost in costs], dtype=bool)
    count = int(counts.sum())
    fixed = float(took[small].sum()) > float(took.sum()) / 2
    return TransferSummary(
        count=count,
        small=int(counts[small].sum()),
        fixed_us=target.dma_issue_ns / 1e3,
        average_bytes=float((counts * nbytes).sum()) / count if count else 0.0,
        limited_by=("fixed cost" if fixed else "bytes") if count else None,
    )
