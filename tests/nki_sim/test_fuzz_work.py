"""Small programs that ask for much: each stage is bounded, or says with a typed error what it will not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.errors import IRError, KernelError, LimitError
from nki_sim.flow import element_flow, provenance, regions, slices
from nki_sim.flow import graph as flow
from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.program import wire
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.timing import dependences as dependence

TARGET = targets.load("trn2")


def test_a_tile_larger_than_all_memory_is_refused(building: Any) -> None:
    def body(b: Any) -> None:
        tile = b.recorder.declare((128, 1 << 32), "float32", "sbuf", "t")
        isa.dma_copy(tile[:, 0:64], b.x)
        isa.dma_copy(tile[:, 100:164], b.x)

    program = building(body)
    with pytest.raises(LimitError, match="limit_memory"):
        checks.check(program, TARGET)
    with pytest.raises(LimitError, match="limit_memory"):
        numerics.run(program, [np.zeros((128, 64), np.float32)])


def test_outputs_too_large_to_look_at_are_refused(building: Any) -> None:
    def body(b: Any) -> None:
        large = b.recorder.declare((1 << 13, 1 << 19), "int8", "shared_hbm", "large")
        isa.dma_copy(large[:, : 1 << 18], large[:, 1 << 18 :])
        b.out = large
        b.x = large

    program = building(body)
    box = [((0, 1), (0, 1))]
    for stage in (
        lambda: slices.slice_backward(program, {0: box}),
        lambda: element_flow.find_input_elements(program, 0, (0, 0)),
    ):
        with pytest.raises(LimitError):
            stage()


def test_writes_wait_once_for_reads_that_writes_before_them_waited_for(building: Any) -> None:
    """Reads of one part and writes of another that overlaps it: as many pairs as instructions, no more."""
    count = 1000

    def body(b: Any) -> None:
        source, sink = b.tile("source"), b.tile("sink")
        for _ in range(count):
            isa.tensor_copy(sink[:, 0:2], source[:, 0:2], engine=isa.engine.vector)
        for _ in range(count):
            isa.memset(source[:, 1:3], 0.0)

    found = dependence.find_dependences(building(body)).predecessors
    assert sum(len(waits) for waits in found) < 6 * count


def _windows(b: Any) -> None:
    tile = b.tile("t", 256)
    for first in range(64):
        isa.memset(tile[:, first : first + 128], 0.0)
        isa.tensor_copy(b.tile("u", 128), tile[:, first + 1 : first + 129], engine=isa.engine.vector)


STAGES: dict[str, tuple[str, Callable[[Program], Any]]] = {
    "MAX_PAIRS": ("regions", flow.trace_data_flow),
    "MAX_COMPARED": ("regions", dependence.find_dependences),
    "MAX_WAITS": ("dependence", dependence.find_dependences),
    "MAX_STEPS": ("dependence", dependence.find_dependences),
    "MAX_SOURCES": ("flow", flow.trace_data_flow),
}


@pytest.mark.parametrize("limit", STAGES)
def test_overlapping_windows_are_bounded(limit: str, building: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    where, stage = STAGES[limit]
    stage(building(_windows))
    program = building(_windows)  # dependences of the other one are known
    monkeypatch.setattr({"regions": regions, "dependence": dependence, "flow": flow}[where], limit, 16)
    with pytest.raises(LimitError, match="limit_work"):
        stage(program)


def test_walls_are_followed_in_a_time_that_grows_with_the_program(building: Any) -> None:
    """Of instructions on the other core only the first wall behind them waits for each."""
    count = 200

    def body(b: Any) -> None:
        tile, other = b.tile("t"), b.tile("u")
        for _ in range(count):
            isa.memset(tile, 0.0)
        b.recorder.core = 1
        for _ in range(count):
            isa.memset(other, 0.0)
            b.emit("core_barrier")
        b.recorder.core = 0
        for _ in range(count):
            b.emit("core_barrier")
        b.x = tile

    program = building(body, dialect="nki")
    edges = sum(len(items) for items in dependence.find_dependences(program).predecessors)
    assert edges < 12 * count


def test_beyond_the_bound_reads_see_every_write_that_may_reach_them(
    building: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(b: Any) -> None:
        _windows(b)
        isa.memset(b.tile("v"), 1.0)

    program = building(body)
    exact = flow.trace_data_flow(program)
    monkeypatch.setattr(flow, "MAX_COMPARED", 0)
    safe = flow.trace_data_flow(program)
    for cell in range(len(program.cells.tensor)):
        assert set(exact.sources(cell)) <= set(safe.sources(cell))


def test_a_long_loop_of_the_device_is_followed_once(building: Any) -> None:
    """A loop is needed as a whole, and looked at once."""
    count = 1500

    def body(b: Any) -> None:
        tile, register = b.tile("t"), b.register()
        b.emit("register_move", dst=register, src=1)
        b.emit("loop_begin", condition=register)
        for at in range(count):
            isa.memset(tile[:, at % 8 : at % 8 + 1], 0.0)
        b.emit("register_alu", dst=register, left=register, right=1, op=nl.subtract)
        b.emit("loop_end", condition=register)
        isa.dma_copy(b.out, tile)
        b.x = tile

    program = building(body, dialect="nki")
    assert not set(provenance.find_dead_instructions(program)) & set(range(2, count))


@pytest.mark.parametrize("index", [1 << 58, -(1 << 58), 1 << 20, -1])
def test_an_index_that_wraps_around_64_bits_is_out_of_bounds(index: int, building: Any) -> None:
    def body(b: Any) -> None:
        register = b.register("int64")
        b.emit("register_move", dst=register, src=index)
        row = b.x.ap(pattern=[[64, 1], [1, 64]], offset=0, scalar_offset=register, indirect_dim=0)
        isa.dma_copy(b.out[0:1], row)

    program = building(body, dialect="nki")
    with pytest.raises(KernelError, match="tensor_access_out_of_bound"):
        numerics.run(program, [np.zeros((128, 64), np.float32)])


def test_iterations_inside_each_other_are_bounded(building: Any) -> None:
    def body(b: Any) -> None:
        with b.iteration(0, 0):
            b.tile("t")

    header, columns = wire.unpack(building(body).to_bytes())
    parts = {name: bytes(column) for name, column in columns.items()}
    depth = 100
    for name in ("node_loops", "node_indices"):
        parts[name] = np.zeros(depth, "<u4").tobytes()
    parts["node_parents"] = np.arange(depth, dtype="<u4").tobytes()
    with pytest.raises(IRError, match="64 iterations"):
        Program.from_bytes(wire.pack({key: header[key] for key in header if key != "lengths"}, parts))


def test_a_header_without_end_is_refused() -> None:
    with pytest.raises(IRError, match="limit"):
        Program.from_bytes(wire._HEAD.pack(wire.MAGIC, wire.VERSION, wire.MAX_HEADER + 1) + b"{}")


@pytest.mark.parametrize("depth", range(20, 1100, 60))
def test_headers_of_any_depth_are_refused(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    text = (
        '{"sites":[' + nested + '],"forms":[],"inputs":[],"outputs":[],"constants":[],"lengths":{'
        + ",".join(f'"{name}":0' for name, _ in wire.COLUMNS) + "}}"
    ).encode()  # fmt: skip
    with pytest.raises(IRError):
        Program.from_bytes(wire._HEAD.pack(wire.MAGIC, wire.VERSION, len(text)) + text)
