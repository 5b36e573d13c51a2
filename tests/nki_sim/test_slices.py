"""Slices: what they compute is what the whole program computes there, and they are no larger than needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec
from nki_sim.errors import InputError
from nki_sim.flow import slices
from nki_sim.running import numerics
from tests.support.sweeps import scale_examples

# Sums in PSUM, a running total updated in place, a tile declared once, and a part stored again.
MIXED = """
@nki.jit
def kernel(x, w):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    sums = nl.ndarray((128, m // 128), dtype=nl.float32, buffer=nl.shared_hbm)
    total = nl.ndarray((128, m // 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(total, 0.0)
    weights = nl.ndarray((128, 128), dtype=w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=w)
    t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
    for i in range(m // 128):
        nisa.dma_copy(dst=t, src=x[i * 128:(i + 1) * 128])
        acc = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.psum)
        for _ in range(2):
            nisa.nc_matmul(dst=acc, stationary=weights, moving=t)
        part = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=part, op=nl.add, data=acc, axis=1)
        for j in range(i, m // 128):
            nisa.tensor_tensor(dst=total[:, j:j + 1], data1=total[:, j:j + 1], data2=part, op=nl.add)
        res = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=res, data=acc, op0=nl.add, operand0=total[:, i:i + 1])
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128], src=res)
    nisa.dma_copy(dst=out[0:1, 0:n // 2], src=t[5:6, 0:n // 2])
    nisa.dma_copy(dst=sums, src=total)
    return out, sums
"""


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(max_examples=scale_examples(20))
@given(data=st.data())
def test_a_slice_computes_what_the_whole_computes_there(data: Any, *, tracing: Any) -> None:
    x, w = normal(1, 384, 32), normal(2, 128, 128)
    program = tracing(MIXED, x, w)
    whole = numerics.run(program, [x, w])
    at = data.draw(st.integers(0, 1))
    box = tuple(
        (first, data.draw(st.integers(first + 1, size)))
        for size in whole[at].shape
        for first in [data.draw(st.integers(0, size - 1))]
    )
    part = numerics.run(program, [x, w], only={at: [box]})
    index = tuple(slice(*ends) for ends in box)
    np.testing.assert_allclose(part[at][index], whole[at][index], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        # A row of the first tile that a later store replaced in half: that half needs one load.
        ({0: [((0, 1), (0, 16))]}, {"dma_copy": 2}),
        ({0: [((0, 1), (16, 32))]}, {"dma_copy": 3, "nc_matmul": 2, "tensor_reduce": 1, "tensor_tensor": 1}),
        ({0: [((128, 129), (0, 1))]}, {"dma_copy": 4, "nc_matmul": 4, "tensor_tensor": 2}),
        ({1: [((0, 1), (0, 1))]}, {"nc_matmul": 6, "tensor_tensor": 6, "tensor_scalar": 0}),
        ({}, {"dma_copy": 0}),
    ],
)
def test_a_slice_holds_what_is_needed(wanted: Any, lines: dict[str, int], tracing: Any) -> None:
    program = slices.slice_backward(tracing(MIXED, normal(1, 384, 32), normal(2, 128, 128)), wanted)
    ops = [program.forms[form].op for form in program.form_ids]
    assert {name: ops.count(name) for name in lines} == lines


def test_one_tile_of_a_matmul_needs_its_share(tracing: Any, texts: Any) -> None:
    m, k, n = 3, 4, 2
    specs = [ArraySpec((128 * m, 128 * k), "float32"), ArraySpec((128 * k, 512 * n), "float32")]
    program = tracing(texts.matmul, *specs)
    part = slices.slice_backward(program, {0: [((128, 256), (512, 1024))]})
    # Load the rows, transpose and copy them by k; load and multiply by k; copy and store the sum.
    assert len(part) == 1 + 2 * k + 2 * k + 2
    assert len(program) == m * (1 + 2 * k + n * (2 * k + 2))


@pytest.mark.parametrize(
    "wanted", [{2: []}, {0: [((0, 1),)]}, {0: [((0, 1), (0, 33))]}, {0: [((2, 2), (0, 1))]}]
)
def test_what_is_no_part_of_an_output_is_refused(wanted: Any, tracing: Any) -> None:
    with pytest.raises(InputError):
        slices.slice_backward(tracing(MIXED, normal(1, 384, 32), normal(2, 128, 128)), wanted)
