"""The critical path of a schedule, and what engines wait for.

The path is the chain of waits that ends with the last instruction. The time between the release by one
instruction and the start of the next belongs to the later one. The parts of the path therefore add up to the
span of the schedule, and with the fixed overhead to the predicted latency.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from nki_sim.program.ir import Ints, Program
from nki_sim.timing.activity import QUEUES_OF, span_ns, union_ns
from nki_sim.timing.schedule import CAUSES, QUEUES, TABLE, Floats, PathStep, Timeline
from nki_sim.timing.tile_reuse import waits_for_place

ENGINE_OF = {queue: engine for engine, queues in QUEUES_OF.items() for queue in queues}

LATENCY = "latency"
"""The rest of a wait after the awaited instruction has ended: semaphores, triggers, completions."""

WAITS = (*CAUSES, "reuse")
"""Causes of waits: those of schedules (a dependence waits for a result), and reuse (for a place to write)."""

_REUSE = len(CAUSES)


@dataclass(frozen=True, slots=True)
class PathPart:
    """Instructions of one source line and operator on the critical path.

    `ms` is their share of the path, of which `wait_ms` is latency before they run. Line 0 means no line.
    """

    line: int
    op: str
    engine: str
    ms: float
    wait_ms: float
    instructions: int


@dataclass(frozen=True, slots=True)
class EngineWait:
    """Time that an engine waits: `cause` is one of `WAITS` or `latency`, `on` is the engine it waits for."""

    cause: str
    on: str
    ms: float


@dataclass(frozen=True, slots=True)
class EngineTrack:
    """How an engine of a core spends the span: busy, waiting before instructions, or finished.

    The three add up to the span, and with a kernel's fixed overhead to the latency. GpSimd is also busy while
    it makes descriptors. Loading a function table counts as a wait for the table.
    """

    core: int
    engine: str
    busy_ms: float
    waits: list[EngineWait]
    done_ms: float


def run_start_ns(timeline: Timeline, step: PathStep) -> float:
    """When the instruction of a step begins to run; the time before is latency."""
    return min(step.end_ns, max(step.begin_ns, float(timeline.start_ns[step.number])))


def critical_path(program: Program, timeline: Timeline) -> list[PathPart]:
    """The path by source line and operator, the longest part first; the parts add up to the latency."""
    found: dict[tuple[int, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    lines, forms = program.lines.tolist(), program.form_ids.tolist()
    seen: set[int] = set()  # a transfer may be there twice: issued and served
    for step in timeline.critical_path():
        form = program.forms[forms[step.number]]
        part = found[lines[step.number], form.op, form.engine]
        part[0] += step.end_ns - step.begin_ns
        part[1] += run_start_ns(timeline, step) - step.begin_ns
        part[2] += step.number not in seen
        seen.add(step.number)
    parts = [
        PathPart(line, op, engine, ns / 1e6, wait_ns / 1e6, int(count))
        for (line, op, engine), (ns, wait_ns, count) in found.items()
    ]
    parts.append(PathPart(0, "kernel_overhead", "", timeline.kernel_overhead_ns / 1e6, 0.0, 0))
    return sorted(parts, key=lambda part: (-part.ms, part.line, part.op))


def wait_causes(program: Program, timeline: Timeline) -> Ints:
    """For each instruction the index in `WAITS` of what it waited for last."""
    place = waits_for_place(program, timeline.cause, timeline.blocker)
    return np.asarray(np.where(place, _REUSE, timeline.cause))


def busy_ms(timeline: Timeline) -> dict[str, float]:
    """Time in which at least one instruction of each engine runs: the tracks' busy time, over all cores.

    Profilers count loading a function table as active time; here it is a wait.
    """
    work = _work_intervals(timeline)
    return {
        engine: union_ns(work.start_ns[work.engine == index], work.end_ns[work.engine == index]) / 1e6
        for index, engine in enumerate(QUEUES_OF)
    }


def engine_tracks(program: Program, timeline: Timeline) -> list[EngineTrack]:
    """Busy time and waits of every engine that runs anything."""
    engines, work, cause = list(QUEUES_OF), _work_intervals(timeline), wait_causes(program, timeline)
    span = span_ns(timeline)
    found = []
    for core in np.unique(timeline.core).tolist():
        for index, engine in enumerate(engines):
            mine = np.flatnonzero((timeline.core[work.number] == core) & (work.engine == index))
            if len(mine):
                part = work.select_rows(mine[np.argsort(work.start_ns[mine], kind="stable")])
                busy = union_ns(part.start_ns, part.end_ns)
                done = span - float(part.end_ns.max())
                found.append(
                    EngineTrack(core, engine, busy / 1e6, _engine_waits(timeline, part, cause), done / 1e6)
                )
    return found


@dataclass(frozen=True, slots=True)
class _WorkIntervals:
    """Time intervals in which engines work, and the instruction they work for."""

    number: Ints
    engine: Ints
    start_ns: Floats
    end_ns: Floats

    def select_rows(self, rows: Ints) -> _WorkIntervals:
        return _WorkIntervals(self.number[rows], self.engine[rows], self.start_ns[rows], self.end_ns[rows])


def _instruction_engines(timeline: Timeline) -> Ints:
    """The engine of each instruction, as an index in `QUEUES_OF`."""
    engines = list(QUEUES_OF)
    return np.array([engines.index(ENGINE_OF[queue]) for queue in QUEUES], dtype=np.int64)[timeline.queue]


def _work_intervals(timeline: Timeline) -> _WorkIntervals:
    """Intervals of the instructions, and of the descriptors that GpSimd makes for transfers."""
    engine_of, gpsimd = _instruction_engines(timeline), list(QUEUES_OF).index("gpsimd")
    made = np.flatnonzero(timeline.descriptor_ns > 0.0)
    issue_ns = timeline.issue_ns[made]
    return _WorkIntervals(
        np.concatenate([np.arange(len(engine_of)), made]),
        np.concatenate([engine_of, np.full(len(made), gpsimd)]),
        np.concatenate([timeline.start_ns, issue_ns]),
        np.concatenate([timeline.end_ns, issue_ns + timeline.descriptor_ns[made]]),
    )


def queue_gaps_ns(timeline: Timeline) -> Floats:
    """For each instruction, how long its queue was idle before it."""
    found = np.zeros(len(timeline.start_ns))
    lanes = timeline.core * len(QUEUES) + timeline.queue
    for lane in np.unique(lanes).tolist():
        mine = np.flatnonzero(lanes == lane)
        order = mine[np.argsort(timeline.begin_ns[mine], kind="stable")]
        found[order] = _idle_gaps(timeline.begin_ns[order], timeline.end_ns[order])
    return found


def _idle_gaps(start_ns: Floats, end_ns: Floats) -> Floats:
    """How long nothing ran before each interval; intervals are sorted by start."""
    until: Floats = np.concatenate([[0.0], np.maximum.accumulate(end_ns)[:-1]])
    return np.asarray(np.maximum(0.0, start_ns - until))


def _engine_waits(timeline: Timeline, work: _WorkIntervals, cause: Ints) -> list[EngineWait]:
    """The gaps in the work of one engine, by cause and by the engine it waited for."""
    engine_of, start, order = _instruction_engines(timeline), work.start_ns, work.number
    blocker = timeline.blocker[order]
    gap = _idle_gaps(start, work.end_ns)
    until = np.where(blocker >= 0, timeline.release_ns[order], 0.0)
    # Between the release and a start that waited for a table, the engine loads the table.
    until = np.where(timeline.cause[order] == TABLE, start, until)
    latency = np.minimum(gap, np.maximum(0.0, start - until))
    # Gaps by (cause, engine waited for); column 0 means no engine.
    places = len(QUEUES_OF) + 1
    on = np.where(blocker >= 0, engine_of[blocker] + 1, 0)
    by_cause = np.bincount(cause[order] * places + on, gap - latency, len(WAITS) * places)
    late = np.bincount(on, latency, places)
    names = ["", *QUEUES_OF]
    found = [
        EngineWait(cause, names[place], float(ns) / 1e6)
        for cause, row in zip((*WAITS, LATENCY), np.vstack([by_cause.reshape(-1, places), late]), strict=True)
        for place, ns in enumerate(row)
        if ns > 0.0
    ]
    return sorted(found, key=lambda wait: -wait.ms)
