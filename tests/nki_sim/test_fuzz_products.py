"""Generated chains of products: what one of them makes goes, through copies, into the next, as NumPy says.

Products of equal operands are computed together, some of them before their turn: never before the products
that they read.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.frontend import isa
from nki_sim.frontend.recorder import Recorder, recording
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from tests.support.sweeps import scale_examples

SIZE, TILES = 32, 4
PARTS = (slice(0, SIZE), slice(0, SIZE // 2), slice(SIZE // 2, SIZE))


class Writer:
    """Writes a program over tiles of [SIZE, SIZE], and keeps in `wanted` what each tile holds, in float64."""

    def __init__(self, seed: int, steps: int, x: Any) -> None:
        self._random = random.Random(seed)
        self._recorder = Recorder(targets.load("trn2"), "none.py", max_instructions=10_000)
        with recording(self._recorder):
            self._source = self._recorder.declare_argument("x", x.shape, "float32")
            out = self._tile("shared_hbm", (TILES * SIZE, SIZE))
            self._tiles = [self._tile() for _ in range(TILES)]
            self.wanted = list(x.astype(np.float64).reshape(TILES, SIZE, SIZE))
            self._sums = [self._tile("psum") for _ in range(2)]
            for at, tile in enumerate(self._tiles):
                isa.dma_copy(tile, self._source[at * SIZE : (at + 1) * SIZE, :])
            for _ in range(steps):
                self._random.choice((self._product, self._product, self._product, self._copy, self._turn))()
            for at, tile in enumerate(self._tiles):
                isa.dma_copy(out[at * SIZE : (at + 1) * SIZE, :], tile)
        self.program = Program.from_bytes(self._recorder.to_bytes("kernel", [out._storage.id]))

    def _tile(self, buffer: str = "sbuf", shape: tuple[int, int] = (SIZE, SIZE)) -> Any:
        return self._recorder.declare(shape, "float32", buffer)

    def _pick(self) -> int:
        return self._random.randrange(TILES)

    def _part(self) -> slice:
        return self._random.choice(PARTS)

    def _target(self) -> int:
        """A tile to write: one that is there, or a new one in its place."""
        at = self._pick()
        if self._random.random() < 0.5:
            fresh = self._tile()
            isa.tensor_copy(fresh, self._tiles[at], engine=isa.engine.vector)
            self._tiles[at] = fresh
        return at

    def _product(self) -> None:
        """Columns of a tile become a sum of up to three products, by way of PSUM."""
        total = self._tile("psum") if self._random.random() < 0.5 else self._random.choice(self._sums)
        columns = self._part()
        found = 0.0
        for step in range(self._random.randint(1, 3)):
            left, right = self._pick(), self._pick()
            isa.nc_matmul(
                total[:, columns], self._tiles[left], self._tiles[right][:, columns], accumulate=step > 0
            )
            found = found + self.wanted[left].T @ self.wanted[right][:, columns]
        at = self._target()
        isa.tensor_copy(self._tiles[at][:, columns], total[:, columns], engine=isa.engine.vector)
        self._put(at, columns, found)

    def _copy(self) -> None:
        source, at, columns = self._pick(), self._target(), self._part()
        isa.tensor_copy(
            self._tiles[at][:, columns], self._tiles[source][:, columns], engine=isa.engine.vector
        )
        self._put(at, columns, self.wanted[source][:, columns])

    def _turn(self) -> None:
        source, total, at = self._pick(), self._random.choice(self._sums), self._target()
        isa.nc_transpose(total, self._tiles[source])
        isa.tensor_copy(self._tiles[at], total, engine=isa.engine.vector)
        self._put(at, slice(None), self.wanted[source].T)

    def _put(self, at: int, columns: slice, values: Any) -> None:
        self.wanted[at] = self.wanted[at].copy()
        self.wanted[at][:, columns] = values


@settings(max_examples=scale_examples(120), derandomize=True, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(2, 12))
def test_products_of_products_are_what_numpy_makes_of_them(seed: int, steps: int) -> None:
    # Orthogonal tiles: sums of their products keep about their size, and their digits.
    rng = np.random.default_rng(seed)
    x = np.concatenate([np.linalg.qr(rng.standard_normal((SIZE, SIZE)))[0] for _ in range(TILES)])
    writer = Writer(seed, steps, x)
    (found,) = numerics.run(writer.program, [x.astype(np.float32)])
    wanted = np.concatenate(writer.wanted)
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-4 * float(np.abs(wanted).max()))


def test_a_product_is_not_made_before_the_one_that_it_reads(tracing: Any) -> None:
    """q = A^T copy(A^T A): both products have the same stationary operand, and the second reads the first."""
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.shared_hbm)
        a = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x)
        b = a
        for _ in range(2):
            p = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=p, stationary=a, moving=b)
            b = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=b, src=p)
        nisa.dma_copy(dst=out, src=b)
        return out
    """
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    (found,) = numerics.run(tracing(text, x), [x])
    np.testing.assert_allclose(found, x.T @ (x.T @ x), rtol=1e-4, atol=1e-2)
