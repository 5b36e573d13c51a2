"""What only running shows: addresses out of data, skipped indices, loops, reads of what nobody wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError, LimitError
from nki_sim.running import numerics
from nki_sim.running.work import INSTRUCTION_UNITS, WorkAllowance
from tests.support.sweeps import scale_examples

ROWS, WIDTH = 6, 8

GATHER = """
@nki.jit
def kernel(x, rows):
    out = nl.ndarray((4, {width}), dtype=x.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((4, 1), dtype=rows.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=rows)
    t = nl.ndarray((4, {width}), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(t, -1.0)
    picked = x.ap(pattern=[[{row}, 4], [1, {width}]], offset={offset}, vector_offset=index, indirect_dim=0)
    nisa.dma_copy(dst=t, src=picked, oob_mode=nisa.oob_mode.{mode})
    nisa.dma_copy(dst=out, src=t)
    return out
"""

SCATTER = """
@nki.jit
def kernel(x, rows):
    out = nl.ndarray((6, 8), dtype=x.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((4, 1), dtype=rows.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=rows)
    t = nl.ndarray((4, 8), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[0:4])
    if {first}:
        nisa.dma_copy(dst=out, src=x)
    goal = out.ap(pattern=[[8, 4], [1, 8]], vector_offset=index, indirect_dim=0)
    nisa.dma_copy(dst=goal, src=t, oob_mode=nisa.oob_mode.{mode})
    return out
"""

COUNT = """
@nki.jit
def kernel(x, n):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    count = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=count, src=n)
    register = nisa.register_alloc()
    nisa.register_load(register, count)

    def body(i):
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)

    nl.fori_loop(0, register, body)
    nisa.dma_copy(dst=out, src=t)
    return out
"""


def table(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@settings(max_examples=scale_examples(20))
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=4, max_size=4),
    offset=st.integers(0, 3),
    width=st.integers(1, 5),
)
def test_rows_are_gathered(rows: list[int], offset: int, width: int, *, simulate: Any) -> None:
    x = table(ROWS, WIDTH)
    text = GATHER.format(row=WIDTH, width=width, offset=offset, mode="error")
    (found,) = simulate(text, x, np.array(rows, np.int32)[:, None])
    assert np.array_equal(found, np.stack([x[row, offset : offset + width] for row in rows]))


@pytest.mark.parametrize("bad", [6, -1, 1 << 30])
def test_an_index_out_of_bounds_is_an_error_at_its_line(bad: int, simulate: Any) -> None:
    text = GATHER.format(row=WIDTH, width=WIDTH, offset=0, mode="error")
    with pytest.raises(KernelError) as caught:
        simulate(text, table(ROWS, WIDTH), np.array([[0], [5], [bad], [1]], np.int32))
    assert caught.value.code == "tensor_access_out_of_bound"
    assert str(bad) in caught.value.message
    assert caught.value.line == 15


def test_an_index_out_of_bounds_may_be_skipped(simulate: Any) -> None:
    x = table(ROWS, WIDTH)
    text = GATHER.format(row=WIDTH, width=WIDTH, offset=0, mode="skip")
    (found,) = simulate(text, x, np.array([[5], [6], [-1], [0]], np.int32))
    assert np.array_equal(found, np.stack([x[5], np.full(WIDTH, -1), np.full(WIDTH, -1), x[0]]))
    (nothing,) = simulate(text, x, np.full((4, 1), 9, np.int32))
    assert (nothing == -1).all()


@pytest.mark.parametrize(("mode", "rows"), [("error", [5, 0, 2, 1]), ("skip", [5, 7, 2, -3])])
def test_rows_are_scattered(mode: str, rows: list[int], simulate: Any) -> None:
    x = table(6, 8)
    (found,) = simulate(SCATTER.format(first=True, mode=mode), x, np.array(rows, np.int32)[:, None])
    wanted = x.copy()
    for place, row in enumerate(rows):
        if 0 <= row < 6:
            wanted[row] = x[place]
    assert np.array_equal(found, wanted)


def test_what_a_scatter_leaves_out_is_found(simulate: Any) -> None:
    with pytest.raises(KernelError) as caught:
        simulate(
            SCATTER.format(first=False, mode="error"), table(6, 8), np.array([[0], [1], [2], [3]], np.int32)
        )
    assert caught.value.code == "tensor_output_not_written_to"


@pytest.mark.parametrize("count", [0, 1, 5])
def test_loops_run_as_often_as_their_register_says(count: int, simulate: Any) -> None:
    x = table(4, 8)
    (found,) = simulate(COUNT, x, np.array([[count]], np.int32))
    assert np.array_equal(found, x + count)


def test_loops_are_bounded(tracing: Any) -> None:
    x, n = table(4, 8), np.array([[1 << 30]], np.int32)
    with pytest.raises(LimitError) as caught:
        numerics.run(tracing(COUNT, x, n), [x, n], allowance=WorkAllowance(1000 * INSTRUCTION_UNITS))
    assert caught.value.code == "limit_work"
    assert caught.value.line > 0


HALF = """
@nki.jit
def kernel(x, rows):
    out = nl.ndarray((4, 8), dtype=x.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((4, 1), dtype=rows.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=rows)
    t = nl.ndarray((4, 8), dtype=x.dtype, buffer=nl.sbuf)
    h = nl.ndarray((6, 8), dtype=x.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(dst=h[0:3], src=x[0:3])
    nisa.dma_copy(dst=t, src=h.ap(pattern=[[8, 4], [1, 8]], vector_offset=index, indirect_dim=0))
    nisa.dma_copy(dst=out, src=t)
    return out
"""


def test_reads_of_what_nobody_wrote_are_found_when_they_happen(simulate: Any) -> None:
    x = table(6, 8)
    (found,) = simulate(HALF, x, np.array([[0], [2], [2], [1]], np.int32))
    assert np.array_equal(found, x[[0, 2, 2, 1]])
    with pytest.raises(KernelError) as caught:
        simulate(HALF, x, np.array([[0], [3], [2], [1]], np.int32))
    # The line is the one that reads; the tensor is named with where it is declared, and the output with it.
    assert (caught.value.code, caught.value.line) == ("uninitialised_read", 15)
    assert "elements of h (declared in line 13) are read" in caught.value.message
    assert "output out" in caught.value.message
