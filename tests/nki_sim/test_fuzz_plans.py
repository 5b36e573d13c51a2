"""Generated programs: plans, slices and what is left out as dead change nothing that instructions compute.

Partial and overlapping writes, updates in place, sums that are read while they grow, PSUM used again, tiles
seen as other types, gathers and scatters: everything that joined products and spared copies could get wrong.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.flow import provenance, slices
from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.frontend.recorder import Recorder, recording
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.running.interpreter import ProgramInterpreter
from nki_sim.running.machine import Machine, prepare_form
from nki_sim.running.work import WorkAllowance
from tests.support.sweeps import scale_examples

SIZE = 64


class Writer:
    """Writes a random program over tiles of [64, 64] that all hold something from the start."""

    def __init__(self, seed: int, target: str, steps: int) -> None:
        self._random = random.Random(seed)
        self._recorder = Recorder(targets.load(target), "none.py", max_instructions=10_000)
        with recording(self._recorder):
            self._declare()
            for _ in range(steps):
                self._random.choice(self._steps)(self._size(), self._size())
            for tile in (*self._wide, *self._narrow):
                self._store(SIZE, 8, tile)
        data = self._recorder.to_bytes("kernel", [self._out._storage.id])
        self.program = Program.from_bytes(data)

    def _declare(self) -> None:
        declare = self._recorder.declare
        self._x = self._recorder.declare_argument("x", (SIZE, SIZE), "float32")
        rows = self._recorder.declare_argument("rows", (SIZE, 1), "int32")
        self._out = declare((SIZE, SIZE), "float32", "shared_hbm", "out")
        self._table = declare((SIZE, SIZE), "float32", "private_hbm", "table")
        self._rows = declare((SIZE, 1), "int32", "sbuf", "rows")
        for dst, src in ((self._out, self._x), (self._table, self._x), (self._rows, rows)):
            isa.dma_copy(dst, src)
        self._wide = [declare((SIZE, SIZE), "float32", "sbuf", f"wide{i}") for i in range(3)]
        self._narrow = [declare((SIZE, SIZE), "bfloat16", "sbuf", f"narrow{i}") for i in range(2)]
        self._sums = [declare((SIZE, SIZE), "float32", "psum", f"sum{i}") for i in range(2)]
        for tile in (*self._wide, *self._narrow):
            isa.dma_copy(tile, self._x)
        for tile in self._sums:
            isa.nc_matmul(tile, self._wide[0], self._wide[1], accumulate=False)
        self._steps = (
            self._load, self._store, self._copy, self._copy, self._transpose, self._turn, self._multiply,
            self._multiply, self._add, self._scale, self._fill, self._reinterpret, self._gather,
            self._scatter,
        )  # fmt: skip

    def _size(self) -> int:
        return self._random.choice([1, 4, 16, 32, SIZE, SIZE])

    def _first(self, count: int) -> int:
        return self._random.randint(0, SIZE - count)

    def _part(self, tile: Any, rows: int, columns: int) -> Any:
        """A part of a tile on chip, every second column of it now and then."""
        top = 0 if rows > 32 else self._random.choice([0, 32])
        if columns <= 32 and self._random.random() < 0.25:
            left = self._first(2 * columns)
            return tile[top : top + rows, left : left + 2 * columns : 2]
        left = self._first(columns)
        return tile[top : top + rows, left : left + columns]

    def _box(self, tensor: Any, rows: int, columns: int) -> Any:
        top, left = self._first(rows), self._first(columns)
        return tensor[top : top + rows, left : left + columns]

    def _any(self, rows: int, columns: int) -> Any:
        tile = self._random.choice([*self._wide, *self._narrow, *self._sums])
        return self._part(tile, rows, columns)

    def _sbuf(self, rows: int, columns: int) -> Any:
        return self._part(self._random.choice([*self._wide, *self._narrow]), rows, columns)

    def _load(self, rows: int, columns: int) -> None:
        source = self._random.choice([self._x, self._table])
        isa.dma_copy(self._sbuf(rows, columns), self._box(source, rows, columns))

    def _store(self, rows: int, columns: int, tile: Any = None) -> None:
        source = self._sbuf(rows, columns) if tile is None else self._part(tile, rows, columns)
        target = self._random.choice([self._out, self._table]) if tile is None else self._out
        isa.dma_copy(self._box(target, rows, columns), source)

    def _copy(self, rows: int, columns: int) -> None:
        isa.tensor_copy(self._sbuf(rows, columns), self._any(rows, columns), engine=isa.engine.vector)

    def _transpose(self, rows: int, columns: int) -> None:
        source = self._part(self._random.choice(self._wide), rows, columns)
        isa.nc_transpose(self._part(self._random.choice(self._sums), columns, rows), source)

    def _turn(self, rows: int, columns: int) -> None:
        """A transpose by DMA, often within one tile."""
        first, second = (self._random.choice(self._narrow) for _ in range(2))
        isa.dma_transpose(self._part(first, columns, rows), self._part(second, rows, columns))

    def _multiply(self, rows: int, columns: int) -> None:
        """A chain of matmuls onto one part of PSUM, now and then with something in between."""
        tiles, depth = self._random.choice([self._wide, self._narrow]), self._size()
        sums = self._part(self._random.choice(self._sums), rows, columns)
        adds = self._random.random() < 0.3
        for _ in range(self._random.randint(1, 4)):
            left, right = (self._random.choice(tiles) for _ in range(2))
            operands = self._part(left, depth, rows), self._part(right, depth, columns)
            isa.nc_matmul(sums, *operands, accumulate=adds)
            adds = True
            if self._random.random() < 0.2:
                self._copy(self._size(), self._size())

    def _add(self, rows: int, columns: int) -> None:
        target = self._any(rows, columns)
        left = target if self._random.random() < 0.5 else self._any(rows, columns)
        op = self._random.choice([nl.add, nl.maximum])
        isa.tensor_tensor(target, left, self._sbuf(rows, columns), op, engine=isa.engine.vector)

    def _scale(self, rows: int, columns: int) -> None:
        target = self._any(rows, columns)
        source = target if self._random.random() < 0.5 else self._any(rows, columns)
        isa.tensor_scalar(target, source, nl.multiply, 0.5, engine=isa.engine.vector)

    def _fill(self, rows: int, columns: int) -> None:
        isa.memset(self._sbuf(rows, columns), float(self._random.randint(-2, 2)))

    def _reinterpret(self, rows: int, columns: int) -> None:
        """Halves of float32 elements as bfloat16, read only: written ones may be anything."""
        left = self._random.randint(0, 2 * SIZE - columns)
        halves = self._random.choice(self._wide).view(nl.bfloat16)[0:rows, left : left + columns]
        kept = self._part(self._random.choice(self._narrow), rows, columns)
        isa.tensor_scalar(
            kept, halves, nl.minimum, 2.0, op1=nl.maximum, operand1=-2.0, engine=isa.engine.vector
        )

    def _moved(self, rows: int, columns: int) -> Any:
        """Rows of the table that indices choose."""
        index = self._rows.ap(pattern=[[1, rows], [1, 1]], offset=0)
        pattern = [[SIZE, rows], [1, columns]]
        return self._table.ap(
            pattern=pattern, offset=self._first(columns), vector_offset=index, indirect_dim=0
        )

    def _gather(self, rows: int, columns: int) -> None:
        isa.dma_copy(self._sbuf(rows, columns), self._moved(rows, columns))

    def _scatter(self, rows: int, columns: int) -> None:
        isa.dma_copy(self._moved(rows, columns), self._sbuf(rows, columns))


def inputs(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((SIZE, SIZE)).astype(np.float32) / 8
    return [x, rng.permutation(SIZE).astype(np.int32).reshape(SIZE, 1)]


def one_by_one(program: Program, arrays: list[Any]) -> Any:
    """The output when every instruction is run as it comes."""
    machine = Machine(program.site)
    for number, array in zip(program.inputs, arrays, strict=True):
        machine.place_tensor(number, array.reshape(-1).copy())
    actions = [prepare_form(form, program.target) for form in program.forms]
    with np.errstate(all="ignore"):
        runner = ProgramInterpreter(machine, actions, WorkAllowance(1 << 40))
        runner.run(numerics.instruction_columns(program), 0, len(program), program.loop_partners)
    return machine.tensor_array(program.outputs[0]).reshape(SIZE, SIZE)


def agree(found: Any, wanted: Any) -> None:
    """Up to sums in another order, and what a bfloat16 that they round the other way makes of that."""
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    scale = max(1e-6, float(np.abs(wanted[finite]).max(initial=0.0)))
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=0.0, atol=0.03 * scale)


@settings(max_examples=scale_examples(40), derandomize=True, deadline=None)
@given(seed=st.integers(0, 1 << 32), target=st.sampled_from(["trn1", "trn2"]), data=st.data())
def test_what_is_planned_sliced_or_left_out_changes_no_value(seed: int, target: str, data: Any) -> None:
    program, arrays = Writer(seed, target, 40).program, inputs(seed % 1000)
    wanted = one_by_one(program, arrays)
    (whole,) = numerics.run(program, arrays)
    agree(whole, wanted)
    kept = np.ones(len(program), dtype=bool)
    kept[provenance.find_dead_instructions(program)] = False
    assert np.array_equal(
        one_by_one(slices.select_instructions(program, kept), arrays), wanted, equal_nan=True
    )
    box = tuple((first, data.draw(st.integers(first + 1, SIZE))) for first in data.draw(FIRST))
    (part,) = numerics.run(program, arrays, only={0: [box]})
    index = tuple(slice(*ends) for ends in box)
    agree(part[index], wanted[index])


FIRST = st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1))


def test_a_gather_sees_what_was_written_far_from_where_its_pattern_begins(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x, rows):
        out = nl.ndarray((4, 32), dtype=x.dtype, buffer=nl.shared_hbm)
        table = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(dst=table, src=x)
        t = nl.ndarray((4, 16), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=t, value=7.0)
        nisa.dma_copy(dst=table[40:44, 32:48], src=t)
        i = nl.ndarray((4, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=i, src=rows)
        g = nl.ndarray((4, 32), dtype=x.dtype, buffer=nl.sbuf)
        chosen = table.ap(pattern=[[64, 4], [1, 32]], offset=30, vector_offset=i, indirect_dim=0)
        nisa.dma_copy(dst=g, src=chosen)
        nisa.dma_copy(dst=out, src=g)
        return out
    """
    x, rows = inputs(1)[0], np.array([[41], [0], [43], [9]], dtype=np.int32)
    program = tracing(text, x, rows)
    (found,) = numerics.run(program, [x, rows])
    table = x.copy()
    table[40:44, 32:48] = 7.0
    assert np.array_equal(found, table[rows[:, 0], 30:62])
    assert provenance.find_dead_instructions(program) == []


@pytest.mark.parametrize("overlap", [0, 32])
def test_a_transpose_within_one_tile_keeps_what_it_wrote(overlap: int, tracing: Any) -> None:
    text = f"""
    @nki.jit
    def kernel(x):
        out = nl.ndarray((64, 32), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        t = nl.ndarray((64, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        nisa.dma_transpose(dst=t[:, {overlap}:{overlap + 32}], src=t[32:64, :])
        nisa.dma_copy(dst=out, src=t[:, {overlap}:{overlap + 32}])
        return out
    """
    x = inputs(2)[0]
    program = tracing(text, x)
    (found,) = numerics.run(program, [x])
    assert np.array_equal(found, x.astype(found.dtype)[32:64].T)
