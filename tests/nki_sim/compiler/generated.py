"""Random programs of the legacy namespace, made of what its compiler rewrites.

Loads that repeat within and across iterations, arrays of many tiles, tiles that are written in parts, in
place, again and again or not wholly, rows that are repeated over partitions, sums in PSUM, tables in HBM
that are read and written, indexed and backward accesses, two cores. All numbers are small integers, so that
sums are exact in any order.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from nki_sim import targets
from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.frontend.recorder import Recorder, recording
from nki_sim.program.ir import Program

ROWS, COLUMNS = 128, 32
TILE_BYTES = COLUMNS * 4
HEIGHT = 3 * ROWS
SLOTS = 48


class Writer:
    """One program from a seed, on one or two cores."""

    def __init__(self, seed: int, rounds: int, cores: int = 1) -> None:
        self._random = random.Random(seed)
        self._slot = 0
        self._recorder = Recorder(targets.load("trn1"), "none.py", max_instructions=20_000)
        self._recorder.dialect = "neuronxcc"
        with recording(self._recorder):
            self._begin(cores)
            for _ in range(rounds):
                self._loop(1)
            self._end()
        data = self._recorder.to_bytes("kernel", [out._storage.id for out in self._outs])
        self.program = Program.from_bytes(data)

    def _begin(self, cores: int) -> None:
        declare = self._recorder.declare
        self._x = self._recorder.declare_argument("x", (HEIGHT, 2 * COLUMNS), "float32")
        self._w = self._recorder.declare_argument("w", (1, 2 * COLUMNS), "float32")
        self._index = self._recorder.declare_argument("index", (ROWS, 1), "int32")
        self._outs, self._tables, self._rows, self._lasting, self._arrays = [], [], [], [], []
        for core in range(cores):
            self._recorder.core = core
            self._outs.append(declare((SLOTS * ROWS, COLUMNS), "float32", "shared_hbm", f"out{core}"))
            self._tables.append(declare((HEIGHT, COLUMNS), "float32", "private_hbm", f"table{core}"))
            isa.dma_copy(self._tables[core], self._x[:, 0:COLUMNS])
            rows = declare((ROWS, 1), "int32", "sbuf", f"rows{core}")
            isa.dma_copy(rows, self._index)
            self._rows.append(rows)
            self._lasting.append([self._loaded(f"lasting{i}") for i in range(3)])
            self._arrays.append([])
        self._tiles: list[Any] = []

    def _end(self) -> None:
        for core, tiles in enumerate(self._lasting):
            self._recorder.core = core
            for tile in tiles:
                self._store(tile)

    # -- loops ---------------------------------------------------------------------------------------

    def _loop(self, depth: int) -> None:
        number, count = self._recorder.new_loop(), self._random.randint(1, 4)
        body = random.Random(self._random.randint(0, 1 << 30))
        state = body.getstate()
        for index in range(count):
            # Mostly the same from one iteration to the next.
            outer, self._random = self._random, body
            if outer.random() < 0.7:
                body.setstate(state)
            self._recorder.enter_iteration(number, index)
            self._recorder.core = body.randrange(len(self._outs)) if depth == 1 else self._recorder.core
            self._body(depth)
            self._recorder.leave_iteration()
            self._random = outer

    def _body(self, depth: int) -> None:
        if depth == 1:
            self._tiles = []
        kept = list(self._tiles)
        self._tiles.append(self._loaded("first"))
        for _ in range(self._random.randint(2, 8)):
            self._random.choice(STEPS)(self)
        if depth < 3 and self._random.random() < 0.4:
            self._loop(depth + 1)
        for tile in self._tiles[len(kept) :]:
            if self._random.random() < 0.7:
                self._store(tile)
        self._tiles = kept if depth > 1 else []

    # -- tiles ---------------------------------------------------------------------------------------

    def _fresh(self, name: str, shape: tuple[int, ...] = (ROWS, COLUMNS), dtype: str = "float32") -> Any:
        return self._recorder.declare(shape, dtype, "sbuf", name)

    def _box(self, tensor: Any) -> Any:
        top, left = self._random.choice([0, 64, ROWS, 2 * ROWS]), 0
        if tensor is self._x:
            left = self._random.choice([0, 16, COLUMNS])
        return tensor[top : top + ROWS, left : left + COLUMNS]

    def _loaded(self, name: str) -> Any:
        tile = self._fresh(name)
        isa.dma_copy(tile, self._box(self._x))
        return tile

    def _any(self) -> Any:
        core = self._recorder.core
        pool = [*self._tiles, *self._tiles, *self._lasting[core]]
        if self._arrays[core] and self._random.random() < 0.5:
            pool = self._random.choice(self._arrays[core])
        return self._random.choice(pool)

    def _result(self, tile: Any) -> None:
        self._tiles.append(tile)

    # -- steps ---------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._result(self._loaded(self._random.choice(["a", "b"])))

    def _halves(self) -> None:
        """A tile filled by two loads, side by side or one below the other."""
        tile, middle = self._fresh("halves"), self._random.choice([8, 16])
        box, other = self._box(self._x), self._box(self._x)
        isa.dma_copy(tile[:, 0:middle], box[:, 0:middle])
        isa.dma_copy(tile[:, middle:COLUMNS], other[:, middle:COLUMNS])
        if self._random.random() < 0.5:
            isa.dma_copy(tile[64:128, :], self._box(self._x)[64:128, :])
        self._result(tile)

    def _part(self) -> None:
        """A tile of which only a part is ever written and read."""
        tile, width = self._fresh("part"), self._random.choice([4, 16])
        isa.dma_copy(tile[0:64, 0:width], self._box(self._x)[0:64, 0:width])
        made = self._fresh("made_of_part", (64, width))
        isa.tensor_scalar(made, tile[0:64, 0:width], nl.add, 1.0)
        target = self._copied()
        isa.tensor_copy(target[0:64, 0:width], made)
        self._result(target)

    def _deep(self) -> None:
        """A tile of three dimensions, loaded whole, and slices of it in several orders."""
        tile = self._fresh("deep", (ROWS, 4, COLUMNS // 4))
        isa.dma_copy(tile, self._box(self._x).reshape_dim(1, (4, COLUMNS // 4)))
        made = self._copied()
        isa.tensor_copy(made[:, 0:8], tile[:, self._random.randrange(4), :])
        isa.tensor_copy(made[:, 8:12], tile[:, :, self._random.randrange(8)])
        isa.tensor_copy(made[:, 12:20].reshape_dim(1, (2, 4)), tile[:, 1:3, 2:6])
        self._result(made)

    def _backwards(self) -> None:
        made, tile = self._fresh("backwards"), self._any()
        isa.tensor_copy(made, tile.ap(pattern=[[COLUMNS, ROWS], [-1, COLUMNS]], offset=COLUMNS - 1))
        self._result(made)

    def _transposed_load(self) -> None:
        """A load whose source walks its rows first."""
        tile = self._fresh("turned")
        source = self._x.ap(
            pattern=[[2, ROWS], [2 * COLUMNS, COLUMNS]], offset=self._random.choice([0, 1]) * 0
        )
        isa.dma_copy(tile[0:32, :], source[0:32, :])
        isa.memset(tile[32:64, :], 2.0)
        isa.memset(tile[64:128, :], 3.0)
        self._result(tile)

    def _copied(self) -> Any:
        made = self._fresh("copied")
        isa.tensor_copy(made, self._any())
        return made

    def _copy(self) -> None:
        self._result(self._copied())

    def _scale(self) -> None:
        made = self._fresh("scaled")
        op = self._random.choice([nl.add, nl.subtract, nl.maximum])
        isa.tensor_scalar(made, self._any(), op, float(self._random.choice([0.0, -0.0, 1.0])))
        self._result(made)

    def _combine(self) -> None:
        made = self._fresh(self._random.choice(["sum", "other"]))
        left, right = self._any(), self._any()
        if self._random.random() < 0.5:
            left = self._fresh("activated")
            isa.activation(left, nl.copy, right)
        isa.tensor_tensor(made, left, right, self._random.choice([nl.add, nl.maximum]))
        self._result(made)

    def _columns(self) -> None:
        """An update of some columns in place, by columns of another tile."""
        made, other = self._copied(), self._any()
        left, right = (self._random.choice([0, 4, 16]) for _ in range(2))
        isa.tensor_tensor(
            made[:, left : left + 8], made[:, left : left + 8], other[:, right : right + 8], nl.add
        )
        self._result(made)

    def _accumulate(self) -> None:
        """A tile from before the loop takes a new value, which others have read."""
        tile = self._random.choice(self._lasting[self._recorder.core])
        isa.tensor_tensor(tile, tile, self._any(), nl.maximum)

    def _load_again(self) -> None:
        isa.dma_copy(self._random.choice(self._lasting[self._recorder.core]), self._box(self._x))

    def _product(self) -> None:
        psum = self._recorder.declare((COLUMNS, COLUMNS), "float32", "psum", "product")
        ones, tile = self._fresh("small"), self._any()
        isa.memset(ones, float(self._random.choice([0.0, 1.0])))
        isa.nc_matmul(psum, ones, tile, accumulate=False)
        if self._random.random() < 0.5:
            isa.nc_matmul(psum, ones[0:64, :], tile[0:64, :], accumulate=True)
        made = self._copied()
        isa.tensor_scalar(made[0:COLUMNS, :], psum, nl.minimum, 4.0)
        self._result(made)

    def _tails(self) -> None:
        """Products of several widths into one bank, in any order."""
        psum = self._recorder.declare((COLUMNS, COLUMNS), "float32", "psum", "tails")
        ones, middle = self._fresh("small"), self._random.choice([8, 16, 24])
        isa.memset(ones, 1.0)
        parts = [slice(0, middle), slice(middle, COLUMNS)]
        self._random.shuffle(parts)
        parts = parts[: self._random.randint(1, 2)]
        for part in parts:
            isa.nc_matmul(psum[:, part], ones, self._any()[:, part], accumulate=False)
        made = self._copied()
        for part in parts:
            isa.tensor_scalar(made[0:COLUMNS, part], psum[:, part], nl.minimum, 4.0)
        self._result(made)

    def _repeat_row(self) -> None:
        row = self._fresh("row", (1, 2 * COLUMNS))
        isa.dma_copy(row, self._w)
        made, left = self._fresh("repeated"), self._random.choice([0, 8])
        for first in range(0, ROWS, 32):
            isa.nc_stream_shuffle(
                made[first : first + 32, :], row[:, left : left + COLUMNS], shuffle_mask=[0] * 32
            )
        self._result(made)

    def _table(self) -> None:
        table = self._tables[self._recorder.core]
        if self._random.random() < 0.5:
            isa.dma_copy(self._box(table), self._any())
        tile = self._fresh("from_table")
        isa.dma_copy(tile, self._box(table))
        self._result(tile)

    def _gather(self) -> None:
        """Rows of an input, or of the table, that indices choose."""
        core = self._recorder.core
        table = self._random.choice([self._x, self._tables[core]])
        width = 2 * COLUMNS if table is self._x else COLUMNS
        tile = self._fresh("gathered")
        index = self._rows[core].ap(pattern=[[1, ROWS], [1, 1]], offset=0)
        isa.dma_copy(
            tile,
            table.ap(pattern=[[width, ROWS], [1, COLUMNS]], offset=0, vector_offset=index, indirect_dim=0),
        )
        self._result(tile)

    def _integers(self) -> None:
        numbers = self._fresh("numbers", (ROWS, 1), "int32")
        isa.dma_copy(numbers, self._index)
        made = self._fresh("more", (ROWS, 1), "int32")
        isa.tensor_copy(made, numbers)
        result = self._copied()
        isa.tensor_copy(result[:, 3:4], made)
        self._result(result)

    def _halves_of_floats(self) -> None:
        """The bytes of a tile as another type."""
        made = self._copied()
        left = self._random.choice([0, 6])
        kept = self._fresh("narrow", (ROWS, 8), "bfloat16")
        isa.tensor_scalar(
            kept,
            self._any().view(nl.bfloat16)[:, left : left + 8],
            nl.minimum,
            2.0,
            op1=nl.maximum,
            operand1=-2.0,
        )
        isa.tensor_copy(made[:, 0:8], kept)
        self._result(made)

    def _array(self) -> None:
        """Nine tiles or more of one declaration, loaded or computed, for this loop and those that follow."""
        loaded = self._random.random() < 0.5
        tiles = []
        for place in range(self._random.randint(8, 11)):
            tile = self._fresh("loaded" if loaded else "computed")
            if loaded:
                isa.dma_copy(tile, self._x[(place % 4) * 64 : (place % 4) * 64 + ROWS, 0:COLUMNS])
            else:
                isa.tensor_scalar(tile, self._any(), nl.add, float(place))
            tiles.append(tile)
        self._arrays[self._recorder.core].append(tiles)

    def _store(self, tile: Any = None) -> None:
        top = self._slot * ROWS
        self._slot = (self._slot + 1) % SLOTS
        isa.dma_copy(self._outs[self._recorder.core][top : top + ROWS], self._any() if tile is None else tile)


STEPS = (
    Writer._load, Writer._halves, Writer._part, Writer._deep, Writer._backwards, Writer._transposed_load,
    Writer._copy, Writer._scale, Writer._combine, Writer._columns, Writer._accumulate, Writer._load_again,
    Writer._product, Writer._tails, Writer._repeat_row, Writer._table, Writer._gather, Writer._integers,
    Writer._halves_of_floats, Writer._array, Writer._store,
)  # fmt: skip


def inputs(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    x = rng.integers(-4, 5, (HEIGHT, 2 * COLUMNS)).astype(np.float32)
    w = rng.integers(-4, 5, (1, 2 * COLUMNS)).astype(np.float32)
    return [x, w, rng.permutation(HEIGHT)[:ROWS].astype(np.int32).reshape(ROWS, 1)]
