"""The trace of a predicted run against the format's rules and against the schedule it shows."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from nki_sim import ArraySpec, targets
from nki_sim.timing import chrome_trace
from nki_sim.timing.forecast import Forecast, forecast_program
from nki_sim.timing.occupancy import measure_occupancy

TRN2 = targets.load("trn2")
NUMBER = (int, float)

TWO_CORES = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = nl.ds(64 * nl.program_id(0), 64)
    t = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[rows, :])
    nisa.dma_copy(dst=out[rows, :], src=t)
    return out

kernel = kernel[2]
"""

# Transfers of one queue that overlap: each on DMA engines of its own.
NARROW = """
@nki.jit
def kernel(x):
    out = nl.ndarray((4, 8192), dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 8192), dtype=x.dtype, buffer=nl.sbuf)
    for i in range(4):
        row = t[32 * i:32 * i + 1, :]
        nisa.dma_copy(dst=row, src=x[i:i + 1, :])
        nisa.dma_copy(dst=out[i:i + 1, :], src=row)
    return out
"""

# Descriptors that GpSimd makes, and functions that take turns.
SOFTWARE = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(4):
        t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[:, 64 * i:64 * i + 64], dge_mode=nisa.dge_mode.swdge)
        nisa.activation(dst=t, op=(nl.exp, nl.tanh)[i % 2], data=t)
        nisa.dma_copy(dst=out[:, 64 * i:64 * i + 64], src=t)
    return out
"""

Event = dict[str, Any]


def traced(predicted: Forecast) -> Event:
    file = io.StringIO()
    chrome_trace.write_chrome_trace(predicted, file)
    found: Event = json.loads(file.getvalue())
    return found


@pytest.fixture(scope="module")
def predicted(tracing: Any, texts: Any) -> Forecast:
    args = ArraySpec((256, 256), "float32"), ArraySpec((256, 1024), "float32")
    return forecast_program(tracing(texts.matmul, *args), TRN2)


@pytest.fixture(
    scope="module",
    params=["matmul", "cores", "narrow", "software", "empty"],
    ids=["matmul", "cores", "narrow", "software", "empty"],
)
def events(request: Any, tracing: Any, predicted: Forecast) -> list[Event]:
    x = ArraySpec((128, 64), "float32")
    made = {
        "matmul": lambda: predicted,
        "cores": lambda: forecast_program(tracing(TWO_CORES, x), TRN2),
        "narrow": lambda: forecast_program(tracing(NARROW, ArraySpec((4, 8192), "float32")), TRN2),
        "software": lambda: forecast_program(tracing(SOFTWARE, ArraySpec((128, 256), "float32")), TRN2),
        "empty": lambda: forecast_program(
            tracing(
                "@nki.jit\ndef kernel():\n    return nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm)\n"
            ),
            TRN2,
        ),
    }[request.param]()
    found: list[Event] = traced(made)["traceEvents"]
    return found


def test_events_have_what_the_format_asks_for(events: list[Event]) -> None:
    for event in events:
        assert event["ph"] in {"X", "M", "C"}
        assert isinstance(event["name"], str)
        assert event["name"]
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert min(event["pid"], event["tid"]) > 0  # Perfetto has taken a thread 0 for another's
        if event["ph"] != "M":
            assert type(event["ts"]) in NUMBER
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert type(event["dur"]) in NUMBER
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert [type(value) for value in event["args"].values()] == [int]


def test_slices_of_a_track_follow_each_other(events: list[Event]) -> None:
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        slices.sort(key=lambda event: event["ts"])
        for one, other in pairwise(slices):
            assert other["ts"] >= one["ts"] + one["dur"] - 1e-6


def test_slices_nest_in_whole_nanoseconds(events: list[Event]) -> None:
    """As Perfetto reads them, which cuts times off to ns; what overlaps on a track it shows wrongly."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = int(Decimal(str(event["ts"])) * 1000)
            span = begin, begin + int(Decimal(str(event["dur"])) * 1000)
            tracks[event["pid"], event["tid"]].append(span)
    for spans in tracks.values():
        spans.sort()
        for (_, end), (begin, _) in pairwise(spans):
            assert begin >= end


def test_every_track_has_one_name(events: list[Event]) -> None:
    named = [
        (event["pid"], event["tid"])
        for event in events
        if (event["ph"], event["name"]) == ("M", "thread_name")
    ]
    assert len(named) == len(set(named))
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} <= set(named)
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert len(names) == len(set(zip(names, (pid for pid, _ in named), strict=True)))


def test_each_instruction_is_a_slice_with_its_source(predicted: Forecast, texts: Any) -> None:
    events, program = traced(predicted)["traceEvents"], predicted.compiled.program
    slices = {
        event["args"]["instruction"]: event for event in events if event["ph"] == "X" and event["tid"] != 1
    }
    assert len(slices) == len(program)
    source = texts.source_of(texts.matmul).splitlines()
    for number, event in slices.items():
        assert event["name"] == program.forms[program.form_ids[number]].op
        line = int(event["args"]["source"].rpartition(":")[2])
        assert event["name"] in source[line - 1]
        assert event["ts"] == pytest.approx(predicted.timeline.start_ns[number] / 1e3)
        assert event["ts"] + event["dur"] == pytest.approx(predicted.timeline.end_ns[number] / 1e3)
    waits = [event["args"] for event in slices.values() if "waited_for" in event["args"]]
    assert waits
    assert all(args["waited_us"] > 0 and ":" in args["waited_for"] for args in waits)
    load = slices[0]["args"]
    assert load["dst"] == "x 128x256 float32 sbuf"
    assert load["src"] == "lhs 128x256 float32 hbm"


def test_the_first_track_is_the_critical_path_and_ends_at_the_latency(predicted: Forecast) -> None:
    content = traced(predicted)
    path = [event for event in content["traceEvents"] if event["ph"] == "X" and event["tid"] == 1]
    assert sum(event["dur"] for event in path) == pytest.approx(1e3 * predicted.latency_ms)
    assert path[0]["ts"] == 0
    for one, other in pairwise(path):
        assert other["ts"] == pytest.approx(one["ts"] + one["dur"])
    assert path[-1]["name"] == "kernel overhead"
    assert content["otherData"]["predicted"] is True
    assert content["otherData"]["latency_ms"] == predicted.latency_ms


def test_memory_is_a_track_of_its_use(predicted: Forecast) -> None:
    found: dict[str, list[int]] = defaultdict(list)
    for event in traced(predicted)["traceEvents"]:
        if event["ph"] == "C":
            found[event["name"]].append(event["args"]["used"])
    uses = measure_occupancy(predicted.compiled.program, predicted.timeline, TRN2)
    assert list(found.values()) == [use.used for use in uses]
    assert [name.split()[0] for name in found] == ["SBUF", "PSUM"]


def test_queues_that_overlap_take_further_tracks(tracing: Any) -> None:
    made = forecast_program(tracing(NARROW, ArraySpec((4, 8192), "float32")), TRN2)
    names = [event["args"]["name"] for event in traced(made)["traceEvents"] if event["name"] == "thread_name"]
    assert "DMA loads" in names
    assert "DMA loads 2" in names


def test_descriptors_and_tables_are_slices(tracing: Any) -> None:
    made = forecast_program(tracing(SOFTWARE, ArraySpec((128, 256), "float32")), TRN2)
    slices = [event for event in traced(made)["traceEvents"] if event["ph"] == "X" and event["tid"] != 1]
    descriptors = [event for event in slices if event["name"] == "descriptors"]
    assert len(descriptors) == 4
    assert all(event["dur"] == pytest.approx(TRN2.dma_software_descriptor_ns / 1e3) for event in descriptors)
    loads = [event["dur"] for event in slices if event["name"] == "load of a function table"]
    assert loads == [pytest.approx(TRN2.activation_table_ns / 1e3)] * len(loads)
    assert len(loads) >= 3
