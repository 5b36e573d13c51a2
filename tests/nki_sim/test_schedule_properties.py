"""What holds for the schedule of any program: random ones that use every engine, port, queue and memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Program
from nki_sim.targets import Target
from nki_sim.timing.busy_time import instruction_busy_ns
from nki_sim.timing.chip_results import pipeline_ns
from nki_sim.timing.dependences import find_dependences
from nki_sim.timing.dma import hbm_ns
from nki_sim.timing.forecast import forecast_program
from nki_sim.timing.memory import memory_capacity, tile_footprint
from nki_sim.timing.ports import find_held_ports
from nki_sim.timing.schedule import (
    CAUSES,
    ENGINES,
    FIRST_DMA,
    QUEUES,
    TABLE,
    Assumptions,
    schedule,
)  # fmt: skip
from nki_sim.timing.what_if import what_ifs
from tests.support.sweeps import scale_examples

TARGETS = {name: targets.load(name) for name in ("trn1", "trn2")}
ROWS, COLUMNS = 128, 256
X = ArraySpec((ROWS, COLUMNS), "float32")
EXACT = 1 + 1e-12


@dataclass(frozen=True)
class Step:
    """One step of a program: what it does, on which of the tiles so far, how wide, and a variant of it."""

    op: str
    first: int
    second: int
    width: int
    variant: int


STEPS = st.builds(
    Step,
    st.sampled_from(["load", "gather", "store", "matmul", "drain", "function", "pair", "copy", "parts"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([32, 64, 128]),
    st.integers(0, 3),
)
PROGRAMS = st.tuples(st.lists(STEPS, min_size=1, max_size=20), st.sampled_from(["float32", "bfloat16"]))


@dataclass(frozen=True)
class Case:
    """A program and a machine: small constants make small programs meet what large ones meet.

    `spare` are bytes of SBUF beyond what the program needs when it runs in order, None for all there is.
    """

    program: tuple[list[Step], str]
    target: str
    ramp_ns: float
    hbm_bytes_per_ns: float
    spare: int | None


CASES = st.builds(
    Case,
    PROGRAMS,
    st.sampled_from(sorted(TARGETS)),
    st.sampled_from([0.0, 300.0, 3000.0]),
    st.sampled_from([60.0, 716.0]),
    st.sampled_from([None, 0, 128, 512]),
)


class Writer:
    """The text of a kernel, step by step: tiles are named as they come, and used again by number."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._tiles: list[tuple[str, int]] = []
        self._sums: list[tuple[str, int]] = []
        self.lines = [
            "ones = nl.ndarray((128, 128), dtype=nl.DTYPE, buffer=nl.sbuf)",
            "nisa.memset(ones, 1.0)",
        ]
        self._count = 0

    def _new(self, width: int, buffer: str = "sbuf", dtype: str = "") -> str:
        self._count += 1
        name = f"t{self._count}"
        self.lines.append(
            f"{name} = nl.ndarray((128, {width}), dtype=nl.{dtype or self._dtype}, buffer=nl.{buffer})"
        )
        return name

    def _tile(self, number: int) -> tuple[str, int]:
        if not self._tiles:
            self.load(Step("load", 0, 0, 64, 0))
        return self._tiles[-1 - number % len(self._tiles)]

    def load(self, step: Step) -> None:
        name = self._new(step.width)
        rows = 128 // (1, 1, 4, 128)[step.variant]
        self.lines += [f"nisa.memset({name}, 0.0)"] * (rows < 128)
        mode = ("unknown", "none")[step.variant % 2]
        self.lines.append(
            f"nisa.dma_copy({name}[0:{rows}, :], x[0:{rows}, 0:{step.width}], dge_mode=nisa.dge_mode.{mode})"
        )
        self._tiles.append((name, step.width))

    def gather(self, step: Step) -> None:
        name = self._new(step.width)
        self.lines.append(f"nisa.dma_copy({name}, x[:, 0:{step.width}], dge_mode=nisa.dge_mode.swdge)")
        self._tiles.append((name, step.width))

    def store(self, step: Step) -> None:
        name, width = self._tile(step.first)
        mode = ("unknown", "none")[step.variant % 2]
        self.lines.append(f"nisa.dma_copy(out[:, 0:{width}], {name}, dge_mode=nisa.dge_mode.{mode})")

    def matmul(self, step: Step) -> None:
        name, width = self._tile(step.first)
        total = self._new(width, "psum", "float32")
        self.lines += [f"nisa.nc_matmul({total}, ones, {name})"] * (1 + step.variant)
        self._sums.append((total, width))

    def drain(self, step: Step) -> None:
        if not self._sums:
            self.matmul(replace(step, op="matmul"))
        total, width = self._sums[-1 - step.first % len(self._sums)]
        name = self._new(width)
        scalar = f"nisa.activation({name}, nl.copy, {total})"
        self.lines.append(scalar if step.variant % 2 else f"nisa.tensor_copy({name}, {total})")
        self._tiles.append((name, width))

    def function(self, step: Step) -> None:
        name, _ = self._tile(step.first)
        function = ("exp", "tanh", "copy", "exp")[step.variant]
        self.lines.append(f"nisa.activation({name}, nl.{function}, {name})")

    def pair(self, step: Step) -> None:
        (name, width), (other, limit) = self._tile(step.first), self._tile(step.second)
        common = min(width, limit)
        engine = ("vector", "gpsimd")[step.variant % 2]
        self.lines.append(
            f"nisa.tensor_tensor({name}[:, 0:{common}], {name}[:, 0:{common}], {other}[:, 0:{common}], "
            f"nl.add, engine=nisa.engine.{engine})"
        )

    def parts(self, step: Step) -> None:
        """A tile that two engines fill, each its part."""
        name, half = self._new(step.width), step.width // 2
        self.lines += [
            f"nisa.memset({name}[:, 0:{half}], 0.0)",
            f"nisa.memset({name}[:, {half}:], 0.0, engine=nisa.engine.gpsimd)",
        ]
        self._tiles.append((name, step.width))

    def copy(self, step: Step) -> None:
        name, width = self._tile(step.first)
        made = self._new(width)
        engine = ("vector", "gpsimd")[step.variant % 2]
        self.lines.append(f"nisa.tensor_copy({made}, {name}, engine=nisa.engine.{engine})")
        self._tiles.append((made, width))


def kernel_of(steps: list[Step], dtype: str, extra: dict[int, str] | None = None) -> str:
    """The kernel of some steps; `extra` are lines to put before the line of that number."""
    writer = Writer(dtype)
    for step in steps:
        getattr(writer, step.op)(step)
    lines = []
    for number, line in enumerate(writer.lines):
        lines += [(extra or {}).get(number, "pass"), line.replace("DTYPE", dtype)]
    body = "\n    ".join(lines)
    return f"""
@nki.jit
def kernel(x):
    out = nl.ndarray(({ROWS}, {COLUMNS}), dtype=nl.float32, buffer=nl.shared_hbm)
    {body}
    nisa.dma_copy(out, x)
    return out
"""


MANY = settings(max_examples=scale_examples(30), deadline=None)


def build(tracing: Any, case: Case) -> tuple[Program, Target]:
    """The program of a case, and its machine."""
    program = tracing(kernel_of(*case.program), X, target=case.target)
    target = replace(
        TARGETS[case.target],
        tensor_ramp_ns=case.ramp_ns,
        tensor_ramp_ratio=0.5,
        hbm_bytes_per_ns=case.hbm_bytes_per_ns,
        dma_slice_bytes=512,
    )
    if case.spare is not None:
        room = needed(program, target) + case.spare + target.sbuf_reserved_bytes
        target = replace(target, sbuf_partition_bytes=room)
    return program, target


def needed(program: Program, target: Target) -> int:
    """The most SBUF that a program takes when it runs in order."""
    spans = defaultdict(list)
    for number, tensor in zip(program.cells.instruction.tolist(), program.cells.tensor.tolist(), strict=True):
        if program.site(tensor).buffer == "sbuf":
            spans[tensor].append(number)
    return max(
        sum(
            tile_footprint(program.site(tensor), target)
            for tensor, at in spans.items()
            if at[0] <= moment <= at[-1]
        )
        for moment in range(len(program))
    )


@MANY
@given(case=CASES)
def test_a_schedule_timed_again_in_its_own_order_is_the_same(case: Case, tracing: Any) -> None:
    program, target = build(tracing, case)
    first = schedule(program, target)
    again = schedule(program, target, order=first)
    for name in ("issue_ns", "start_ns", "end_ns", "table_ns", "ramp_ns"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))


def faster(target: Target, name: str, factor: float) -> Target:
    """A target of which one constant has moved in the kernel's favour."""
    value = getattr(target, name)
    if name.endswith(("_ghz", "per_ns", "_ratio")):
        return replace(target, **{name: value / factor})
    if name == "psum_accumulate_stretch":
        return replace(target, **{name: 1 + (value - 1) * factor})
    return replace(target, **{name: value * factor})


TIMES = sorted(
    name
    for name in TARGETS["trn2"].sources
    if name.endswith(("_ns", "_cycles", "_ghz", "_stretch", "_reserved_bytes"))
)


@MANY
@given(case=CASES, name=st.sampled_from(TIMES), factor=st.floats(0.25, 1.0))
def test_no_constant_that_improves_makes_a_kernel_slower_in_the_same_order(
    case: Case, name: str, factor: float, tracing: Any
) -> None:
    program, target = build(tracing, case)
    order = schedule(program, target)
    better = schedule(program, faster(target, name, factor), order=order)
    assert np.all(better.end_ns <= order.end_ns * EXACT)
    assert better.latency_ms <= order.latency_ms * EXACT


@MANY
@given(case=CASES, free=st.frozensets(st.sampled_from(ENGINES)), dependences=st.booleans())
def test_what_costs_nothing_slows_nothing_down_in_the_same_order(
    case: Case, free: frozenset[str], dependences: bool, tracing: Any
) -> None:
    program, target = build(tracing, case)
    order = schedule(program, target)
    found = schedule(program, target, order=order, assume=Assumptions(free, dependences=dependences))
    assert np.all(found.end_ns <= order.end_ns * EXACT)
    if free == frozenset(ENGINES) and not dependences:
        assert found.span_ns == 0.0


@settings(max_examples=scale_examples(25), derandomize=True, deadline=None)
@given(steps=st.lists(STEPS, min_size=20, max_size=40))
def test_no_what_if_is_slower_than_what_is(steps: list[Step], tracing: Any) -> None:
    predicted = forecast_program(tracing(kernel_of(steps, "float32"), X), TARGETS["trn2"])
    for item in what_ifs(predicted):
        assert item.latency_ms <= predicted.latency_ms * EXACT, item.assumption


@MANY
@given(case=CASES, window=st.sampled_from([1, 3, 1000]))
def test_every_engine_does_one_thing_at_a_time(case: Case, window: int, tracing: Any) -> None:
    program, target = build(tracing, case)
    timeline = schedule(program, replace(target, issue_window=window, dma_window=window))
    for index in range(FIRST_DMA):
        mine = np.flatnonzero(timeline.queue == index)
        order = mine[np.argsort(timeline.start_ns[mine], kind="stable")]
        busy_from = timeline.start_ns[order] - timeline.table_ns[order]
        assert np.all(busy_from[1:] >= timeline.end_ns[order[:-1]] * (1 - 1e-12))


@MANY
@given(case=CASES)
def test_nothing_starts_before_what_it_needs_is_visible(case: Case, tracing: Any) -> None:
    program, target = build(tracing, case)
    timeline = schedule(program, target)
    dma = timeline.queue >= FIRST_DMA
    for number, before in enumerate(find_dependences(program).predecessors):
        for other in before:
            delay = target.dma_completion_ns
            if not dma[other]:
                delay = (
                    0.0
                    if dma[number] or timeline.queue[number] == timeline.queue[other]
                    else target.semaphore_ns
                )
            assert timeline.issue_ns[number] >= timeline.end_ns[other] + delay
    assert np.all(timeline.start_ns[dma] >= timeline.issue_ns[dma] + target.dma_trigger_ns)


@MANY
@given(case=CASES)
def test_a_port_serves_one_engine_at_a_time(case: Case, tracing: Any) -> None:
    program, target = build(tracing, case)
    timeline = schedule(program, target)
    costs = [OPERATORS[form.op].cost(form, target) for form in program.forms]
    users = defaultdict(list)
    for number, ports in enumerate(find_held_ports(program, target, costs).ports):
        form = program.form_ids[number]
        until = timeline.end_ns[number]
        if costs[form].software:
            until = timeline.issue_ns[number] + costs[form].descriptor_ns
        for port in ports:
            users[port].append((timeline.issue_ns[number], until))
    for intervals in users.values():
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(intervals)))


@MANY
@given(case=CASES)
def test_tiles_never_take_more_than_there_is(case: Case, tracing: Any) -> None:
    """From the first access of a tile to its last."""
    program, target = build(tracing, case)
    timeline = schedule(program, target)
    changes = defaultdict(list)
    for tensor in range(len(program.tensor_sites)):
        site = program.site(tensor)
        mine = program.cells.instruction[program.cells.tensor == tensor]
        if site.buffer in {"sbuf", "psum"} and len(mine):
            room = tile_footprint(site, target)
            changes[site.buffer] += [
                (timeline.issue_ns[mine].min(), room),
                (timeline.end_ns[mine].max(), -room),
            ]
    for memory, events in changes.items():
        used = np.cumsum([room for _, room in sorted(events)])
        assert used.max() <= memory_capacity(memory, target)


@MANY
@given(case=CASES)
def test_the_critical_path_adds_up_to_the_span(case: Case, tracing: Any) -> None:
    program, target = build(tracing, case)
    timeline = schedule(program, target)
    path = timeline.critical_path()
    assert path[0].begin_ns == 0.0
    assert path[-1].end_ns == timeline.span_ns
    assert all(one.end_ns == other.begin_ns for one, other in pairwise(path))
    assert all(step.begin_ns <= step.end_ns for step in path)
    assert all(step.end_ns <= timeline.end_ns[step.number] for step in path)
    for number, times in Counter(step.number for step in path).items():
        assert times <= 1 + (timeline.queue[number] >= FIRST_DMA), "once issued, once served"


@MANY
@given(case=CASES)
def test_causes_name_what_was_waited_for(case: Case, tracing: Any) -> None:
    program, target = build(tracing, case)
    timeline = schedule(program, target)
    waits = find_dependences(program).predecessors
    for number, cause in enumerate(timeline.cause.tolist()):
        before, name = int(timeline.blocker[number]), CAUSES[cause]
        assert (before < 0) == (name == "start" or (name == "table" and timeline.release_ns[number] == 0.0))
        if before >= 0:
            assert timeline.release_ns[number] <= timeline.end_ns[before]
        if name == "dependence":
            assert before in waits[number]
        if name in {"engine", "table"} and before >= 0:
            assert timeline.queue[before] == timeline.queue[number]
        if name == "dma":
            assert timeline.queue[before] >= FIRST_DMA
        if name == "port":
            assert timeline.queue[before] != timeline.queue[number]
        assert (name == "table") <= (timeline.table_ns[number] > 0.0)


@MANY
@given(case=CASES)
def test_every_start_follows_from_what_was_waited_for(case: Case, tracing: Any) -> None:
    """No time is lost: an instruction starts one known latency after its blocker lets go."""
    program, target = build(tracing, case)
    timeline = schedule(program, target)
    fill_ns = target.tensor_fill_cycles / target.tensor_clock_ghz
    for number, cause in enumerate(timeline.cause.tolist()):
        before, dma = int(timeline.blocker[number]), timeline.queue[number] >= FIRST_DMA
        waited = timeline.issue_ns[number] - (timeline.release_ns[number] if before >= 0 else 0.0)
        settle = target.semaphore_ns
        if before >= 0 and timeline.queue[before] >= FIRST_DMA:
            settle = target.dma_completion_ns
        piped = 0.0
        if before >= 0 and timeline.queue[before] == timeline.queue[number]:
            engine = QUEUES[timeline.queue[before]]
            piped = timeline.start_ns[before] + pipeline_ns(engine, target) - timeline.end_ns[before]
        latencies = {
            "start": {0.0},
            "dependence": {0.0, settle, fill_ns + settle, fill_ns, piped},
            "engine": {0.0},
            "memory": {settle},
            "port": {0.0},
            "dma": {0.0},
            "table": {timeline.table_ns[number]},
        }[CAUSES[cause]]
        if CAUSES[cause] == "dma" and timeline.issue_ns[number] != timeline.release_ns[number]:
            # The last of the engines that the first slice takes came free then.
            assert timeline.start_ns[number] <= timeline.release_ns[number] <= timeline.end_ns[number]
        else:
            assert min(abs(waited - latency) for latency in latencies) < 1e-6
        assert dma or timeline.issue_ns[number] == timeline.start_ns[number]


def costs_ns(program: Program, target: Target) -> Any:
    return instruction_busy_ns(
        program, target, [OPERATORS[form.op].cost(form, target) for form in program.forms]
    )


@MANY
@given(case=CASES, window=st.sampled_from([1, 32]))
def test_no_time_is_below_any_bound_nor_above_the_sum_of_everything(
    case: Case, window: int, tracing: Any
) -> None:
    program, target = build(tracing, case)
    timeline = schedule(program, replace(target, issue_window=window, dma_window=window))
    busy = costs_ns(program, target)
    costs = [OPERATORS[form.op].cost(form, target) for form in program.forms]
    lowest = [busy[timeline.queue == index].sum() for index in range(FIRST_DMA)]
    dma = np.flatnonzero(timeline.queue >= FIRST_DMA)
    width = np.array([cost.channels for cost in costs])[program.form_ids[dma]]
    lowest.append((busy[dma] * width).sum() / target.dma_engines)
    lowest.append(sum(hbm_ns(program.forms[form], target) for form in program.form_ids[dma].tolist()))
    chains = np.zeros(len(program))
    for number, before in enumerate(find_dependences(program).predecessors):
        chains[number] = busy[number] + max((chains[other] for other in before), default=0.0)
    assert timeline.span_ns >= max(*lowest, chains.max()) * (1 - 1e-12)
    extra = (
        target.dma_trigger_ns + target.dma_completion_ns + target.dma_descriptor_ns + target.semaphore_ns
        + target.dma_software_descriptor_ns + target.tensor_fill_cycles / target.tensor_clock_ghz
        + target.activation_table_ns + target.dma_issue_ns + pipeline_ns("vector", target)
    )  # fmt: skip
    assert timeline.span_ns <= busy.sum() + timeline.ramp_ns.sum() + extra * len(program)


@MANY
@given(
    program=PROGRAMS.filter(lambda drawn: drawn[1] == "float32"),
    places=st.lists(st.integers(0, 8), min_size=1, max_size=4),
)
def test_what_shares_nothing_with_the_critical_path_costs_nothing(
    program: tuple[list[Step], str], places: list[int], tracing: Any
) -> None:
    """GpSimd fills tiles of its own while nothing else runs on it: float32 leaves its bus alone."""
    steps = [replace(step, variant=0) for step in program[0] if step.op not in {"gather", "parts"}]
    tile = "nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)"
    extra = dict.fromkeys(places, f"nisa.memset({tile}, 0.0, nisa.engine.gpsimd)")
    alone = schedule(tracing(kernel_of(steps, "float32"), X), TARGETS["trn2"])
    together = schedule(tracing(kernel_of(steps, "float32", extra), X), TARGETS["trn2"])
    own = float(together.end_ns[together.queue == QUEUES.index("gpsimd")].max(initial=0.0))
    assert together.span_ns == pytest.approx(max(alone.span_ns, own), rel=1e-12)


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.parametrize("kind", ["stream", "matmul"])
def test_twice_the_rows_take_twice_the_time_but_for_the_ramp(
    name: str, kind: str, tracing: Any, texts: Any
) -> None:
    spans = []
    for rows in (12 * 128, 24 * 128):
        if kind == "stream":
            program = tracing(texts.stream(width=512), ArraySpec((rows, 1024), "float32"), target=name)
        else:
            shapes = (ArraySpec((rows, 256), "float32"), ArraySpec((256, 512), "float32"))
            program = tracing(texts.matmul, *shapes, target=name)
        spans.append(schedule(program, TARGETS[name]).span_ns)
    assert abs(spans[1] - 2 * spans[0]) < 10_000.0


def test_a_table_is_loaded_while_its_data_is_under_way(tracing: Any) -> None:
    """The load begins when ScalarE is free; its data come later, so that nothing waits for the table."""
    program = tracing(kernel_of([Step("load", 0, 0, 128, 0), Step("function", 0, 0, 64, 0)], "float32"), X)
    timeline = schedule(program, TARGETS["trn2"])
    number = int(np.flatnonzero(timeline.queue == QUEUES.index("scalar"))[0])
    assert timeline.table_ns[number] == TARGETS["trn2"].activation_table_ns
    assert timeline.start_ns[number] > timeline.table_ns[number]
    assert timeline.cause[number] != TABLE
