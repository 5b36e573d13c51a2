"""How much of SBUF and PSUM a predicted run uses over time, and which tiles are there at the peak.

SBUF is counted in bytes per partition, PSUM in banks. A tile counts from the issue of its first access to the
end of its last one. Tiles that the kernel places itself count where they lie, so overlapping tiles count
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nki_sim.program.ir import Ints, Program
from nki_sim.targets import Target
from nki_sim.timing.activity import span_ns
from nki_sim.timing.memory import MEMORIES, memory_capacity, tile_footprint
from nki_sim.timing.schedule import Floats, Timeline

UNITS = {"sbuf": "bytes per partition", "psum": "banks"}


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """Tiles of one declaration in a memory at one moment, and the room they take together."""

    name: str
    line: int
    tiles: int
    size: int


@dataclass(frozen=True, slots=True)
class MemoryOccupancy:
    """Use of one memory: at `at_ms[i]` it changes to `used[i]`. `holders` are the tiles at the peak."""

    core: int
    memory: str
    unit: str
    capacity: int
    peak: int
    mean: float
    at_ms: list[float]
    used: list[int]
    holders: list[MemoryHolder]


@dataclass(frozen=True, eq=False)
class _TensorLives:
    """Tensors of one memory of one core, and when they are in use."""

    memory: str
    core: int
    tensors: Ints
    begin_ns: Floats
    end_ns: Floats


def measure_occupancy(program: Program, timeline: Timeline, target: Target) -> list[MemoryOccupancy]:
    """Use of SBUF and PSUM of every core from the kernel's start to the end of its last instruction."""
    begin, end = _usage_spans(program, timeline)
    found = []
    for memory in MEMORIES:
        in_memory = np.array([site.buffer == memory for site in program.sites], dtype=bool)
        mine = in_memory[program.tensor_sites] & (end >= 0.0)
        for core in np.unique(timeline.core).tolist():
            tensors = np.flatnonzero(mine & (program.tensor_cores == core))
            lives = _TensorLives(memory, core, tensors, begin[tensors], end[tensors])
            found.append(_memory_use(program, lives, span_ns(timeline), target=target))
    return found


def _usage_spans(program: Program, timeline: Timeline) -> tuple[Floats, Floats]:
    """When each tensor is first and last in use; -1 if nothing touches it."""
    cells, count = program.cells, len(program.tensor_sites)
    begin, end = np.full(count, np.inf), np.full(count, -1.0)
    np.minimum.at(begin, cells.tensor, timeline.issue_ns[cells.instruction])
    np.maximum.at(end, cells.tensor, timeline.end_ns[cells.instruction])
    return begin, end


def _memory_use(program: Program, lives: _TensorLives, span: float, *, target: Target) -> MemoryOccupancy:
    at_ns, used = _use_series(program, lives, target)
    lasts = np.diff(np.append(at_ns, max(span, at_ns[-1])))
    peak = int(np.argmax(used))
    there = (lives.begin_ns <= at_ns[peak]) & (lives.end_ns > at_ns[peak])
    return MemoryOccupancy(
        core=lives.core,
        memory=lives.memory,
        unit=UNITS[lives.memory],
        capacity=memory_capacity(lives.memory, target),
        peak=int(used[peak]),
        mean=float((used * lasts).sum() / span) if span else 0.0,
        at_ms=(at_ns / 1e6).tolist(),
        used=used.tolist(),
        holders=_list_holders(program, lives.tensors[there], target),
    )


def _use_series(program: Program, lives: _TensorLives, target: Target) -> tuple[Floats, Ints]:
    """Times at which the use changes, from 0 on, and the use from each time on."""
    in_place = np.array([site.address is not None for site in program.sites], dtype=bool)
    taken = [
        tile_footprint(site, target) if site.buffer == lives.memory and site.address is None else 0
        for site in program.sites
    ]
    sites = program.tensor_sites[lives.tensors]
    placed, sizes = in_place[sites], np.array(taken, dtype=np.int64)[sites]
    at = np.concatenate([[0.0], lives.begin_ns, lives.end_ns])
    change = np.concatenate([[0], sizes, -sizes])
    order = np.lexsort((change, at))
    at, used = at[order], np.cumsum(change[order])
    if placed.any():
        used = used + _placed_use(program, lives, placed, at=at, target=target)
    last_of_time = np.append(np.diff(at) > 0.0, True)
    at, used = at[last_of_time], used[last_of_time]
    changed = np.append(True, np.diff(used) != 0)
    return at[changed], used[changed]


def _placed_use(
    program: Program, lives: _TensorLives, placed: np.ndarray, *, at: Floats, target: Target
) -> Ints:
    """At each time, the bytes or banks that placed tiles cover."""
    tensors, begin, end = lives.tensors[placed], lives.begin_ns[placed], lives.end_ns[placed]
    sites = [program.site(tensor) for tensor in tensors.tolist()]
    starts = np.array([(site.address or (0, 0))[1] for site in sites], dtype=np.int64)
    stops = starts + np.array([site.partition_bytes for site in sites], dtype=np.int64)
    if sites[0].buffer == "psum":
        starts, stops = starts // target.psum_bank_bytes, -(-stops // target.psum_bank_bytes)
    edges = np.unique(np.concatenate([starts, stops]))
    widths = np.diff(edges)
    first, last = np.searchsorted(edges, starts), np.searchsorted(edges, stops)
    events = sorted(
        [(time, 1, place) for place, time in enumerate(begin.tolist())]
        + [(time, -1, place) for place, time in enumerate(end.tolist())]
    )
    cover, total, made = np.zeros(len(widths), dtype=np.int64), [0], [-1.0]
    for time, step, place in events:
        cover[first[place] : last[place]] += step
        made.append(time)
        total.append(int(widths[cover > 0].sum()))
    return np.array(total)[np.searchsorted(np.array(made), at, side="right") - 1]


def _list_holders(program: Program, tensors: Ints, target: Target) -> list[MemoryHolder]:
    counted = Counter(program.tensor_sites[tensors].tolist())
    sites = [(program.sites[number], count) for number, count in counted.items()]
    found = [
        MemoryHolder(site.name, site.line, count, count * tile_footprint(site, target))
        for site, count in sites
    ]
    return sorted(found, key=lambda holder: (-holder.size, holder.line))


def thin_series(at_ms: Sequence[float], used: Sequence[int], points: int) -> list[tuple[float, int]]:
    """At most `points` of a series: the highest use in each stretch of time, at the stretch's beginning."""
    if len(used) <= points:
        return list(zip(at_ms, used, strict=True))
    edges = np.linspace(at_ms[0], at_ms[-1], points + 1)[:-1]
    times, values = np.array(at_ms), np.array(used)
    first = np.searchsorted(times, edges, side="right") - 1
    return [
        (float(edge), int(values[one : max(one + 1, two + 1)].max()))
        for edge, one, two in zip(edges, first, [*first[1:], len(values) - 1], strict=True)
    ]
