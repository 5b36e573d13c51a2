"""Compiled programs compute what the traced ones do, within the memory there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.compiler.compiled_program import LOAD_AGAIN, RELOAD
from tests.nki_sim.compiler.generated import TILE_BYTES, Writer, inputs
from tests.nki_sim.compiler.oracle import agrees, moved, small
from tests.nki_sim.legacy_kernels import tracer
from tests.support.sweeps import scale_examples


@settings(max_examples=scale_examples(40), derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), rounds=st.integers(1, 4), tiles=st.integers(4, 24), cores=st.integers(1, 2)
)
def test_a_compiled_program_computes_the_same(seed: int, rounds: int, tiles: int, cores: int) -> None:
    program = Writer(seed, rounds, cores).program
    agrees(program, small(tiles * TILE_BYTES), inputs(seed % 1000))


# A product with a masked tail whose operands are loaded whole before, and turned on the tensor engine.
MATMUL = """
@nki.jit
def kernel(x, w):
    m, k = x.shape
    n = w.shape[1]
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    i, c, f = nl.arange(128)[:, None], nl.arange(128)[None, :], nl.arange(256)[None, :]
    left = nl.ndarray((m // 128, nl.par_dim(128), k), dtype=x.dtype, buffer=nl.sbuf)
    right = nl.ndarray((k // 128, nl.par_dim(128), n), dtype=x.dtype, buffer=nl.sbuf)
    for a in nl.affine_range(m // 128):
        left[a, i, nl.arange(k)[None, :]] = nl.load(x[a * 128 + i, nl.arange(k)[None, :]])
    for b in nl.affine_range(k // 128):
        right[b, i, nl.arange(n)[None, :]] = nl.load(w[b * 128 + i, nl.arange(n)[None, :]])
    for a in nl.affine_range(m // 128):
        for d in nl.affine_range(-(-n // 256)):
            total = nl.zeros((128, 256), dtype=nl.float32, buffer=nl.psum)
            for b in nl.affine_range(k // 128):
                turned = nl.copy(nisa.nc_transpose(left[a, i, b * 128 + c]))
                total[i, f] += nisa.nc_matmul(turned, right[b, i, d * 256 + f], mask=(d * 256 + f < n))
            nl.store(
                out[a * 128 + i, d * 256 + f], nl.copy(total[i, f], mask=(d * 256 + f < n)),
                mask=(d * 256 + f < n),
            )
    return out
"""

# Rows scaled by their mean squares and by a row of weights, with everything loaded twice.
NORM = """
@nki.jit
def kernel(x, w):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    i, j = nl.arange(128)[:, None], nl.arange(n)[None, :]
    for a in nl.affine_range(m // 128):
        gain = nl.load(w[nl.arange(1)[:, None], j])
        first = nl.load(x[a * 128 + i, j])
        total = nl.sum(nl.square(first), axis=1)
        scale = nl.maximum(nl.multiply(total, 1.0 / 4), 1.0)
        second = nl.load(x[a * 128 + i, j])
        made = nl.multiply(nl.add(second, scale), gain.broadcast_to((128, n)))
        nl.store(out[a * 128 + i, j], made)
    return out
"""


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("columns", [512, 448])
@pytest.mark.parametrize("room", [1 << 10, 4 << 10, 8 << 10, 160 << 10])
def test_products_of_what_may_not_fit(columns: int, room: int) -> None:
    given_ = arrays((1024, 256), (256, columns))
    made = agrees(tracer(MATMUL, *given_, target="trn1"), small(room), given_)
    assert (moved(made, LOAD_AGAIN) + moved(made, RELOAD) > 0) == (room <= 8 << 10)


@pytest.mark.parametrize("room", [4 << 10, 160 << 10])
def test_rows_of_weights_and_loads_done_twice(room: int) -> None:
    given_ = arrays((512, 192), (1, 192))
    agrees(tracer(NORM, *given_, target="trn1"), small(room), given_)
