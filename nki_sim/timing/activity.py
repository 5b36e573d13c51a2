"""How long queues are busy: unions and sums of the intervals of a schedule."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nki_sim.timing.schedule import ENGINES, QUEUES, Floats, Timeline

QUEUES_OF: dict[str, tuple[str, ...]] = {
    name: tuple(queue for queue in QUEUES if queue == name or queue.startswith(f"{name}_"))
    for name in ENGINES
}
"""The queues of each engine; loads and stores share the DMA engines."""


def union_ns(start_ns: Floats, end_ns: Floats) -> float:
    """Length of the union of some intervals."""
    if not len(start_ns):
        return 0.0
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], end_ns[order]
    before = np.concatenate([[0.0], np.maximum.accumulate(end)[:-1]])
    return float(np.maximum(0.0, end - np.maximum(start, before)).sum())


def active_ns(timeline: Timeline, queues: Iterable[str] = QUEUES, *, settle_ns: float = 0.0) -> float:
    """Time in ns in which any instruction of these queues runs or loads its table; waits do not count.

    GpSimd also counts as active while it makes descriptors of transfers. `settle_ns` is for how long an
    instruction counts after its end.
    """
    begin_ns, end_ns = _busy_intervals(timeline, tuple(queues))
    return union_ns(begin_ns, end_ns + settle_ns)


def instruction_ns(timeline: Timeline, queues: Iterable[str]) -> float:
    """Like `active_ns`, but instructions that run at the same time add up."""
    begin_ns, end_ns = _busy_intervals(timeline, tuple(queues))
    return float((end_ns - begin_ns).sum())


def shares_percent(timeline: Timeline, queues: Iterable[str], parts: int) -> list[int]:
    """Share of each of `parts` equal parts of the run in which some of these queues are busy, 0 to 100.

    A part in which anything runs gets at least 1, so that short work stays visible.
    """
    span = span_ns(timeline)
    if span <= 0.0:
        return [0] * parts
    return busy_shares(*merge_intervals(*_busy_intervals(timeline, tuple(queues))), span, parts)


def busy_shares(begin_ns: Floats, end_ns: Floats, span: float, parts: int) -> list[int]:
    """Share of each of `parts` equal parts of `span` that disjoint, ordered intervals fill, 0 to 100."""
    edges = np.linspace(0.0, span, parts + 1)
    done = np.concatenate([[0.0], np.cumsum(end_ns - begin_ns)])
    number = np.searchsorted(begin_ns, edges, side="right")
    over = np.maximum(0.0, np.concatenate([[0.0], end_ns])[number] - edges)
    busy = np.diff(done[number] - over) * parts / span
    percent = np.clip(np.round(100.0 * busy), 0, 100).astype(int)
    return [int(share) for share in np.where((busy > 0.0) & (percent == 0), 1, percent)]


def merge_intervals(start_ns: Floats, end_ns: Floats) -> tuple[Floats, Floats]:
    """Return the union of some intervals as disjoint intervals, in order."""
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], np.maximum.accumulate(end_ns[order])
    first = np.ones(len(start), dtype=bool)
    first[1:] = start[1:] > end[:-1]
    last = np.roll(first, -1)
    return start[first], end[last]


def _busy_intervals(timeline: Timeline, queues: tuple[str, ...]) -> tuple[Floats, Floats]:
    mine = np.isin(timeline.queue, [QUEUES.index(name) for name in queues])
    begin_ns, end_ns = timeline.begin_ns[mine], timeline.end_ns[mine]
    if "gpsimd" not in queues or not len(timeline.descriptor_ns):
        return begin_ns, end_ns
    made = timeline.descriptor_ns > 0.0
    issue_ns, took_ns = timeline.issue_ns[made], timeline.descriptor_ns[made]
    return np.concatenate([begin_ns, issue_ns]), np.concatenate([end_ns, issue_ns + took_ns])


def span_ns(timeline: Timeline) -> float:
    """From the kernel's start to the end of its last instruction, without the fixed overhead."""
    return float(timeline.end_ns.max()) if len(timeline.end_ns) else 0.0
