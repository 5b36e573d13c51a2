"""Shares of a run in which queues are busy: against counting it out moment by moment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nki_sim.timing.activity import active_ns, shares_percent
from nki_sim.timing.schedule import QUEUES, Timeline

SPANS = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=12)
PARTS = 10


def timeline_of(spans: list[tuple[int, int]], queue: str = "vector") -> Timeline:
    start = np.array([begin for begin, _ in spans], dtype=np.float64)
    size = len(spans)
    none = np.zeros(size, dtype=np.int64)
    return Timeline(
        issue_ns=start,
        start_ns=start,
        end_ns=start + np.array([took for _, took in spans]),
        queue=np.full(size, QUEUES.index(queue)),
        cause=none,
        blocker=none - 1,
        kernel_overhead_ns=0.0,
        core=none,
    )


@given(SPANS)
def test_shares_are_those_of_the_union(spans: list[tuple[int, int]]) -> None:
    timeline = timeline_of(spans)
    end = max(begin + took for begin, took in spans)
    busy = np.zeros(end * PARTS, dtype=bool)  # of each tenth of a nanosecond
    for begin, took in spans:
        busy[begin * PARTS : (begin + took) * PARTS] = True
    exact = 100 * busy.reshape(PARTS, -1).mean(axis=1)
    found = shares_percent(timeline, ("vector",), PARTS)
    assert np.abs(np.array(found) - exact).max() <= 1
    assert [share > 0 for share in found] == [share > 0 for share in exact]
    assert abs(sum(found) / 100 / PARTS * end - active_ns(timeline)) <= end / 100


def test_what_does_nothing_is_never_busy() -> None:
    timeline = timeline_of([(0, 10)])
    assert shares_percent(timeline, ("tensor",), 4) == [0, 0, 0, 0]
    assert shares_percent(timeline_of([]), ("vector",), 4) == [0, 0, 0, 0]
