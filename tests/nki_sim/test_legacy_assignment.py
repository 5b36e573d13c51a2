"""Assignment, accumulation, blocks and loops of the legacy namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nki_sim.forms import ArraySpec
from nki_sim.frontend.legacy import isa as nisa
from nki_sim.frontend.legacy import language as nl
from tests.nki_sim.legacy_kernels import F32, code, operators, output, program, ramp, run

# -- assignment ----------------------------------------------------------------------------------


def test_an_assigned_result_costs_no_copy_and_a_named_one_does() -> None:
    def kernel(x: Any, named: bool) -> Any:
        t = nl.load(x)
        r = nl.ndarray((nl.par_dim(4), 8), dtype=x.dtype, buffer=nl.sbuf)
        y = output(x)
        if named:
            value = nl.exp(t)
            r[...] = value
            nl.store(y, nl.add(r, value))
        else:
            r[...] = nl.exp(t)
            nl.store(y, nl.add(r, r))
        return y

    spec = ArraySpec((4, 8), "float32")
    assert operators(kernel, spec, False)["tensor_copy"] == 0
    assert operators(kernel, spec, True)["tensor_copy"] == 1
    x = ramp(4, 8) / 32
    assert np.allclose(run(kernel, x, True), 2 * np.exp(x), rtol=1e-6)
    assert np.allclose(run(kernel, x, False), 2 * np.exp(x), rtol=1e-6)


def test_a_product_goes_straight_into_a_block_of_zeros_made_for_it() -> None:
    def kernel(x: Any) -> Any:
        t = nl.load(x)
        r = nl.zeros((2, nl.par_dim(8), 8), dtype=nl.float32, buffer=nl.psum, lazy_initialization=True)
        y = output(x, (2, 8, 8))
        for i in nl.affine_range(2):
            r[i] = nisa.nc_matmul(t, t)
            nl.store(y[i], nl.copy(r[i]))
        return y

    x = ramp(4, 8)
    assert operators(kernel, ArraySpec((4, 8), "float32")) == Counter(dma_copy=3, nc_matmul=2, tensor_copy=2)
    np.testing.assert_array_equal(run(kernel, x), np.stack([x.T @ x] * 2))


def test_views_of_what_was_just_written_are_copied() -> None:
    def kernel(x: Any) -> Any:
        t = nl.load(x)
        a = nl.ndarray((nl.par_dim(4), 8), dtype=x.dtype, buffer=nl.sbuf)
        b = nl.ndarray((nl.par_dim(4), 4), dtype=x.dtype, buffer=nl.sbuf)
        a[...] = nl.multiply(t, 3.0)
        b[...] = a[:, 4:8]
        y = output(x)
        nl.store(y[:, 0:4], a[:, 0:4])
        nl.store(y[:, 4:8], b)
        return y

    x = ramp(4, 8)
    assert np.array_equal(run(kernel, x), 3 * x)


def test_a_result_does_not_overwrite_what_its_operand_still_needs() -> None:
    def kernel(x: Any) -> Any:
        t = nl.load(x)
        t[:, 1:8] = nl.copy(t[:, 0:7])
        t[...] = nl.add(t, t)
        y = output(x)
        nl.store(y, t)
        return y

    x = ramp(4, 8)
    wanted = x.copy()
    wanted[:, 1:] = x[:, :-1]
    assert np.array_equal(run(kernel, x), 2 * wanted)


@pytest.mark.parametrize("lazy", [True, False])
def test_matmuls_accumulate_into_zeros_without_writing_them(lazy: bool) -> None:
    def kernel(a: Any, b: Any) -> Any:
        total = nl.zeros((nl.par_dim(16), 32), dtype=nl.float32, buffer=nl.psum, lazy_initialization=lazy)
        for k in nl.affine_range(3):
            total += nisa.nc_matmul(nl.load(a[k, 0:8, 0:16]), nl.load(b[k, 0:8, 0:32]))
        y = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(y, nl.copy(total))
        return y

    a, b = ramp(3, 8, 16) / 64, ramp(3, 8, 32) / 64
    assert np.allclose(run(kernel, a, b), np.einsum("kpm,kpn->mn", a, b), rtol=1e-5)
    specs = ArraySpec((3, 8, 16), "float32"), ArraySpec((3, 8, 32), "float32")
    assert operators(kernel, *specs) == {"dma_copy": 7, "nc_matmul": 3, "tensor_copy": 1}


def test_sums_into_a_filled_tile_begin_with_its_value() -> None:
    def kernel(x: Any) -> Any:
        total = nl.full((nl.par_dim(4), 8), 5.0, dtype=x.dtype, buffer=nl.sbuf)
        product = nl.full((nl.par_dim(4), 8), 2.0, dtype=nl.float32, buffer=nl.psum)
        y = output(x)
        for _ in nl.affine_range(3):
            total += nl.load(x)
        product[...] += nisa.nc_matmul(nl.load(x[0:4, 0:4]), nl.load(x))
        nl.store(y, nl.add(total, nl.copy(product)))
        return y

    x = ramp(4, 8)
    assert np.array_equal(run(kernel, x), 5 + 3 * x + 2 + x[:, :4].T @ x)


@pytest.mark.parametrize(
    ("write", "wanted"),
    [
        (lambda t, x, y: t.__setitem__(..., x), "unsupported_memory"),
        (lambda t, x, y: y.__setitem__(..., t), "unsupported_memory"),
        (lambda t, x, y: t.__setitem__(..., "text"), "argument_type"),
        (lambda t, x, y: t[:, 0:4].__setitem__(..., nl.copy(t)), "store_dst_shape_smaller"),
        (lambda t, x, y: 1 if t else 0, "ambiguous_tensor_truth_value"),
        (lambda t, x, y: 1 if t[0, 0] else 0, "dynamic_control_flow_not_supported"),
        (lambda t, x, y: t.assert_shape((4, 9)), "annotation_shape_mismatch"),
        (lambda t, x, y: nl.ones((4, 8), dtype=x.dtype, buffer=nl.shared_hbm), "hbm_tensor_with_init_value"),
        (lambda t, x, y: nl.ndarray((nl.par_dim(129), 8), dtype=x.dtype), "num_partition_exceed_arch_limit"),
        (lambda t, x, y: list(nl.affine_range(t)), "dynamic_control_flow_not_supported"),
    ],
)  # fmt: skip
def test_what_tiles_refuse(write: Any, wanted: str) -> None:
    def kernel(x: Any) -> Any:
        y = output(x)
        write(nl.load(x), x, y)
        return y

    assert code(kernel, ramp(4, 8)) == wanted


# -- blocks --------------------------------------------------------------------------------------


def test_each_block_is_a_tile_of_its_own_from_its_first_touch() -> None:
    def kernel(x: Any) -> Any:
        t = nl.ndarray((1000, 3, nl.par_dim(4), 8), dtype=x.dtype, buffer=nl.sbuf)
        y = output(x)
        for i in nl.affine_range(2):
            t[i, 2] = nl.load(x[i])
            t[i, 1, :, 0:4] = nl.copy(t[i, 2, 0:4, 4:8])
            t[i, 1, nl.arange(4)[:, None], 4 + nl.arange(4)[None, :]] = nl.copy(t[i][2][:, 0:4])
            nl.store(y[i], t[i, 1])
        return y

    x = ramp(2, 4, 8)
    assert np.array_equal(run(kernel, x), np.roll(x, 4, axis=2))
    made = program(kernel, ArraySpec((2, 4, 8), "float32"))
    assert len(set(made.tensors.tolist())) == 2 + 4


@pytest.mark.parametrize(
    ("use", "wanted"),
    [
        (nl.exp, "failed_to_infer_tile_from_local_tensor"),
        (lambda t: t[nl.arange(2)[:, None], 0, 0], "failed_to_infer_tile_from_local_tensor"),
        (lambda t: t[2], "tensor_access_out_of_bound"),
        (lambda t: t["a"], "index_type"),
        (lambda t: t[0, 0, 0, 0], "too_many_indices"),
    ],
)  # fmt: skip
def test_a_tensor_in_blocks_is_no_tile(use: Any, wanted: str) -> None:
    def kernel(x: Any) -> Any:
        use(nl.zeros((2, nl.par_dim(4), 8), dtype=x.dtype, buffer=nl.sbuf))
        return output(x)

    assert code(kernel, ramp(4, 8)) == wanted


# -- loops ---------------------------------------------------------------------------------------


def test_reductions_over_loops_begin_with_the_first_value() -> None:
    def kernel(x: Any) -> Any:
        largest = nl.ndarray((2, nl.par_dim(4), 8), dtype=x.dtype, buffer=nl.sbuf)
        total = nl.full((nl.par_dim(4), 8), 100.0, dtype=x.dtype, buffer=nl.sbuf)
        y = output(x, (3, 4, 8))
        for i in nl.affine_range(2):
            for k in nl.affine_range(3):
                t = nl.load(x[i, k])
                largest[i] = nl.loop_reduce(t, op=np.max, loop_indices=[k])
                total[...] = nl.loop_reduce(t, op=np.add, loop_indices=[i, k])
            nl.store(y[i], largest[i])
        nl.store(y[2], total)
        return y

    x = -ramp(2, 3, 4, 8)
    found = run(kernel, x)
    assert np.array_equal(found[:2], x.max(axis=1))
    assert np.array_equal(found[2], 100 + x.sum(axis=(0, 1)))


def _chain(loop: Callable[..., Any]) -> Callable[[Any], Any]:
    def kernel(x: Any) -> Any:
        t = nl.load(x)
        y = output(x)
        for _ in loop(3):
            t[...] = nl.exp(t)
        nl.store(y, t)
        return y

    return kernel


def test_iterations_that_use_each_other_need_a_sequential_loop() -> None:
    assert code(_chain(nl.affine_range), ramp(4, 8)) == "unexpected_output_dependencies"
    x = -ramp(4, 8)
    wanted = np.exp(np.exp(np.exp(x)))
    for loop in (nl.sequential_range, nl.static_range, range):
        assert np.allclose(run(_chain(loop), x), wanted, rtol=1e-5)


@pytest.mark.parametrize("rows", [None, 0, 32, 64])
def test_masked_transposes_and_products_write_what_is_left(rows: int | None) -> None:
    def kernel(x: Any) -> Any:
        t = nl.load(x)
        mask = None if rows is None else nl.arange(64)[:, None] < rows
        turned = nl.full((nl.par_dim(48), 64), 7.0, dtype=x.dtype, buffer=nl.sbuf)
        total = nl.zeros((nl.par_dim(48), 48), dtype=nl.float32, buffer=nl.psum)
        turned[...] = nisa.nc_transpose(t, mask=mask)
        total += nisa.nc_matmul(t, t, mask=rows != 0)
        y = output(x, (48, 112))
        nl.store(y[:, 0:64], turned)
        nl.store(y[:, 64:112], nl.copy(total))
        return y

    x = ramp(64, 48) / 1024
    kept = 64 if rows is None else rows
    found = run(kernel, x)
    assert np.array_equal(found[:, :kept], x[:kept].T)
    assert np.all(found[:, kept:64] == 7)
    assert np.allclose(found[:, 64:], x.T @ x if kept else 0, rtol=1e-5)


def test_filling_a_tile_again_leaves_earlier_reads_alone() -> None:
    def kernel(x: Any) -> Any:
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.zeros(x.shape, dtype=x.dtype)
        read = nl.exp(t)
        t[...] = 5.0
        nl.store(y, read)
        return y

    assert np.array_equal(run(kernel, ramp(4, 8)), np.ones((4, 8), F32))
