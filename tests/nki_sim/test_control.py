"""Registers and loops whose bounds depend on data: arithmetic, validation, walls, what is left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.checks.coverage import examine_coverage
from nki_sim.errors import IRError
from nki_sim.forms import Form, Operand
from nki_sim.frontend import isa
from nki_sim.functions import REGISTER_ALU
from nki_sim.operators.rules import shapes as rules
from nki_sim.program.ir import Program
from nki_sim.semantics import SEMANTICS
from nki_sim.timing.dependences import find_dependences
from nki_sim.timing.forecast import forecast_program
from nki_sim.timing.schedule import QUEUES, schedule
from nki_sim.timing.uncertainty import predict_interval

TRN2 = targets.load("trn2")
Build = Callable[..., Program]

WANTED: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
    "maximum": lambda a, b: max(a, b), "minimum": lambda a, b: min(a, b),  # noqa: PLW0108
    "less": lambda a, b: a < b, "less_equal": lambda a, b: a <= b, "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b, "equal": lambda a, b: a == b, "not_equal": lambda a, b: a != b,
}  # fmt: skip


def wrapped(value: int, bits: int) -> int:
    """Two's complement at a width."""
    low = value % (1 << bits)
    return low - (1 << bits) if low >= 1 << (bits - 1) else low


def test_every_operation_is_stated_here() -> None:
    assert WANTED.keys() == REGISTER_ALU


@given(
    op=st.sampled_from(sorted(WANTED)),
    bits=st.sampled_from([32, 64]),
    values=st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1)),
    constant=st.booleans(),
)
def test_registers_wrap_at_their_width(op: str, bits: int, values: tuple[int, int], constant: bool) -> None:
    left, right = (wrapped(value, bits) for value in values)
    dtype = np.dtype(f"int{bits}")
    dst, first = np.zeros((1, 1), dtype), np.full((1, 1), left, dtype)
    views = {"dst": dst, "left": first} | ({} if constant else {"right": np.full((1, 1), right, dtype)})
    SEMANTICS["register_alu"](views, {"op": op, "right": right} if constant else {"op": op})
    assert int(dst[0, 0]) == wrapped(int(WANTED[op](left, right)), bits)


@pytest.mark.parametrize(("dtype", "value", "held"), [
    ("int8", -3, -3), ("uint8", 253, 253), ("int32", -(1 << 31), -(1 << 31)), ("uint32", 1 << 31, -(1 << 31)),
    ("float32", 1.0, 0x3F800000), ("float16", -2.0, 0xC000),
])  # fmt: skip
def test_loads_keep_integers_and_the_bits_of_floats(dtype: str, value: Any, held: int) -> None:
    """And a store of what was loaded gives the element back."""
    source, register = np.full((1, 1), value, dtype), np.zeros((1, 1), np.int32)
    SEMANTICS["register_load"]({"dst": register, "src": source}, {})
    assert register[0, 0] == held
    back = np.zeros((1, 1), dtype)
    SEMANTICS["register_store"]({"dst": back, "src": register}, {})
    np.testing.assert_array_equal(back, source)


def test_a_constant_moves_into_a_register() -> None:
    register = np.zeros((1, 1), np.int32)
    SEMANTICS["register_move"]({"dst": register}, {"src": (1 << 32) + 7})
    assert register[0, 0] == 7


# -- loops -----------------------------------------------------------------------------------------


def looped(b: Any, *bodies: Callable[[], None]) -> None:
    """The bodies, one inside the other, each after the marker that begins its loop."""
    register = b.register()
    b.emit("register_move", dst=register, src=1)
    for body in bodies:
        b.emit("loop_begin", condition=register)
        body()
    for _ in bodies:
        b.emit("loop_end", condition=register)


def test_markers_find_their_partners(building: Build) -> None:
    program = building(lambda b: looped(b, lambda: None, lambda: None))
    assert program.loop_partners == {1: 4, 4: 1, 2: 3, 3: 2}
    assert program.loops == [(1, 4), (2, 3)]
    assert Program.from_bytes(program.to_bytes()).loop_partners == program.loop_partners


@pytest.mark.parametrize(
    ("names", "message"),
    [(("loop_begin",), "no end"), (("loop_end",), "no instruction begins"),
     (("loop_begin", "loop_end", "loop_end"), "no instruction begins")],
)  # fmt: skip
def test_markers_without_a_partner_are_refused(names: tuple[str, ...], message: str, building: Build) -> None:
    def body(b: Any) -> None:
        register = b.register()
        b.emit("register_move", dst=register, src=1)
        for name in names:
            b.emit(name, condition=register)

    with pytest.raises(IRError, match=message):
        building(body)


def test_a_loop_belongs_to_one_core(building: Build) -> None:
    def body(b: Any) -> None:
        register = b.register()
        b.emit("register_move", dst=register, src=1)
        b.emit("loop_begin", condition=register)
        b.recorder.core = 1
        b.tile("t")
        b.recorder.core = 0
        b.emit("loop_end", condition=register)

    with pytest.raises(IRError, match="two cores"):
        building(body)


def test_nothing_moves_past_a_marker(building: Build) -> None:
    def body(b: Any) -> None:
        b.tile("before")
        looped(b, lambda: (b.tile("inside"), None)[1])
        b.tile("behind")

    program = building(body)
    waits = find_dependences(program).predecessors
    assert [program.forms[form].op for form in program.form_ids[:6]] == [
        "memset", "register_move", "loop_begin", "memset", "loop_end", "memset",
    ]  # fmt: skip
    assert [waits[number] for number in range(2, 6)] == [[0, 1], [2], [1, 2, 3], [4]]


def test_schedules_say_that_loops_are_timed_once(building: Build) -> None:
    program = building(lambda b: looped(b, lambda: None))
    timeline = schedule(program, TRN2)
    assert (timeline.dynamic_loops, predict_interval(forecast_program(program, TRN2)).dynamic_loops) == (1, 1)
    assert QUEUES[int(timeline.queue[0])] == "sync"
    assert schedule(building(lambda b: None), TRN2).dynamic_loops == 0


def unproven(program: Program) -> set[str]:
    assert checks.check(program, TRN2) == []
    return {program.site(tensor).name for tensor in examine_coverage(program).unproven}


def test_what_a_loop_writes_is_proven_inside_it_alone(building: Build) -> None:
    """It may run no times: a read behind it is for the run to look at; one before it is an error."""

    def body(b: Any, place: str) -> None:
        t = b.recorder.declare((128, 64), "float32", "sbuf", "t")
        copy = b.recorder.declare((128, 64), "float32", "sbuf", "copy")
        if place == "before":
            isa.tensor_copy(copy, t)

        def inside() -> None:
            isa.memset(t, 0.0)
            if place == "inside":
                isa.tensor_copy(copy, t)

        looped(b, inside)
        if place == "behind":
            isa.tensor_copy(copy, t)

    assert unproven(building(lambda b: body(b, "inside"))) == set()
    assert unproven(building(lambda b: body(b, "behind"))) == {"t"}
    early = building(lambda b: body(b, "before"))
    assert [item.code for item in checks.check(early, TRN2)] == ["uninitialised_read"]


@pytest.mark.parametrize(("dst", "left", "op", "codes"), [
    ("int64", "int64", "add", []), ("int32", "int32", "less", []),
    ("int64", "int32", "add", ["register_width"]), ("int64", "int64", "less", ["register_width"]),
])  # fmt: skip
def test_arithmetic_keeps_to_one_width(dst: str, left: str, op: str, codes: list[str]) -> None:
    operands = tuple(
        Operand(role, ((1, 1), (1, 1)), dtype, "register", 1, 0)
        for role, dtype in (("dst", dst), ("left", left))
    )
    form = Form("register_alu", "sync", operands, (("right", 1), ("op", op)))
    assert [breach.code for breach in rules.register_widths(form, TRN2)] == codes


@pytest.mark.parametrize(("register", "codes"), [("int32", ["register_width"]), ("int64", [])])
def test_a_register_takes_what_it_can_hold(register: str, codes: list[str]) -> None:
    dst = Operand("dst", ((1, 1), (1, 1)), register, "register", 1, 0)
    src = Operand("src", ((1, 1), (1, 1)), "int64", "hbm", 1, 0)
    form = Form("register_load", "sync", (dst, src), ())
    assert [breach.code for breach in rules.one_element(form, TRN2)] == codes
