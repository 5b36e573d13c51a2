"""A predicted run as Chrome trace events, for ui.perfetto.dev or chrome://tracing.

The trace has one process per core. Each holds the critical path, one track per engine and DMA queue, and the
use of SBUF and PSUM. Overlapping transfers of one queue get extra tracks. Times are predicted, in
microseconds from the kernel's start. The format is Google's "Trace Event Format" (JSON object format).
Process and track numbers start at 1: Perfetto has mistaken thread 0 for thread 1 and names process 0 in its
own way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import IO, Any

import numpy as np

from nki_sim.forms import Operand
from nki_sim.program.ir import Program
from nki_sim.timing.critical_path import WAITS, queue_gaps_ns, run_start_ns, wait_causes
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.occupancy import measure_occupancy
from nki_sim.timing.schedule import QUEUES, Timeline

ChromeEvent = dict[str, Any]

TrackId = tuple[int, int]
"""A core and one of its tracks, which the format calls process and thread."""

_PATH_TRACK = 1
_TRACKS_PER_QUEUE = 1000
_GPSIMD = QUEUES.index("gpsimd")
_NAMES = {
    "gpsimd": "GpSimd",
    "dma_load": "DMA loads",
    "dma_store": "DMA stores",
    "dma_software": "DMA by GpSimd",
}


def write_chrome_trace(forecast: Forecast, file: IO[str]) -> None:
    """Write the trace of a prediction as one JSON object."""
    about = {
        "predicted": True,
        "kernel": forecast.traced.kernel,
        "target": forecast.target.name,
        "latency_ms": forecast.latency_ms,
    }
    file.write(f'{{"displayTimeUnit": "ns", "otherData": {json.dumps(about)}, "traceEvents": [')
    separator = "\n"
    for event in trace_events(forecast):
        file.write(separator + json.dumps(event, separators=(",", ":"), allow_nan=False))
        separator = ",\n"
    file.write("\n]}\n")


def trace_events(forecast: Forecast) -> Iterator[ChromeEvent]:
    """Yield the events: names of tracks, instructions, the critical path, memory in use."""
    lanes = _assign_tracks(forecast.timeline)
    yield from _track_names(forecast, lanes)
    yield from _instruction_events(forecast, lanes)
    yield from _descriptor_events(forecast)
    yield from _path_events(forecast)
    yield from _memory_events(forecast)


def _assign_tracks(timeline: Timeline) -> list[int]:
    """The track of each instruction within its queue: a new one while the previous instruction still runs."""
    lanes = [0] * len(timeline.queue)
    queue, core = timeline.queue.tolist(), timeline.core.tolist()
    end = timeline.end_ns.tolist()
    free: dict[tuple[int, int], list[int]] = {}
    busy: dict[tuple[int, int], list[tuple[float, int]]] = {}
    begin_ns = timeline.begin_ns.tolist()
    for number in np.argsort(timeline.begin_ns, kind="stable").tolist():
        key, start = (core[number], queue[number]), begin_ns[number]
        ready, running = free.setdefault(key, []), busy.setdefault(key, [])
        while running and running[0][0] <= start:
            heappush(ready, heappop(running)[1])
        lanes[number] = heappop(ready) if ready else len(running)
        heappush(running, (end[number], lanes[number]))
    return lanes


def _track_number(queue: int, lane: int) -> int:
    return 2 + queue * _TRACKS_PER_QUEUE + min(lane, _TRACKS_PER_QUEUE - 1)


def _track_names(forecast: Forecast, lanes: list[int]) -> Iterator[ChromeEvent]:
    timeline = forecast.timeline
    tracks = set(zip(timeline.core.tolist(), timeline.queue.tolist(), lanes, strict=True))
    made = np.flatnonzero(timeline.descriptor_ns > 0.0)
    used = sorted(tracks | {(core, _GPSIMD, 0) for core in timeline.core[made].tolist()})
    for core in sorted({0, *(core for core, _, _ in used)}):
        title = f"{forecast.target.name} core {core}: {forecast.traced.kernel} (predicted)"
        yield _metadata_event("process_name", core, _PATH_TRACK, name=title)
        yield from _name_track(core, _PATH_TRACK, "critical path")
    for core, queue, lane in used:
        name = _NAMES.get(QUEUES[queue], QUEUES[queue].capitalize())
        yield from _name_track(core, _track_number(queue, lane), f"{name} {lane + 1}" if lane else name)


def _name_track(core: int, track: int, name: str) -> Iterator[ChromeEvent]:
    yield _metadata_event("thread_name", core, track, name=name)
    yield _metadata_event("thread_sort_index", core, track, sort_index=track)


def _metadata_event(kind: str, core: int, track: int, **args: Any) -> ChromeEvent:
    return {"ph": "M", "name": kind, "pid": 1 + core, "tid": track, "args": args}


def _complete_event(
    name: str, track: TrackId, begin_ns: float, *, end_ns: float, args: ChromeEvent
) -> ChromeEvent:
    begin, (core, number) = round(begin_ns / 1e3, 6), track
    return {
        "ph": "X", "name": name, "cat": "predicted", "pid": 1 + core, "tid": number,
        "ts": begin, "dur": round(end_ns / 1e3 - begin, 6), "args": args,
    }  # fmt: skip


def _instruction_events(forecast: Forecast, lanes: list[int]) -> Iterator[ChromeEvent]:
    timeline, program = forecast.timeline, forecast.compiled.program
    describe = _InstructionText(program)
    gaps = queue_gaps_ns(timeline).tolist()
    columns = (timeline.core, timeline.queue, timeline.begin_ns, timeline.start_ns, timeline.end_ns)
    rows = zip(*(column.tolist() for column in columns), lanes, gaps, strict=True)
    cause, blocker = wait_causes(program, timeline).tolist(), timeline.blocker.tolist()
    for number, (core, queue, begin, start, end, lane, gap) in enumerate(rows):
        args = {
            "instruction": number,
            "source": describe.source_line(number),
            **describe.operand_patterns(number),
        }
        if gap > 0.0 and blocker[number] >= 0:
            args["waited_us"] = round(gap / 1e3, 6)
            args["waited_for"] = f"{WAITS[cause[number]]}: {describe.summary_text(blocker[number])}"
        track = (core, _track_number(queue, lane))
        if begin < start:
            yield _complete_event(
                "load of a function table", track, begin, end_ns=start, args={"for": number}
            )
        yield _complete_event(describe.op_name(number), track, start, end_ns=end, args=args)


def _descriptor_events(forecast: Forecast) -> Iterator[ChromeEvent]:
    """GpSimd's work on descriptors of transfers."""
    timeline, describe = forecast.timeline, _InstructionText(forecast.compiled.program)
    for number in np.flatnonzero(timeline.descriptor_ns > 0.0).tolist():
        begin = float(timeline.issue_ns[number])
        args = {"for": number, "source": describe.source_line(number)}
        track = (int(timeline.core[number]), _track_number(_GPSIMD, 0))
        yield _complete_event(
            "descriptors", track, begin, end_ns=begin + float(timeline.descriptor_ns[number]), args=args
        )


class _InstructionText:
    """Describes instructions in words; repeated parts are computed once."""

    def __init__(self, program: Program) -> None:
        self._forms: list[int] = program.form_ids.tolist()
        self._lines = program.lines.tolist()
        self._ops = [form.op for form in program.forms]
        self._file = Path(program.filename).name
        self._first = program.cells.first.tolist()
        self._tensors = [program.sites[site].name for site in program.tensor_sites.tolist()]
        self._cells = program.cells.tensor.tolist()
        self._patterns = [
            [(item.role, _format_pattern(item)) for item in form.operands] for form in program.forms
        ]

    def op_name(self, number: int) -> str:
        return self._ops[self._forms[number]]

    def source_line(self, number: int) -> str:
        return f"{self._file}:{self._lines[number]}"

    def summary_text(self, number: int) -> str:
        return f"{self.op_name(number)} at line {self._lines[number]}, instruction {number}"

    def operand_patterns(self, number: int) -> dict[str, str]:
        first = self._first[number]
        return {
            role: f"{self._tensors[self._cells[first + place]] or '?'} {pattern}"
            for place, (role, pattern) in enumerate(self._patterns[self._forms[number]])
        }


def _format_pattern(item: Operand) -> str:
    return f"{'x'.join(str(count) for _, count in item.dims)} {item.dtype} {item.buffer}"


def _path_events(forecast: Forecast) -> Iterator[ChromeEvent]:
    """The critical path from start to end. Fixed time comes last, so that the path ends at the latency."""
    timeline, describe = forecast.timeline, _InstructionText(forecast.compiled.program)
    track = (0, _PATH_TRACK)
    for step in timeline.critical_path():
        track = (int(timeline.core[step.number]), _PATH_TRACK)
        about = {"instruction": step.number, "source": describe.source_line(step.number)}
        run = run_start_ns(timeline, step)
        if run > step.begin_ns:
            waited = {**about, "before": describe.op_name(step.number)}
            yield _complete_event("latency", track, step.begin_ns, end_ns=run, args=waited)
        if step.end_ns > run:
            yield _complete_event(describe.op_name(step.number), track, run, end_ns=step.end_ns, args=about)
    end = forecast.latency_ms * 1e6
    yield _complete_event("kernel overhead", track, end - timeline.kernel_overhead_ns, end_ns=end, args={})


def _memory_events(forecast: Forecast) -> Iterator[ChromeEvent]:
    for use in measure_occupancy(forecast.compiled.program, forecast.timeline, forecast.target):
        name = f"{use.memory.upper()} in use ({use.unit} of {use.capacity})"
        for at_ms, used in zip(use.at_ms, use.used, strict=True):
            ts = round(at_ms * 1e3, 6)
            yield {
                "ph": "C", "name": name, "pid": 1 + use.core, "tid": _PATH_TRACK, "ts": ts,
                "args": {"used": used},
            }  # fmt: skip
