"""Addresses found in data, run on arrays: gathers, scatters, moving windows, against NumPy's own indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError
from nki_sim.frontend import isa as nisa
from nki_sim.frontend import language as nl
from nki_sim.frontend.api import jit, simulate
from tests.support.sweeps import scale_examples

ROWS = 24


@jit
def gather(x: Any, places: Any, mode: Any, raw: bool) -> Any:
    count, width = places.shape[0], x.shape[1]
    result = nl.zeros((count, width), x.dtype)
    index = nl.load(places)
    pattern = [[width, count], [1, width]]
    source = x.ap(pattern, vector_offset=index) if raw else x.vector_select(0, index)
    nisa.dma_copy(dst=result, src=source, oob_mode=mode)
    out = nl.ndarray(result.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, result)
    return out


@jit
def scatter(rows: Any, places: Any, out: Any) -> None:
    nisa.dma_copy(dst=out.vector_select(0, nl.load(places)), src=nl.load(rows))


@jit
def window(x: Any, first: Any, size: int) -> Any:
    out = nl.ndarray((x.shape[0], size), x.dtype, buffer=nl.shared_hbm)
    part = nl.ndarray((x.shape[0], size), x.dtype)
    nisa.tensor_copy(dst=part, src=nl.load(x)[:, nl.ds(nisa.scalar_load(nl.load(first)), size)])
    nl.store(out, part)
    return out


def column(values: list[int]) -> Any:
    return np.array(values, np.int32).reshape(-1, 1)


TABLE = np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 6) + 1


@settings(max_examples=scale_examples(25))
@given(places=st.lists(st.integers(0, ROWS + 9), min_size=1, max_size=40), raw=st.booleans())
def test_rows_are_gathered_and_those_out_of_bounds_left_out(places: list[int], raw: bool) -> None:
    inside = np.array(places) < ROWS
    wanted = np.where(inside[:, None], TABLE[np.minimum(places, ROWS - 1)], 0)
    assert np.array_equal(simulate(gather)(TABLE, column(places), nisa.oob_mode.skip, raw), wanted)
    if inside.all():
        assert np.array_equal(simulate(gather)(TABLE, column(places), nisa.oob_mode.error, raw), wanted)
    else:
        with pytest.raises(KernelError, match="out of"):
            simulate(gather)(TABLE, column(places), nisa.oob_mode.error, raw)


@settings(max_examples=scale_examples(25))
@given(order=st.permutations(range(ROWS)), count=st.integers(1, ROWS))
def test_rows_are_scattered(order: list[int], count: int) -> None:
    out = np.zeros((ROWS, 6), np.float32)
    wanted = out.copy()
    wanted[order[:count]] = TABLE[:count]
    simulate(scatter)(TABLE[:count], column(order[:count]), out)
    assert np.array_equal(out, wanted)


@settings(max_examples=scale_examples(25))
@given(first=st.integers(0, 6), size=st.integers(1, 6))
def test_a_window_moves_over_a_tile(first: int, size: int) -> None:
    if first + size <= 6:
        found = simulate(window)(TABLE, column([first]), size)
        assert np.array_equal(found, TABLE[:, first : first + size])
    else:
        with pytest.raises(KernelError, match="out of"):
            simulate(window)(TABLE, column([first]), size)
