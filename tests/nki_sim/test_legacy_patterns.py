"""Legacy keys with an integer found in data, and masks over two axes on engines, against NumPy's indexing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError
from nki_sim.frontend.legacy import api as nki
from nki_sim.frontend.legacy import language as nl
from tests.support.sweeps import scale_examples

ROWS, COLUMNS = 32, 20
TABLE = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)


def windows(size: int, first: int, *, swapped: bool = False) -> Callable[..., Any]:
    """Two windows of the columns of a tile, each from where an element of `places` says."""

    def kernel(x: Any, places: Any) -> Any:
        at, tile = nl.load(places), nl.load(x)
        i_p, i_f = nl.arange(ROWS)[:, None], nl.arange(size)[None, :]
        part = nl.ndarray((ROWS, 2 * size), dtype=x.dtype)
        for k in nl.affine_range(2):
            moved = first + i_f + at[0, k] if swapped else at[0, k] + i_f + first
            part[i_p, k * size + i_f] = nl.copy(tile[i_p, moved])
        out = nl.ndarray(part.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, part)
        return out

    return kernel


@settings(max_examples=scale_examples(20))
@given(
    size=st.integers(1, 8), first=st.integers(0, 4), places=st.tuples(*[st.integers(0, 8)] * 2),
    swapped=st.booleans(),
)  # fmt: skip
def test_an_element_moves_an_index_expression(
    size: int, first: int, places: tuple[int, int], *, swapped: bool
) -> None:
    found = nki.simulate_kernel(windows(size, first, swapped=swapped), TABLE, np.array([places], np.int32))
    wanted = [TABLE[:, place + first : place + first + size] for place in places]
    assert np.array_equal(found, np.concatenate(wanted, axis=1))


@pytest.mark.parametrize("last", [15, 16])
def test_where_a_moved_expression_ends_is_checked_when_it_runs(last: int) -> None:
    """Five columns from 15 on are the last ones."""
    places = np.array([[0, last]], np.int32)
    if last == 15:
        nki.simulate_kernel(windows(5, 0), TABLE, places)
        return
    with pytest.raises(KernelError) as refused:
        nki.simulate_kernel(windows(5, 0), TABLE, places)
    assert refused.value.code == "tensor_access_out_of_bound"


def rows(x: Any, places: Any) -> Any:
    i_p, i_f = nl.arange(8)[:, None], nl.arange(COLUMNS)[None, :]
    out = nl.ndarray((8, COLUMNS), dtype=x.dtype, buffer=nl.shared_hbm)
    at = nl.load(places)
    nl.store(out, nl.load(x[at[0:1, 0:1] + i_p if at.shape == (1, 1) else at + i_p, i_f]))
    return out


def test_rows_in_hbm_move_as_well() -> None:
    found = nki.simulate_kernel(rows, TABLE, np.array([[24]], np.int32))
    assert np.array_equal(found, TABLE[24:32])


def test_more_than_one_element_moves_nothing() -> None:
    with pytest.raises(KernelError) as refused:
        nki.simulate_kernel(rows, TABLE, np.array([[1, 2]], np.int32))
    assert refused.value.code == "indirect_indices_free_dim"


def triangle(*, below: bool) -> Callable[[Any], Any]:
    def kernel(x: Any) -> Any:
        i_p, i_f = nl.arange(ROWS)[:, None], nl.arange(COLUMNS)[None, :]
        part, tile = nl.zeros((ROWS, COLUMNS), dtype=x.dtype), nl.load(x)
        part[i_p, i_f] = nl.negative(tile[i_p, i_f], mask=i_p >= i_f if below else i_p <= i_f)
        out = nl.ndarray(part.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, part)
        return out

    return kernel


def test_a_mask_over_two_axes_may_leave_steps_that_begin_at_a_quadrant() -> None:
    found = nki.simulate_kernel(triangle(below=False), TABLE)
    assert np.array_equal(found, np.triu(-TABLE))


def test_a_mask_over_two_axes_that_leaves_others_is_refused_as_a_mask() -> None:
    with pytest.raises(KernelError, match="affine_select") as refused:
        nki.simulate_kernel(triangle(below=True), TABLE)
    assert refused.value.code == "unsupported_expression_in_mask"
