"""The DMA engines of a core against an account of 16 servers, one by one; and whose turn it is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.operators.costs import Cost
from nki_sim.timing.activity import active_ns, instruction_ns
from nki_sim.timing.dma import DmaEngines, HbmStack, QueueTurns
from nki_sim.timing.schedule import DMA, PORT, QUEUES, schedule

TRN2 = targets.load("trn2")

TRANSFERS = st.lists(
    st.tuples(
        st.floats(0, 1000),
        st.floats(1, 500),
        st.floats(0, 800),
        st.sampled_from([(0, 1), (3, 2), (8, 8), (0, 16)]),
    ),
    min_size=1, max_size=20,
)  # fmt: skip


@given(transfers=TRANSFERS)
def test_transfers_take_the_engines_of_their_partitions(transfers: list[Any]) -> None:
    engines = DmaEngines(TRN2, HbmStack())
    free = [0.0] * TRN2.dma_engines
    hbm = 0.0
    for number, (first, busy, moved, (lowest, width)) in enumerate(transfers):
        cost = Cost(busy, channels=width, first_channel=lowest)
        service = engines.serve_slice(number, first, busy, moved, cost)
        chosen = range(lowest, lowest + width)
        assert service.start_ns == max(first, min(free[one] for one in chosen))
        assert service.free_ns == max(free[one] for one in chosen)
        hbm = max(hbm, service.start_ns) + moved
        for one in chosen:
            free[one] = max(max(first, free[one]) + busy, hbm)
        assert service.end_ns == max(free[one] for one in chosen)
        assert engines.first_free_ns(cost) == min(free[one] for one in chosen)


def test_descriptors_are_made_on_the_slot_that_is_free_first() -> None:
    engines = DmaEngines(replace(TRN2, dma_descriptor_queues=2), HbmStack())
    found = []
    for number in range(4):
        at = max(0.0, engines.next_slot[0])
        found.append((at, engines.next_slot[1]))
        engines.make_descriptors(number, at, 600.0)
    assert found == [(0.0, -1), (0.0, -1), (600.0, 0), (600.0, 1)]


def test_queues_take_turns_and_keep_their_order() -> None:
    turns = QueueTurns(3)
    for queue, number in ((0, 1), (0, 2), (0, 3), (2, 4), (1, 5)):
        turns.add(queue, number)
    found = []
    left = {1: 1, 2: 2, 3: 1, 4: 3, 5: 1}
    while turns:
        found.append(turns.heads()[0])
        turns.take_turn({1: 0, 2: 0, 3: 0, 4: 2, 5: 1}[found[-1]])
        left[found[-1]] -= 1
        if not left[found[-1]]:
            turns.finish_transfer()
    assert found == [5, 4, 1, 4, 2, 4, 2, 3]


HALVES = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(0, x.shape[0], ROWS):
        t = nl.ndarray((ROWS, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(t, x[i:i + ROWS, :])
        nisa.dma_copy(out[i:i + ROWS, :], t)
    return out
"""


def test_tiles_of_half_the_partitions_keep_half_of_the_engines_busy(tracing: Any) -> None:
    """The same bytes take twice as long: each engine serves its own partitions."""
    whole, half = (
        schedule(tracing(HALVES.replace("ROWS", rows), ArraySpec((2048, 4096), "float32")), TRN2).span_ns
        for rows in ("128", "64")
    )
    assert 1.8 < half / whole < 2.2


LOADS = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(0, x.shape[0], 128):
        t = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(t, x[i:i + 128, :], MODE)
        nisa.dma_copy(out[i:i + 128, :], t, MODE)
    return out
"""


def loads(tracing: Any, mode: str, *, width: int = 512, target: Any = TRN2) -> Any:
    text = LOADS.replace("MODE", f"dge_mode=nisa.dge_mode.{mode}")
    return schedule(tracing(text, ArraySpec((2048, width), "float32")), target)


def test_stores_do_not_wait_for_all_loads_that_are_ready(tracing: Any) -> None:
    """Loads and stores take turns, though all loads are ready from the start."""
    timeline = loads(tracing, "hwdge", width=4096)
    first_store = timeline.start_ns[1::2].min()
    begun = (timeline.start_ns[0::2] <= first_store).sum()
    assert begun < 6


def test_transfers_move_no_more_than_hbm_does(tracing: Any) -> None:
    slow = replace(TRN2, hbm_bytes_per_ns=100.0)
    nbytes = 2 * 2048 * 4096 * 4
    free, bound = (loads(tracing, "hwdge", width=4096, target=target).span_ns for target in (TRN2, slow))
    assert bound == pytest.approx(nbytes / 100.0, rel=0.05)
    assert free == pytest.approx(nbytes / TRN2.dma_bytes_per_ns, rel=0.1)


def test_slots_for_descriptors_limit_how_often_transfers_begin(tracing: Any) -> None:
    """With one slot the queues take turns at it; prepared descriptors do not limit them."""
    quick = replace(TRN2, dma_issue_ns=0.0, dma_descriptor_queues=1)
    made, prepared = (loads(tracing, mode, width=16, target=quick) for mode in ("hwdge", "none"))
    issued = np.sort(made.issue_ns)
    assert np.all(issued[1:] - issued[:-1] >= TRN2.dma_descriptor_ns - 1e-6)
    assert DMA in made.cause.tolist()
    assert prepared.span_ns < 0.6 * made.span_ns


@pytest.mark.parametrize("mode", ["unknown", "none"])
@pytest.mark.parametrize(("name", "tiny_ns"), [("trn1", (130, 360)), ("trn2", (250, 620))])
def test_a_queue_issues_tiny_transfers_one_by_one(
    mode: str, name: str, tiny_ns: tuple[float, float], tracing: Any
) -> None:
    """One of 256 bytes takes a queue as long as was measured, though 16 engines could move 16 of them."""
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in range(128):
            t = nl.ndarray((1, 64), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(t, x[i:i + 1, :], dge_mode=nisa.dge_mode.MODE)
            nisa.dma_copy(out[i:i + 1, :], t, dge_mode=nisa.dge_mode.MODE)
        return out
    """
    program = tracing(text.replace("MODE", mode), ArraySpec((128, 64), "float32"), target=name)
    timeline = schedule(program, targets.load(name))
    for queue in ("dma_load", "dma_store"):
        apart = np.diff(np.sort(timeline.issue_ns[timeline.queue == QUEUES.index(queue)]))
        assert np.all(apart >= tiny_ns[0] - 1e-6)
        assert np.mean(apart) <= tiny_ns[1]


def test_large_transfers_are_not_held_up_by_their_queue(tracing: Any) -> None:
    target = replace(TRN2, dma_issue_ns=0.0)
    assert loads(tracing, "none", width=4096).span_ns == pytest.approx(
        loads(tracing, "none", width=4096, target=target).span_ns, rel=0.01
    )


def test_prepared_transfers_wait_for_no_slot_but_keep_to_their_queue(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = [nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf) for _ in range(8)]
        for i in range(8):
            mode = nisa.dge_mode.none if i % 2 else nisa.dge_mode.hwdge
            nisa.dma_copy(tiles[i], x[:, 64 * i:64 * i + 64], dge_mode=mode)
        return out
    """
    program = tracing(text, ArraySpec((128, 512), "float32"))
    timeline = schedule(program, replace(TRN2, dma_issue_ns=1.0, dma_descriptor_queues=1))
    prepared, made = timeline.issue_ns[1::2], timeline.issue_ns[::2]
    np.testing.assert_allclose(prepared[0], made[0] + TRN2.dma_descriptor_ns)
    np.testing.assert_allclose(made[1:], prepared[:-1] + 1.0)
    assert np.all(np.diff(timeline.start_ns) >= 0.0)


SOFTWARE = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    u = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    for i in range(8):
        nisa.dma_copy(t[:, i * 8:(i + 1) * 8], x[:, i * 8:(i + 1) * 8], dge_mode=nisa.dge_mode.MODE)
        nisa.memset(u[:, i * 8:(i + 1) * 8], 0.0, engine=nisa.engine.gpsimd)
    nisa.dma_copy(out, t)
    return out
"""


@pytest.mark.parametrize(("mode", "queue"), [("swdge", "dma_software"), ("hwdge", "dma_load")])
def test_gpsimd_makes_the_descriptors_of_software_dma(mode: str, queue: str, tracing: Any) -> None:
    """It does nothing else meanwhile."""
    timeline = schedule(tracing(SOFTWARE.replace("MODE", mode), ArraySpec((128, 64), "float32")), TRN2)
    mine = timeline.queue == QUEUES.index(queue)
    assert mine.sum() == 8
    gpsimd = timeline.queue == QUEUES.index("gpsimd")
    made = timeline.issue_ns[mine] + TRN2.dma_software_descriptor_ns
    busy = [*zip(timeline.start_ns[gpsimd], timeline.end_ns[gpsimd], strict=True)]
    if queue == "dma_software":
        busy += zip(timeline.issue_ns[mine], made, strict=True)
        assert np.all(timeline.start_ns[mine] >= made + TRN2.dma_trigger_ns - 1e-6)
    assert all(one[1] <= other[0] for one, other in pairwise(sorted(busy)))
    assert (PORT in timeline.cause.tolist()) == (queue == "dma_software")
    worked = sum(end - begin for begin, end in busy)
    assert active_ns(timeline, ("gpsimd",)) == pytest.approx(worked)
    assert instruction_ns(timeline, ("gpsimd",)) == pytest.approx(worked)


def test_transfers_of_a_queue_arrive_in_its_order(tracing: Any) -> None:
    timeline = loads(tracing, "hwdge", width=64)
    order = defaultdict(list)
    seen = set()
    for number in timeline.actions.tolist():
        order[timeline.queue[number], number in seen].append(number)
        seen.add(number)
    for queue in set(timeline.queue.tolist()):
        assert order[queue, False] == order[queue, True]


def test_a_long_copy_does_not_keep_a_load_waiting(tracing: Any) -> None:
    """Slices of the two take turns, so that the short one takes twice as long as alone."""
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(out, x)
        nisa.dma_copy(t, x[0:128])
        return out
    """
    program = tracing(text, ArraySpec((4096, 1024), "float32"))
    turns, whole = (
        schedule(program, replace(TRN2, dma_slice_bytes=nbytes)) for nbytes in (TRN2.dma_slice_bytes, 1 << 30)
    )
    copy, load = 0, 1
    alone = 128 * 1024 * 4 / TRN2.dma_bytes_per_ns
    took = turns.end_ns[load] - (turns.issue_ns[load] + TRN2.dma_trigger_ns + TRN2.dma_descriptor_ns)
    assert 1.5 * alone < took <= 2.3 * alone
    assert turns.end_ns[load] < 0.2 * turns.end_ns[copy]
    assert whole.end_ns[load] > whole.end_ns[copy]
    assert turns.span_ns == pytest.approx(whole.span_ns)


def test_the_cores_of_a_launch_share_a_stack_of_hbm(tracing: Any) -> None:
    """Each reads and writes more than its half of the bandwidth; together they move what one stack does."""
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        rows = x.shape[0] // nl.num_programs(0)
        mine = slice(nl.program_id(0) * rows, (nl.program_id(0) + 1) * rows)
        nisa.dma_copy(out[mine, :], x[mine, :])
        return out
    """
    shape = (4096, 4096)
    two = tracing(text, ArraySpec(shape, "float32"), lnc=2)
    moved_ns = 2 * 4 * shape[0] * shape[1] / TRN2.hbm_bytes_per_ns
    assert schedule(two, TRN2).span_ns == pytest.approx(moved_ns, rel=0.02)
    apart = schedule(two, replace(TRN2, hbm_cores=1)).span_ns
    assert apart == pytest.approx(moved_ns / 2, rel=0.05)
