"""Programs as data: round trips, validation of what comes from outside, nothing but IRError on garbage."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.errors import IRError, SimError
from nki_sim.frontend import isa, language
from nki_sim.program import wire
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.timing.counters import profile_counters
from nki_sim.timing.forecast import forecast_program
from tests.support.sweeps import scale_examples

ARGS = ArraySpec((128, 256), "float32"), ArraySpec((256, 512), "float32")


@pytest.fixture(scope="module")
def program(tracing: Any, texts: Any) -> Program:
    return tracing(texts.matmul, *ARGS)


@pytest.fixture(scope="module")
def data(program: Program) -> bytes:
    return program.to_bytes()


def rebuilt(data: bytes, change: Any) -> bytes:
    """The program with its header changed in place by `change`."""
    header, columns = wire.unpack(data)
    change(header)
    return wire.pack(
        {name: value for name, value in header.items() if name != "lengths"},
        {name: bytes(column) for name, column in columns.items()},
    )


def test_bytes_come_back_the_same(program: Program, data: bytes) -> None:
    again = Program.from_bytes(data)
    assert again.to_bytes() == data
    assert (again.sites, again.forms, again.inputs, again.outputs) == (
        program.sites, program.forms, program.inputs, program.outputs,
    )  # fmt: skip
    assert np.array_equal(again.offsets, program.offsets)


def test_programs_say_what_they_are(program: Program) -> None:
    assert (program.target, program.kernel, program.filename) == ("trn2", "kernel", "kernel.py")
    assert program.array_specs(program.inputs) == list(ARGS)
    assert program.array_specs(program.outputs) == [ArraySpec((128, 512), "float32")]
    names = [program.site(tensor).name for tensor in range(len(program.tensor_sites))]
    assert names[:5] == ["lhs", "rhs", "out", "x", "xt"]


def test_a_loop_is_one_form_per_instruction_of_its_body(program: Program, tracing: Any, texts: Any) -> None:
    larger = tracing(texts.matmul, ArraySpec((512, 1024), "float32"), ArraySpec((1024, 2048), "float32"))
    assert len(larger) > 10 * len(program)
    assert len(larger.forms) == len(program.forms)


def test_infinities_survive(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((1, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray((1, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(t[:, 0:2], float("-inf"))
        nisa.memset(t[:, 2:4], float("nan"))
        nisa.dma_copy(out, t)
        return out
    """
    (found,) = numerics.run(tracing(text, ARGS[0]), [np.zeros((128, 256), np.float32)])
    np.testing.assert_array_equal(found, [[-np.inf, -np.inf, np.nan, np.nan]])


HEADER_CHANGES = {
    "unknown operator": lambda h: h["forms"][0].__setitem__(0, "launch"),
    "unknown engine": lambda h: h["forms"][0].__setitem__(1, "warp"),
    "wrong engine": lambda h: h["forms"][0].__setitem__(1, "tensor"),
    "no operands": lambda h: h["forms"][0].__setitem__(2, []),
    "unknown role": lambda h: h["forms"][0][2][0].__setitem__(0, "sink"),
    "operand twice": lambda h: h["forms"][0][2].append(h["forms"][0][2][0]),
    "operands swapped": lambda h: h["forms"][0][2].reverse(),
    "negative step": lambda h: h["forms"][0][2][0][1][0].__setitem__(0, -1),
    "zero count": lambda h: h["forms"][0][2][0][1][0].__setitem__(1, 0),
    "larger count": lambda h: h["forms"][0][2][1][1][0].__setitem__(1, 4096),
    "count beyond memory": lambda h: h["forms"][0][2][1][1][0].__setitem__(1, 1 << 62),
    "true as a count": lambda h: h["forms"][0][2][1][1][0].__setitem__(1, True),
    "wider type of an operand": lambda h: h["forms"][0][2][0].__setitem__(2, "int8"),
    "buffer of an operand": lambda h: h["forms"][0][2][0].__setitem__(3, "psum"),
    "row of an operand": lambda h: h["forms"][0][2][0].__setitem__(4, 17),
    "start of an operand": lambda h: h["forms"][0][2][0].__setitem__(5, 64),
    "unknown parameter": lambda h: h["forms"][0][3].append(["speed", 1.0]),
    "parameter of another type": lambda h: h["forms"][3][3].append(["accumulate", 1]),
    "no such dtype": lambda h: h["sites"][0].__setitem__(2, "float128"),
    "no such buffer": lambda h: h["sites"][0].__setitem__(3, "l2"),
    "smaller tensor": lambda h: h["sites"][0].__setitem__(1, [1, 256]),
    "huge tensor": lambda h: h["sites"][0].__setitem__(1, [1 << 40, 2]),
    "tile of one dimension": lambda h: h["sites"][3].__setitem__(1, [128]),
    "text as a shape": lambda h: h["sites"][0].__setitem__(1, "128"),
    "input that is no tensor": lambda h: h.__setitem__("inputs", [99]),
    "input on chip": lambda h: h.__setitem__("inputs", [3]),
    "input twice": lambda h: h.__setitem__("inputs", [0, 0]),
    "no output": lambda h: h.__setitem__("outputs", []),
    "output on chip": lambda h: h.__setitem__("outputs", [3]),
    "constant that is no tensor": lambda h: h.__setitem__("constants", [99]),
    "constant without bytes": lambda h: h.__setitem__("constants", [1]),
    "constant on chip": lambda h: h.__setitem__("constants", [3]),
    "long name": lambda h: h.__setitem__("kernel", "k" * 1000),
    "forms missing": lambda h: h.pop("forms"),
    "one form less": lambda h: h["forms"].pop(),
    "one site less": lambda h: h["sites"].pop(),
}


@pytest.mark.parametrize("name", HEADER_CHANGES)
def test_a_header_that_lies_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(IRError):
        Program.from_bytes(rebuilt(data, HEADER_CHANGES[name]))


@pytest.mark.parametrize("column", ["tensor_sites", "forms", "tensors", "offsets"])
@pytest.mark.parametrize("value", [b"\xff", b"\x7f"])
def test_a_column_that_points_outside_is_refused(column: str, value: bytes, data: bytes) -> None:
    header, columns = wire.unpack(data)
    made = {name: bytes(part) for name, part in columns.items()}
    width = 8 if column == "offsets" else 4
    made[column] = made[column][:-width] + value * width
    header.pop("lengths")
    with pytest.raises(IRError):
        Program.from_bytes(wire.pack(header, made))


def test_a_version_of_the_future_is_refused_by_number(data: bytes) -> None:
    with pytest.raises(IRError, match="version 7"):
        Program.from_bytes(data[:8] + b"\x07\x00" + data[10:])


def test_deep_nesting_is_refused() -> None:
    text = b"[" * 100_000
    with pytest.raises(IRError):
        Program.from_bytes(wire._HEAD.pack(wire.MAGIC, wire.VERSION, len(text)) + text)


@given(st.binary(max_size=400))
def test_any_bytes_give_only_an_ir_error(noise: bytes) -> None:
    for prefix in (b"", wire._HEAD.pack(wire.MAGIC, wire.VERSION, len(noise))):
        with pytest.raises(IRError):
            Program.from_bytes(prefix + noise)


@settings(max_examples=scale_examples(120))
@given(edits=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_programs_are_refused_or_can_be_used(edits: list[tuple[int, int]], data: bytes) -> None:
    """What passes validation may be wrong, but never breaks what comes after it."""
    noise = bytearray(data)
    for place, value in edits:
        noise[place % len(noise)] = value
    try:
        program = Program.from_bytes(bytes(noise))
    except IRError:
        return
    use(program)


@pytest.fixture(scope="module")
def rich(building: Any) -> bytes:
    """A program with all that front ends can put into one: iterations, a loop, constants, two cores."""

    def body(b: Any) -> None:
        table = b.recorder.declare_constant("table", (128, 64), "float32", bytes(128 * 64 * 4))
        tile = b.tile("t")
        isa.dma_copy(tile, table)
        b.loop(2, lambda i: isa.memset(tile[:, 8 * i : 8 * i + 8], 1.0))
        register = b.register()
        b.emit("register_move", dst=register, src=2)
        b.emit("loop_begin", condition=register)
        isa.tensor_scalar(tile, tile, language.add, 1.0)
        b.emit("register_alu", dst=register, left=register, right=1, op=language.subtract)
        b.emit("loop_end", condition=register)
        b.recorder.core = 1
        isa.memset(b.recorder.declare((128, 8), "float32", "sbuf", "placed", (0, 64)), 0.0)
        b.recorder.core = 0

    return bytes(building(body, dialect="nki").to_bytes())


@settings(max_examples=scale_examples(150))
@given(edits=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_loops_iterations_and_cores_are_refused_or_can_be_used(
    edits: list[tuple[int, int]], rich: bytes
) -> None:
    noise = bytearray(rich)
    # The bytes of the constant, at the end, are any bytes; what comes before them is what can lie.
    for place, value in edits:
        noise[place % (len(noise) - 128 * 64 * 4)] = value
    try:
        program = Program.from_bytes(bytes(noise))
    except IRError:
        return
    use(program)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=scale_examples(120))
@given(draw=st.data())
def test_mutated_headers_are_refused_or_can_be_used(draw: Any, data: bytes) -> None:
    header, columns = wire.unpack(data)
    header = json.loads(json.dumps(header))
    place: Any = header
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or draw.draw(st.booleans()):
            break
        place = place[key]
    place[key] = draw.draw(JSON)
    if "lengths" in header:
        header.pop("lengths")
    made = {name: bytes(part) for name, part in columns.items()}
    try:
        program = Program.from_bytes(wire.pack(header, made))
    except IRError:
        return
    use(program)


def use(program: Program) -> None:
    """Check and, when it is fit, run a program: only the simulator's own errors may come out."""
    try:
        if not checks.check(program, targets.load("trn2")):
            arrays = [np.zeros(spec.shape, np.float32) for spec in program.array_specs(program.inputs)]
            assert len(numerics.run(program, arrays)) == len(program.outputs)
            assert profile_counters(forecast_program(program, targets.load("trn2")))
    except SimError:
        return
