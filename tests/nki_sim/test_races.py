"""Launches on two cores: races on HBM, capacity core by core, engines of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.checks.warnings import find_warnings
from nki_sim.errors import KernelError
from nki_sim.frontend import isa
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.timing.dependences import find_dependences
from nki_sim.timing.schedule import schedule

TRN2 = targets.load("trn2")
Build = Callable[..., Program]
Step = tuple[int, str, int]
"""(core, what, first column)."""


def program_of(*steps: Step) -> Callable[[Any], None]:
    """Each core has a tile; `write` stores 8 columns of it to `h`, `read` loads them, `meet` is a barrier."""

    def body(b: Any) -> None:
        h = b.recorder.declare((128, 64), "float32", "private_hbm", "h")
        isa.dma_copy(h, b.x)
        tiles = {}
        for core in (0, 1):
            b.emit("core_barrier")
            b.recorder.core = 1 - core
        for core in (0, 1):
            b.recorder.core = core
            tiles[core] = b.tile(f"t{core}", 8)
        for core, what, column in steps:
            b.recorder.core = core
            part = h[:, column : column + 8]
            if what == "meet":
                b.emit("core_barrier")
            elif what == "write":
                isa.dma_copy(part, tiles[core])
            else:
                isa.dma_copy(tiles[core], part)
        b.recorder.core = 0

    return body


@pytest.mark.parametrize(
    ("steps", "codes"),
    [
        ([(0, "write", 0), (1, "write", 8)], []),
        ([(0, "write", 0), (1, "write", 7)], ["write_write_race"]),
        ([(0, "write", 0), (1, "read", 4)], ["read_write_race"]),
        ([(0, "read", 0), (1, "write", 4)], ["read_write_race"]),
        ([(0, "read", 0), (1, "read", 4)], []),
        ([(0, "write", 0), (0, "read", 4)], []),
        ([(0, "write", 0), (0, "meet", 0), (1, "meet", 0), (1, "read", 4)], []),
        (
            [(0, "write", 0), (0, "meet", 0), (1, "meet", 0), (1, "read", 4), (0, "write", 0)],
            ["read_write_race"],
        ),
        ([(0, "write", 0), (0, "meet", 0), (1, "read", 4), (1, "meet", 0)], ["read_write_race"]),
    ],
)
def test_cores_race_unless_they_meet_in_between(steps: list[Step], codes: list[str], building: Build) -> None:
    program = building(program_of(*steps), dialect="nki")
    assert [item.code for item in checks.check(program, TRN2)] == codes


def test_a_barrier_waits_for_both_cores_and_both_wait_for_it(building: Build) -> None:
    steps = [(0, "write", 0), (0, "meet", 0), (1, "meet", 0), (1, "read", 4)]
    program = building(program_of(*steps), dialect="nki")
    waits = find_dependences(program).predecessors
    ops = [program.forms[form].op for form in program.form_ids.tolist()]
    first, second = [number for number, op in enumerate(ops) if op == "core_barrier"][-2:]
    assert {first - 1, first - 2} <= set(waits[first])
    assert first in waits[second]
    assert second in waits[second + 1]


def test_cores_have_engines_and_memory_of_their_own(building: Build) -> None:
    """The same work on two cores takes as long as on one, and each may fill its SBUF."""

    def work(*cores: int) -> Callable[[Any], None]:
        def body(b: Any) -> None:
            for core in cores:
                b.recorder.core = core
                tile = b.recorder.declare((128, 30_000), "float32", "sbuf", f"t{core}")
                for _ in range(4):
                    isa.memset(tile, 0.0)
            b.recorder.core = 0

        return body

    one, two = (building(work(*cores), dialect="nki") for cores in ((0,), (0, 1)))
    assert checks.check(two, TRN2) == []
    assert schedule(two, TRN2).latency_ms == pytest.approx(schedule(one, TRN2).latency_ms)
    assert schedule(two, TRN2).core.tolist() == [0] * 4 + [1] * 4 + [0]


def test_capacity_is_that_of_each_core(building: Build) -> None:
    def body(b: Any) -> None:
        for core in (0, 1):
            b.recorder.core = core
            for name in "ab"[: core + 1]:
                isa.memset(b.recorder.declare((128, 40_000), "float32", "sbuf", name), 0.0)
        b.recorder.core = 0

    assert checks.check(building(body, dialect="nki"), TRN2) == []


def test_a_core_that_overflows_is_named_alone(building: Build) -> None:
    def body(b: Any) -> None:
        b.recorder.core = 1
        tiles = [b.recorder.declare((128, 40_000), "float32", "sbuf", name) for name in "ab"]
        for tile in (*tiles, *tiles):
            isa.memset(tile, 0.0)
        b.recorder.core = 0

    program = building(body, dialect="nki")
    assert checks.check(program, TRN2) == []
    (found,) = find_warnings(program, TRN2)
    assert (found.code, found.value) == ("sbuf_spill", 320_000)


SHARED = """
@nki.jit
def kernel(x):
    out = nl.ndarray((8, 16), dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray((8, 16), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.tensor_scalar(t, t, nl.multiply, 2.0 + {different} * nl.program_id(0))
    nisa.dma_copy(dst=out, src=t)
    {again}
    return out
"""


@pytest.mark.parametrize(
    ("different", "again", "agree"),
    [(0, "pass", True), (1, "pass", False), (0, "nisa.dma_copy(dst=out[:, 0:8], src=t[:, 8:16])", True)],
)
def test_cores_may_store_the_same_result_both(different: int, again: str, agree: bool, tracing: Any) -> None:
    """Whether they do depends on data, so the run compares."""
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    program = tracing(SHARED.format(different=different, again=again), x, lnc=2)
    assert checks.check(program, TRN2) == []
    if agree:
        numerics.run(program, [x])
        return
    with pytest.raises(KernelError) as caught:
        numerics.run(program, [x])
    assert (caught.value.code, caught.value.line) == ("write_write_race", 13)
