"""Random programs against a plain NumPy account of the same steps: values, initialisation, memory, time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.timing import memory
from nki_sim.timing.explain import explain_latency
from nki_sim.timing.forecast import forecast_program
from nki_sim.timing.schedule import QUEUES, schedule
from nki_sim.timing.uncertainty import predict_interval
from tests.support.sweeps import scale_examples

TRN2 = targets.load("trn2")
ROWS, COLUMNS = 128, 48
X = ArraySpec((ROWS, COLUMNS), "float32")

Box = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Step:
    """One instruction on the tiles t0..t2: its name, tiles, boxes of equal shape, and a constant."""

    op: str
    tiles: tuple[int, int, int]
    boxes: tuple[Box, Box, Box]
    value: float


@st.composite
def steps(draw: Any) -> Step:
    """Boxes that obey the start-partition rule: (first row, rows, first column, columns, column step)."""
    start = draw(st.sampled_from([0, 32, 64, 96]))
    rows = draw(st.integers(1, 32))
    width = draw(st.integers(1, 12))
    boxes = []
    for _ in range(3):
        stride = draw(st.sampled_from([1, 2, 3]))
        first = draw(st.integers(0, COLUMNS - 1 - stride * (width - 1)))
        boxes.append((start, rows, first, width, stride))
    tiles = tuple(draw(st.integers(0, 2)) for _ in range(3))
    op = draw(st.sampled_from(["load", "memset", "copy", "add", "scale", "square", "store"]))
    return Step(op, tiles, tuple(boxes), draw(st.integers(-3, 3)) / 2)


def text_of(box: Box) -> str:
    start, rows, first, width, stride = box
    return f"[{start}:{start + rows}, {first}:{first + stride * (width - 1) + 1}:{stride}]"


def index_of(box: Box) -> tuple[slice, slice]:
    start, rows, first, width, stride = box
    return slice(start, start + rows), slice(first, first + stride * (width - 1) + 1, stride)


def line_of(step: Step) -> str:
    a, b, c = (f"t{tile}{text_of(box)}" for tile, box in zip(step.tiles, step.boxes, strict=True))
    out, x = f"out{text_of(step.boxes[0])}", f"x{text_of(step.boxes[1])}"
    return {
        "load": f"nisa.dma_copy({a}, {x})",
        "memset": f"nisa.memset({a}, {step.value})",
        "copy": f"nisa.tensor_copy({a}, {b}, engine=nisa.engine.gpsimd)",
        "add": f"nisa.tensor_tensor({a}, {b}, {c}, nl.add)",
        "scale": f"nisa.tensor_scalar({a}, {b}, nl.multiply, {step.value})",
        "square": f"nisa.activation({a}, nl.square, {b})",
        "store": f"nisa.dma_copy({out}, {b})",
    }[step.op]


def kernel_of(program: list[Step]) -> str:
    tiles = [
        f"    t{i} = nl.ndarray(({ROWS}, {COLUMNS}), dtype=nl.float32, buffer=nl.sbuf)" for i in range(3)
    ]
    lines = "\n".join([*tiles, *[f"    {line_of(step)}" for step in program]])
    return f"""
@nki.jit
def kernel(x):
    out = nl.ndarray(({ROWS}, {COLUMNS}), dtype=nl.float32, buffer=nl.shared_hbm)
{lines}
    return out
"""


def account(program: list[Step], x: Any) -> tuple[Any, bool]:
    """The output, NaN where nobody wrote, and whether it holds what depends on unwritten elements."""
    tiles = [np.full((ROWS, COLUMNS), np.nan, np.float32) for _ in range(3)]
    written = [np.zeros((ROWS, COLUMNS), bool) for _ in range(3)]
    out = np.full((ROWS, COLUMNS), np.nan, np.float32)
    undefined = np.zeros((ROWS, COLUMNS), bool)
    for step in program:
        (ta, tb, tc), (a, b, c) = step.tiles, [index_of(box) for box in step.boxes]
        used = {"copy": 1, "scale": 1, "square": 1, "store": 1, "add": 2}.get(step.op, 0)
        known = np.ones((a[0].stop - a[0].start, step.boxes[0][3]), bool)
        for tile, box in ((tb, b), (tc, c))[:used]:
            known &= written[tile][box]
        left, right = tiles[tb][b].copy(), tiles[tc][c].copy()
        results = {
            "load": lambda b=b: x[b],
            "memset": lambda step=step: np.float32(step.value),
            "copy": lambda left=left: left,
            "add": lambda left=left, right=right: left + right,
            "scale": lambda left=left, step=step: left * np.float32(step.value),
            "square": lambda left=left: left * left,
            "store": lambda left=left: left,
        }
        goal = out if step.op == "store" else tiles[ta]
        goal[a] = results[step.op]()
        if step.op == "store":
            undefined[a] = ~known
        else:
            written[ta][a] = known
    return out, bool(undefined.any())


PROGRAMS = st.lists(steps(), min_size=1, max_size=14)


@settings(max_examples=scale_examples(150))
@given(program=PROGRAMS)
def test_values_and_initialisation_are_those_of_the_account(program: list[Step], tracing: Any) -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.0, (ROWS, COLUMNS)).astype(np.float32)
    wanted, unwritten = account(program, x)
    traced = tracing(kernel_of(program), X)
    (found,) = numerics.run(traced, [x])
    np.testing.assert_array_equal(found, wanted)
    codes = {item.code for item in checks.check(traced, TRN2)}
    assert ("uninitialised_read" in codes) == unwritten
    stored = np.zeros((ROWS, COLUMNS), bool)
    for step in program:
        if step.op == "store":
            stored[index_of(step.boxes[0])] = True
    assert ("tensor_output_not_written_to" in codes) == (not stored.all())


@settings(max_examples=scale_examples(40))
@given(program=PROGRAMS)
def test_running_in_the_scheduled_order_gives_the_same_values(program: list[Step], tracing: Any) -> None:
    """Dependences are complete: executing by start time instead of program order changes nothing."""
    traced = tracing(kernel_of(program), X)
    x = np.random.default_rng(1).uniform(0.5, 1.0, (ROWS, COLUMNS)).astype(np.float32)
    timeline = schedule(traced, TRN2)
    order = np.lexsort((np.arange(len(traced)), timeline.start_ns))
    (reordered,) = numerics.run(tracing(kernel_of([program[i] for i in order]), X), [x])
    np.testing.assert_array_equal(reordered, numerics.run(traced, [x])[0])


@settings(max_examples=scale_examples(40))
@given(program=PROGRAMS)
def test_every_program_can_be_timed_and_explained(program: list[Step], tracing: Any) -> None:
    traced = tracing(kernel_of(program), X)
    predicted = forecast_program(traced, TRN2)
    timeline = predicted.timeline
    assert np.all(timeline.end_ns > timeline.start_ns)
    assert np.all(timeline.start_ns >= timeline.issue_ns)
    found = explain_latency(predicted)
    engines = {"tensor", "vector", "scalar", "gpsimd", "dma"}
    assert found.bottleneck in engines | {"dependency", "overhead", "underutilised"}
    assert np.isclose(sum(part.ms for part in found.critical_path), found.latency_ms)
    for track in found.tracks:
        whole = track.busy_ms + sum(wait.ms for wait in track.waits) + track.done_ms
        assert np.isclose(whole, found.latency_ms - found.overhead_ms)
    assert all(0 <= use.peak <= use.capacity for use in found.occupancy)
    prediction = predict_interval(predicted, draws=2)
    assert prediction.lo_ms <= prediction.latency_ms <= prediction.hi_ms


def high_water(program: Program, name: str) -> int:
    """Peak use by walking the instructions one by one."""
    spans: dict[int, list[int]] = {}
    for number, tensor in zip(program.cells.instruction.tolist(), program.cells.tensor.tolist(), strict=True):
        if program.site(tensor).buffer == name:
            spans.setdefault(tensor, [number, number])[1] = number
    return max(
        sum(
            memory.tile_footprint(program.site(tensor), TRN2)
            for tensor, (first, last) in spans.items()
            if first <= at <= last
        )
        for at in range(len(program))
    )


@settings(max_examples=scale_examples(25))
@given(
    sizes=st.lists(st.tuples(st.integers(1, 40_000), st.integers(0, 4)), min_size=1, max_size=9),
    psum=st.booleans(),
)
def test_capacity_is_the_high_water_mark_of_lifetimes(
    sizes: list[tuple[int, int]], psum: bool, tracing: Any
) -> None:
    """Each tile is written, and read again `delay` tiles later."""
    name = "psum" if psum else "sbuf"
    limit = 512 if psum else 40_000
    text = f"""
@nki.jit
def kernel(x):
    out = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    made, due = [], {{}}
    for i, (size, delay) in enumerate({[(min(size, limit), delay) for size, delay in sizes]}):
        t = nl.ndarray((1, size), dtype=nl.float32, buffer=nl.{name})
        nisa.memset(t, 0.0)
        due.setdefault(i + delay, []).append(t)
        for old in due.pop(i, []):
            nisa.tensor_scalar(old, old, nl.add, 1.0)
    for tiles in due.values():
        for old in tiles:
            nisa.tensor_scalar(old, old, nl.add, 1.0)
    return out
"""
    program = tracing(text, ArraySpec((1, 1), "float32"))
    peak = high_water(program, name)
    violations = checks.check(program, TRN2)
    capacity = memory.memory_capacity(name, TRN2)
    assert [(item.code, item.value) for item in violations] == (
        [(f"{name}_capacity", peak)] if peak > capacity else []
    )
    if not violations:
        assert len(schedule(program, TRN2).end_ns) == len(program)


def test_lookahead_is_what_the_window_allows(tracing: Any) -> None:
    """An independent instruction overtakes waiting ones only from within the window."""
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 48), dtype=nl.float32, buffer=nl.shared_hbm)
        late = nl.ndarray((128, 48), dtype=nl.float32, buffer=nl.sbuf)
        free = nl.ndarray((128, 48), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(late, x)
        nisa.tensor_scalar(late, late, nl.add, 1.0)
        nisa.tensor_scalar(late, late, nl.add, 1.0)
        nisa.memset(free, 0.0)
        nisa.dma_copy(out, late)
        return out
    """
    program = tracing(text, X)
    starts = {
        window: schedule(program, replace(TRN2, issue_window=window)).start_ns[3] for window in (1, 2, 3)
    }
    assert starts[3] == 0.0
    assert starts[2] > schedule(program, TRN2).end_ns[0]
    assert starts[1] > starts[2] - 1e-9


def test_every_queue_has_work_of_its_own(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 48), dtype=nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray((128, 48), dtype=nl.float32, buffer=nl.sbuf)
        p = nl.ndarray((48, 48), dtype=nl.float32, buffer=nl.psum)
        nisa.dma_copy(t, x)
        nisa.nc_matmul(p, t, t)
        nisa.tensor_copy(t[0:48], p)
        nisa.activation(t, nl.exp, t)
        nisa.memset(t[96:128], 0.0, engine=nisa.engine.gpsimd)
        nisa.dma_copy(out, t)
        return out
    """
    program = tracing(text, X)
    order = ["dma_load", "tensor", "vector", "scalar", "gpsimd", "dma_store"]
    assert [QUEUES[index] for index in schedule(program, TRN2).queue] == order
    assert {*order, "sync", "dma_software"} == set(QUEUES)
