"""The scheduler's properties: bounds from below and above, what serialises, what overlaps, what pays."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.errors import ScheduleError
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.bounds import MinimalWork, tight_bound
from nki_sim.timing.dependences import find_dependences
from nki_sim.timing.schedule import MEMORY, QUEUES, Timeline, schedule
from tests.support.sweeps import scale_examples

TRN2 = targets.load("trn2")
TARGETS = st.sampled_from([targets.load(name) for name in targets.names()])
FEW = settings(max_examples=scale_examples(20))


def spec(*shape: int, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(shape, dtype)


def matmul_program(tracing: Any, texts: Any, m: int, k: int, n: int, *, dtype: str) -> Program:
    return tracing(texts.matmul, spec(128 * m, 128 * k, dtype=dtype), spec(128 * k, 512 * n, dtype=dtype))


PROGRAMS = st.one_of(
    st.tuples(
        st.just("matmul"), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["float32", "bfloat16"])
    ),
    st.tuples(st.just("stream"), st.integers(1, 3), st.sampled_from([128, 256, 512]), st.booleans()),
)


def build(tracing: Any, texts: Any, case: tuple[Any, ...]) -> tuple[Program, MinimalWork]:
    """A drawn program and the least work its problem needs."""
    if case[0] == "matmul":
        _, m, k, dtype = case
        width = 4 if dtype == "float32" else 2
        work = MinimalWork(
            read_bytes=width * (128 * m * 128 * k + 128 * k * 512),
            write_bytes=width * 128 * m * 512,
            matmul_flops=2 * 128 * m * 128 * k * 512,
            matmul_dtype=dtype,
            elementwise_elements=128 * m * 512,
            elementwise_dtype=dtype,
        )
        return matmul_program(tracing, texts, m, k, 1, dtype=dtype), work
    _, m, width, fresh = case
    size = 128 * m * 1024
    work = MinimalWork(
        read_bytes=4 * size, write_bytes=4 * size, activation_elements=size, elementwise_elements=2 * size
    )
    return tracing(texts.stream(width=width, fresh=fresh), spec(128 * m, 1024)), work


@FEW
@given(case=PROGRAMS, target=TARGETS, window=st.sampled_from([1, 4, 1000]))
def test_no_prediction_is_below_the_bound_of_its_problem(
    case: tuple[Any, ...], target: Target, window: int, tracing: Any, texts: Any
) -> None:
    program, work = build(tracing, texts, case)
    timeline = schedule(program, replace(target, issue_window=window, dma_window=window))
    assert timeline.latency_ms >= tight_bound(work, target)


def test_schedules_repeat(tracing: Any, texts: Any) -> None:
    program = matmul_program(tracing, texts, 2, 2, 2, dtype="float32")
    first, second = schedule(program, TRN2), schedule(Program.from_bytes(program.to_bytes()), TRN2)
    assert np.array_equal(first.start_ns, second.start_ns)


def latency(tracing: Any, text: str, *args: ArraySpec, target: Target = TRN2) -> float:
    program = tracing(text, *args)
    assert checks.check(program, target) == []
    return schedule(program, target).latency_ms


def test_tiles_declared_in_the_loop_let_iterations_overlap(tracing: Any, texts: Any) -> None:
    x = spec(1024, 1024)
    fresh, shared = (latency(tracing, texts.stream(width=512, fresh=flag), x) for flag in (True, False))
    assert fresh < 0.6 * shared


def test_fewer_and_larger_instructions_pay(tracing: Any, texts: Any) -> None:
    x = spec(1024, 1024)
    wide, narrow = (latency(tracing, texts.stream(width=width), x) for width in (1024, 128))
    assert wide < 0.8 * narrow


DMA = """
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(0, m, 128):
        for j in range(0, n, WIDTH):
            t = nl.ndarray((128, WIDTH), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[i:i + 128, j:j + WIDTH])
            nisa.dma_copy(dst=out[i:i + 128, j:j + WIDTH], src=t)
    return out
"""


def test_dma_efficiency_follows_the_small_transfer_curve(tracing: Any) -> None:
    x = spec(2048, 4096)
    best = 2 * 2048 * 4096 * 4 / TRN2.dma_bytes_per_ns
    shares = {}
    for width in (128, 256, 512, 1024, 4096):
        timeline = schedule(tracing(DMA.replace("WIDTH", str(width)), x), TRN2)
        shares[width * 4] = best / float(timeline.end_ns.max())
    # Short rows are bound by their queues, which make descriptors for one transfer at a time.
    curve = {512: 0.60, 1024: 0.81, 2048: 0.89, 4096: 0.94, 16384: 0.93}
    for row_bytes, wanted in curve.items():
        assert shares[row_bytes] == pytest.approx(wanted, rel=0.1)


BALANCE = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    u = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    for i in range(64):
        part = slice(i * 32, (i + 1) * 32)
        nisa.tensor_copy(dst=u[:, part], src=t[:, part], engine=ENGINE)
    nisa.dma_copy(dst=out, src=u)
    return out
"""


def test_spreading_copies_over_engines_pays(tracing: Any) -> None:
    x = spec(128, 2048)
    one = latency(tracing, BALANCE.replace("ENGINE", "nisa.engine.vector"), x)
    two = latency(tracing, BALANCE.replace("ENGINE", "(nisa.engine.vector, nisa.engine.scalar)[i % 2]"), x)
    assert two < one


TABLES = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    for i in range(8):
        nisa.activation(dst=t, op=OPS, data=t)
    nisa.dma_copy(dst=out, src=t)
    return out
"""


def test_switching_activation_tables_costs_a_load_each_time(tracing: Any) -> None:
    x = spec(128, 256)
    same = latency(tracing, TABLES.replace("OPS", "nl.exp"), x)
    switching = latency(tracing, TABLES.replace("OPS", "(nl.exp, nl.tanh)[i % 2]"), x)
    neutral = latency(tracing, TABLES.replace("OPS", "(nl.exp, nl.copy)[i % 2]"), x)
    shorter = 4 * TRN2.activation_function_cycles / TRN2.scalar_clock_ghz / 1e6
    assert switching - same == pytest.approx(7 * TRN2.activation_table_ns / 1e6)
    assert neutral == pytest.approx(same - shorter)


def test_prefetch_is_bounded_by_free_memory(tracing: Any) -> None:
    """With room for two tiles only, the third load waits for the first tile's last reader."""
    text = DMA.replace("WIDTH", "4096")
    x = spec(128 * 8, 4096)
    program = tracing(text, x)
    tight = replace(TRN2, sbuf_partition_bytes=2 * 4096 * 4 + TRN2.sbuf_reserved_bytes)
    timeline = schedule(program, tight)
    loads = np.flatnonzero(timeline.queue == QUEUES.index("dma_load"))
    stores = np.flatnonzero(timeline.queue == QUEUES.index("dma_store"))
    assert np.all(timeline.issue_ns[loads[2:]] >= timeline.end_ns[stores[:-2]])
    assert timeline.latency_ms >= schedule(program, TRN2).latency_ms


def test_waiting_for_room_is_named_as_a_cause(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        for i in range(8):
            t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(t, 1.0)
            nisa.activation(total, nl.exp, t)
            nisa.activation(total, nl.exp, t)
        nisa.dma_copy(dst=out, src=total)
        return out
    """
    program = tracing(text, spec(1, 1))
    tight = replace(TRN2, sbuf_partition_bytes=3 * 512 * 4 + TRN2.sbuf_reserved_bytes)
    assert MEMORY in schedule(program, tight).cause.tolist()
    assert MEMORY not in schedule(program, TRN2).cause.tolist()


def test_a_program_that_does_not_fit_has_no_schedule(tracing: Any) -> None:
    program = tracing(DMA.replace("WIDTH", "4096"), spec(128, 4096))
    tiny = replace(TRN2, sbuf_partition_bytes=TRN2.sbuf_reserved_bytes + 1024)
    with pytest.raises(ScheduleError):
        schedule(program, tiny)


def test_disjoint_parts_of_a_tile_are_independent(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(t[:, 0:32], 0.0)
        nisa.memset(t[:, 32:64], 0.0, engine=nisa.engine.gpsimd)
        nisa.tensor_scalar(t[:, 0:32], t[:, 0:32], nl.add, 1.0)
        nisa.tensor_scalar(t[:, 16:48], t[:, 16:48], nl.add, 1.0)
        nisa.memset(t, 2.0)
        nisa.dma_copy(dst=out, src=t)
        return out
    """
    waits = find_dependences(tracing(text, spec(1, 1))).predecessors
    assert waits == [[], [], [0], [1, 2], [1, 2, 3], [4]]


def test_reads_do_not_wait_for_reads_and_inputs_for_nothing(tracing: Any, texts: Any) -> None:
    waits = find_dependences(tracing(DMA.replace("WIDTH", "128"), spec(256, 256))).predecessors
    assert waits == [[] if number % 2 == 0 else [number - 1] for number in range(8)]


@given(
    boxes=st.lists(
        st.tuples(st.integers(0, 7), st.integers(1, 4), st.integers(0, 12), st.integers(1, 6), st.booleans()),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_dependences_are_those_of_an_element_by_element_account(
    boxes: list[tuple[int, int, int, int, bool]], tracing: Any
) -> None:
    """Every conflict must be ordered, directly or through others; nothing else may be."""
    lines = []
    for row, height, column, width, write in boxes:
        part = f"y[{row}:{min(8, row + height)}, {column}:{min(16, column + width)}]"
        filled = f"x[0:1, 0:1].broadcast(0, {part}.shape[0]).broadcast(1, {part}.shape[1])"
        source = filled if write else part
        goal = part if write else f"nl.ndarray({part}.shape, nl.float32, nl.sbuf)"
        lines.append(f"nisa.dma_copy(dst={goal}, src={source})")
    body = "\n    ".join(lines)
    text = f"""
@nki.jit
def kernel(x):
    y = nl.ndarray((8, 16), dtype=nl.float32, buffer=nl.shared_hbm)
    {body}
    return y
"""
    waits = find_dependences(tracing(text, spec(1, 1))).predecessors
    reach: list[set[int]] = []
    for items in waits:
        reach.append(set(items).union(*(reach[item] for item in items)))
    areas = [
        {(r, c) for r in range(row, min(8, row + h)) for c in range(col, min(16, col + w))}
        for row, h, col, w, _ in boxes
    ]
    for later in range(len(boxes)):
        for earlier in range(later):
            conflict = (boxes[later][4] or boxes[earlier][4]) and areas[later] & areas[earlier]
            if conflict:
                assert earlier in reach[later]
            else:
                assert earlier not in waits[later]


def test_timelines_of_nothing(tracing: Any) -> None:
    empty = Timeline(*[np.zeros(0)] * 3, *[np.zeros(0, np.int64)] * 3, 11_000.0, np.zeros(0, np.int64))
    assert empty.latency_ms == pytest.approx(0.011)


def test_the_path_ends_where_two_transfers_wait_for_each_other_in_turn(tracing: Any) -> None:
    """A store waits for a load's bytes that waited for the store's descriptors."""
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((1024, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(t, 1.0)
        for i in range(6):
            u = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(u, x, dge_mode=MODES[i % len(MODES)])
            nisa.dma_copy(out[128 * i:128 * i + 128, :], t, dge_mode=MODES[i // 2 % len(MODES)])
        return out
    """
    modes = "(nisa.dge_mode.none, nisa.dge_mode.hwdge, nisa.dge_mode.swdge)"
    program = tracing(text.replace("MODES", modes), spec(128, 512))
    for slots, apart in itertools.product((1, 2), (0.0, 490.0)):
        target = replace(TRN2, dma_descriptor_queues=slots, dma_issue_ns=apart)
        steps = schedule(program, target).critical_path()
        assert steps[0].begin_ns == 0.0
        assert all(one.end_ns == other.begin_ns for one, other in itertools.pairwise(steps))


def test_waits_in_a_circle_are_refused(tracing: Any, texts: Any) -> None:
    """A schedule has none; whoever walks one that has must not walk for ever."""
    timeline = schedule(matmul_program(tracing, texts, 1, 1, 1, dtype="float32"), TRN2)
    circle = replace(timeline, blocker=np.roll(np.arange(len(timeline.blocker)), 1), issued=None)
    with pytest.raises(ScheduleError, match="waits for itself"):
        circle.critical_path()


DEPENDENT = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a, b = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
    nisa.dma_copy(a, x)
    nisa.memset(b, 1.0)
    for i in range(8):
        STEP
    nisa.dma_copy(out, a)
    return out
"""
STEPS = {
    "scalar": "nisa.activation(dst=TO, op=nl.exp, data=a)",
    "vector": "nisa.tensor_scalar(TO, a, nl.add, 1.0)",
    "gpsimd": "nisa.tensor_copy(TO, a, engine=nisa.engine.gpsimd)",
}


@pytest.mark.parametrize("name", targets.names())
@pytest.mark.parametrize("engine", STEPS)
@pytest.mark.parametrize("width", [1, 512])
def test_an_instruction_that_reads_the_result_of_its_engine_waits_for_the_pipeline(
    name: str, engine: str, width: int, tracing: Any
) -> None:
    """189 ns on ScalarE for [128, 1]; long instructions and independent ones do not."""
    target, apart = targets.load(name), {}
    for to in ("a", "b"):
        text = DEPENDENT.replace("STEP", STEPS[engine].replace("TO", to))
        timeline = schedule(tracing(text, spec(128, width), target=name), target)
        mine = timeline.queue == QUEUES.index(engine)
        starts = timeline.start_ns[mine][-8:]
        took = (timeline.end_ns[mine] - timeline.start_ns[mine])[-1]
        apart[to] = np.diff(starts)
    piped = max(took, target.dependent_cycles / target.clock_ghz(engine))
    np.testing.assert_allclose(apart["b"], took)
    np.testing.assert_allclose(apart["a"], piped)
    assert (piped > took) == (width == 1 and took < piped)
    if (name, engine, width) == ("trn1", "scalar", 1):
        assert piped == pytest.approx(189, abs=1)
