"""Tensors, indexing and masks of the legacy namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError
from nki_sim.forms import ArraySpec
from nki_sim.frontend.legacy import language as nl
from tests.nki_sim.legacy_kernels import code, operators, output, ramp, run
from tests.support.sweeps import scale_examples

# -- indexing ------------------------------------------------------------------------------------


@st.composite
def affine_reads(draw: st.DrawFn) -> tuple[tuple[int, int, int], list[tuple[int, int, int]]]:
    """Rows, columns; per dimension (constant, step of the first, of the second axis); a shape around them."""
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    terms = [(draw(st.integers(0, 3)), draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(3)]
    shape = tuple(c + a * (rows - 1) + b * (columns - 1) + 1 + draw(st.integers(0, 2)) for c, a, b in terms)
    return (rows, columns, 0), [*terms, shape]  # type: ignore[list-item]


@settings(max_examples=scale_examples(30))
@given(affine_reads())
def test_affine_keys_read_what_numpy_reads(case: Any) -> None:
    (rows, columns, _), (*terms, shape) = case

    def kernel(x: Any) -> Any:
        p, f = nl.arange(rows)[:, None], nl.arange(columns)[None, :]
        y = output(x, (rows, columns))
        nl.store(y, nl.load(x[tuple(c + a * p + b * f for c, a, b in terms)]))
        return y

    p, f = np.mgrid[0:rows, 0:columns]
    x = ramp(*shape)
    assert np.array_equal(run(kernel, x), x[tuple(c + a * p + b * f for c, a, b in terms)])


KEYS = st.sampled_from([0, 2, -1, slice(None), slice(1, 3), slice(0, 4, 2), slice(-3, None)])


@settings(max_examples=scale_examples(30))
@given(st.tuples(KEYS, KEYS, KEYS), st.integers(0, 2))
def test_basic_keys_of_hbm_read_what_numpy_reads(key: tuple[Any, ...], missing: int) -> None:
    x = ramp(4, 4, 4)
    short = key[: 3 - missing]
    wanted = np.atleast_2d(x[short])
    rows, columns = wanted.shape[0], wanted.size // wanted.shape[0]

    def kernel(x: Any) -> Any:
        tile = nl.load(x[short])
        y = output(x, tile.shape)
        nl.store(y, tile)
        return y

    found = run(kernel, x)
    assert found.size == rows * columns
    assert np.array_equal(found.ravel(), x[short].ravel())


def test_free_dimensions_of_tiles_are_strided_and_permuted() -> None:
    def kernel(x: Any) -> Any:
        p, i, j = nl.arange(4)[:, None, None], nl.arange(3)[None, :, None], nl.arange(5)[None, None, :]
        t = nl.load(x)
        turned = nl.ndarray((nl.par_dim(4), 15), dtype=x.dtype, buffer=nl.sbuf)
        turned[p, 5 * i + j] = nl.copy(t[p, 3 * j + i])
        y = output(x)
        nl.store(y, turned)
        return y

    x = ramp(4, 15)
    assert np.array_equal(run(kernel, x), x.reshape(4, 5, 3).transpose(0, 2, 1).reshape(4, 15))


def test_rows_are_gathered_by_a_tile_of_indices() -> None:
    def kernel(x: Any, index: Any) -> Any:
        p, f = nl.arange(6)[:, None], nl.arange(8)[None, :]
        at = nl.load(index)
        y = output(x, (6, 8))
        nl.store(y, nl.load(x[at[p, 0], f]))
        return y

    x, index = ramp(20, 8), np.array([[3], [19], [0], [7], [7], [1]], dtype=np.int32)
    assert np.array_equal(run(kernel, x, index), x[index[:, 0]])


def _indexing(key: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
    def kernel(x: Any) -> Any:
        t = nl.load(x)
        p, f = nl.arange(4)[:, None], nl.arange(8)[None, :]
        y = output(x)
        nl.store(y, t[key(p, f, t)])
        return y

    return kernel


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        (lambda p, f, _: (p, f + 1), "tensor_access_out_of_bound"),
        (lambda p, f, _: (p - 1, f), "tensor_access_out_of_bound"),
        (lambda _p, _f, _: (slice(0, 5), slice(None)), "tensor_access_out_of_bound"),
        (lambda _p, _f, _: (4, slice(None)), "tensor_access_out_of_bound"),
        (lambda p, _f, _: (p, slice(0, 8)), "unsupported_mixing_basic_advanced_tensor_indexing"),
        (lambda _p, _f, _: (nl.arange(4), 0), "1d_arange_not_supported"),
        (lambda p, f, _: (2 * p, f), "partition_step"),
        (lambda p, _f, _: (0, p), "failed_to_infer_tile_from_local_tensor"),
        (lambda _p, _f, _: (slice(None), slice(None, None, -1)), "access_pattern"),
        (lambda p, f, _: (p, f, 0), "too_many_indices"),
        (lambda _p, _f, _: (1.5, 0), "index_type"),
    ],
)
def test_keys_that_are_no_access(key: Any, wanted: str) -> None:
    assert code(_indexing(key), ramp(4, 8)) == wanted


# -- masks ---------------------------------------------------------------------------------------


@settings(max_examples=scale_examples(30))
@given(st.integers(1, 300), st.integers(1, 40))
def test_masks_take_the_outside_away(rows: int, columns: int) -> None:
    def kernel(x: Any) -> Any:
        y = output(x)
        p, f = nl.mgrid[0:128, 0:16]
        for i in nl.affine_range((rows + 127) // 128):
            for j in nl.affine_range((columns + 15) // 16):
                mask = (i * 128 + p < rows) & (j * 16 + f < columns)
                t = nl.load(x[i * 128 + p, j * 16 + f], mask=mask)
                t = nl.multiply(t, 2.0, mask=mask)
                nl.store(y[i * 128 + p, j * 16 + f], t, mask=mask)
        return y

    x = ramp(rows, columns)
    assert np.array_equal(run(kernel, x), 2 * x)


def test_a_mask_that_nothing_passes_issues_nothing() -> None:
    def kernel(x: Any) -> Any:
        t = nl.load(x)
        y = output(x)
        t[...] = nl.exp(t, mask=nl.arange(4)[:, None] > 9)
        t[...] = nl.exp(t, mask=False)
        nl.store(y, t)
        return y

    assert operators(kernel, ArraySpec((4, 8), "float32")) == {"dma_copy": 2}


def test_an_index_beyond_a_mask_is_reported_with_the_range_that_is_left() -> None:
    def kernel(x: Any) -> Any:
        p, f = nl.arange(8)[:, None], nl.arange(8)[None, :]
        nl.load(x[p, f], mask=p < 5)
        return output(x)

    with pytest.raises(KernelError, match=r"indices 0\.\.4 of dimension 0 of x .* 4 elements"):
        run(kernel, ramp(4, 8))
