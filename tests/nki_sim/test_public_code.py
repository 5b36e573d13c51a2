"""Forms that public kernels use and devices took: each computes what its authors expect, or warns."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.checks.warnings import KernelWarning, find_warnings
from nki_sim.errors import KernelError
from nki_sim.frontend import api, isa
from nki_sim.frontend import language as current
from nki_sim.frontend.legacy import api as nki
from nki_sim.frontend.legacy import isa as nisa
from nki_sim.frontend.legacy import language as nl
from nki_sim.frontend.legacy import typing as nt
from nki_sim.frontend.legacy.modules import MODULES
from nki_sim.frontend.modules import install_modules
from tests.nki_sim.legacy_kernels import code, operators, output, program, ramp, run

BF16 = np.dtype(ml_dtypes.bfloat16)


# -- types and shapes of the older namespace -------------------------------------------------------


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("shape", [(128, 128), (64, 96)])
def test_a_transpose_converts_to_the_type_of_its_goal(
    target: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)

    def kernel(x: Any) -> Any:
        turned = nl.ndarray((nl.par_dim(shape[1]), shape[0]), dtype=np.float32, buffer=nl.psum)
        turned[:, :] = nisa.nc_transpose(nl.load(x))
        out = nl.ndarray((shape[1], shape[0]), dtype=nl.float32, buffer=nl.hbm)
        nl.store(out, nl.copy(turned))
        return out

    x = ramp(*shape).astype(BF16)
    np.testing.assert_array_equal(run(kernel, x), x.astype(np.float32).T)
    assert operators(kernel, x)["tensor_copy"] == 2


def test_a_transpose_into_its_own_type_costs_no_copy() -> None:
    def kernel(x: Any) -> Any:
        turned = nl.ndarray((nl.par_dim(128), 128), dtype=x.dtype, buffer=nl.psum)
        turned[:, :] = nisa.nc_transpose(nl.load(x))
        out = output(x)
        nl.store(out, turned)
        return out

    assert operators(kernel, ramp(128, 128).astype(BF16))["tensor_copy"] == 1


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("shape", [(128, 8), (16, 2, 4)])
def test_tensor_tensor_repeats_a_column(shape: tuple[int, ...], swapped: bool) -> None:
    def kernel(x: Any, c: Any) -> Any:
        pair = [nl.load(x), nl.load(c)]
        out = output(x)
        nl.store(out, nisa.tensor_tensor(*(reversed(pair) if swapped else pair), op=nl.subtract))
        return out

    x, column = ramp(*shape), 3 * ramp(shape[0], 1) + 1
    wanted = x - column.reshape(shape[0], *[1] * (len(shape) - 1))
    np.testing.assert_array_equal(run(kernel, x, column), -wanted if swapped else wanted)


def test_tensor_tensor_still_refuses_other_sizes() -> None:
    def kernel(x: Any, y: Any) -> Any:
        return nisa.tensor_tensor(nl.load(x), nl.load(y), op=nl.add)

    assert code(kernel, ramp(8, 4), ramp(8, 2)) == "shape_mismatch"
    assert code(kernel, ramp(8, 4), ramp(4, 1)) == "num_partition_mismatch"


def test_reverse1_without_a_second_function_changes_nothing() -> None:
    def kernel(x: Any) -> Any:
        out = output(x)
        nl.store(out, nisa.tensor_scalar(nl.load(x), np.subtract, 1.0, reverse0=True, reverse1=True))
        return out

    np.testing.assert_array_equal(run(kernel, ramp(8, 4)), 1 - ramp(8, 4))


@pytest.mark.parametrize("shape", [(128, 64), (128, 128), (40, 33), (32, 32)])
def test_vector_transposes_larger_tiles_block_by_block(shape: tuple[int, int]) -> None:
    def kernel(x: Any) -> Any:
        out = output(x, (shape[1], shape[0]))
        nl.store(out, nisa.nc_transpose(nl.load(x), engine=nisa.vector_engine))
        return out

    x = ramp(*shape)
    np.testing.assert_array_equal(run(kernel, x), x.T)
    blocks = -(-shape[0] // 32) * -(-shape[1] // 32)
    made = program(kernel, x)
    engines = [made.forms[form].engine for form in made.form_ids if made.forms[form].op == "nc_transpose"]
    assert engines == ["vector"] * blocks


# -- indices and masks -----------------------------------------------------------------------------


def test_a_whole_grid_is_an_index() -> None:
    def kernel(x: Any) -> Any:
        out = output(x)
        nl.store(out[nl.mgrid[0:16, 0:8]], nl.load(x[nl.mgrid[0:16, 0:8]]))
        return out

    np.testing.assert_array_equal(run(kernel, ramp(16, 8)), ramp(16, 8))


def test_a_slice_may_pass_the_edge_where_a_mask_covers_it() -> None:
    def kernel(x: Any) -> Any:
        out = output(x)
        _, columns = nl.mgrid[0:16, 0:8]
        for tile in range(2):
            part = slice(tile * 8, tile * 8 + 8)
            inside = tile * 8 + columns < 12
            nl.store(out[:, part], nl.load(x[:, part], mask=inside), mask=inside)
        return out

    np.testing.assert_array_equal(run(kernel, ramp(16, 12)), ramp(16, 12))


@pytest.mark.parametrize("width", [2, 4, 8])
def test_quotient_and_remainder_index_neighbouring_dimensions(width: int) -> None:
    def kernel(x: Any) -> Any:
        out = nl.ndarray((16, 8 // width, width), dtype=x.dtype, buffer=nl.hbm)
        p, f = nl.arange(16)[:, None], nl.arange(8)[None, :]
        tile = nl.load(x)
        split = tile.reshape((16, 8 // width, width))
        turned = nl.ndarray((16, 8), dtype=x.dtype)
        turned[p, f] = nl.copy(split[p, (8 - width + f) // width - 8 // width + 1, f % width])
        nl.store(out[p, f // width, f % width], turned)
        return out

    np.testing.assert_array_equal(run(kernel, ramp(16, 8)), ramp(16, 8).reshape(16, 8 // width, width))


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        (lambda p, f: (p, f // 2), "index_not_affine"),
        (lambda p, f: (p, f % 4), "index_not_affine"),
        (lambda p, f: (p // 2, f), "index_not_affine"),
        (lambda p, f: (p, (p + f) // 2), "index_not_affine"),
        (lambda p, f: (p, f // 0), "index_not_affine"),
        (lambda p, f: (p, f // 2 + f // 4), "index_not_affine"),
        (lambda p, f: (p, f % 4 < 2), "index_not_affine"),
        (lambda p, f: (p, f // 2 * 2 + f % 2 + 1), "tensor_access_out_of_bound"),
        (lambda p, f: (p, f % 8 - 1), "tensor_access_out_of_bound"),
        (lambda p, f: (slice(None), f // 1), "unsupported_mixing_basic_advanced_tensor_indexing"),
    ],
)
def test_other_quotients_are_no_index(key: Any, wanted: str) -> None:
    def kernel(x: Any) -> Any:
        p, f = nl.arange(16)[:, None], nl.arange(8)[None, :]
        return nl.exp(nl.load(x)[key(p, f)])

    assert code(kernel, ramp(16, 8)) == wanted


@pytest.mark.parametrize(("limit", "found"), [(12, None), (13, "tensor_access_out_of_bound")])
def test_a_mask_has_to_cover_all_that_passes_the_edge(limit: int, found: str | None) -> None:
    def kernel(x: Any) -> Any:
        out = output(x)
        _, columns = nl.mgrid[0:16, 0:16]
        nl.store(out, nl.load(x))
        nl.store(out[:, 0:16], nl.load(x[:, 0:16], mask=columns < 12), mask=columns < limit)
        return out

    if found is None:
        np.testing.assert_array_equal(run(kernel, ramp(16, 12)), ramp(16, 12))
    else:
        assert code(kernel, ramp(16, 12)) == found


def test_a_slice_past_the_edge_needs_a_mask() -> None:
    def kernel(x: Any) -> Any:
        return nl.load(x[0:16, 0:13])

    assert code(kernel, ramp(16, 12)) == "tensor_access_out_of_bound"


# -- outputs and arguments -------------------------------------------------------------------------


def test_a_store_of_a_number_fills() -> None:
    def kernel(x: Any) -> Any:
        out = output(x)
        nl.store(out, 100)
        return out

    np.testing.assert_array_equal(run(kernel, ramp(128, 8)), np.full((128, 8), 100.0))


def scatter(x: Any, rows: Any) -> Any:
    p, f = nl.arange(8)[:, None], nl.arange(4)[None, :]
    out = output(x, (16, 4))
    found = nl.load(rows[p])
    nl.store(out[found[p, 0], f], nl.load(x))
    return out


def test_an_output_may_be_written_in_part() -> None:
    rows = 2 * np.arange(8, dtype=np.int32)
    found = run(scatter, ramp(8, 4), rows)
    np.testing.assert_array_equal(found[::2], ramp(8, 4))
    assert np.isnan(found[1::2]).all()


def half(x: Any) -> Any:
    out = output(x)
    nl.store(out[0:4], nl.load(x[0:4]))
    return out


def test_who_judges_a_program_still_refuses_outputs_written_in_part() -> None:
    found = checks.check(program(half, ArraySpec((8, 4), "float32")), targets.load("trn2"))
    assert [item.code for item in found] == ["tensor_output_not_written_to"]
    np.testing.assert_array_equal(run(half, ramp(8, 4))[:4], ramp(8, 4)[:4])


PLAIN_OUTPUT = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.dma_copy(dst=out, src=t)
    return out
"""


def test_an_output_may_be_in_plain_hbm_on_one_core(simulate: Any, tracing: Any) -> None:
    (found,) = simulate(PLAIN_OUTPUT, ramp(8, 4))
    np.testing.assert_array_equal(found, ramp(8, 4))
    with pytest.raises(KernelError, match="output_buffer"):
        tracing(PLAIN_OUTPUT, ramp(8, 4), lnc=2)


def test_an_output_that_nothing_writes_is_an_error() -> None:
    assert code(output, ramp(8, 4)) == "tensor_output_not_written_to"


def square(x: Any) -> Any:
    out = output(x)
    nl.store(out, nl.square(nl.load(x)))
    return out


def test_a_specification_stands_in_for_an_array() -> None:
    kernel = nki.benchmark(square, warmup=2, iters=3)
    kernel(nt.tensor[[128, 512], nl.float32])
    assert kernel.benchmark_result.nc_latency.get_latency_percentile(99) > 0
    found = nki.profile(square)(nt.tensor[(128, 512), np.float32])
    assert found.shape == (128, 512)
    assert nt.tensor[128, 512]._check_shape("x", ramp(128, 512)) is None


@pytest.mark.parametrize("name", ["isa", "language"])
def test_constants_are_modules(name: str) -> None:
    with install_modules(MODULES):
        module = importlib.import_module(f"neuronxcc.nki.{name}.constants")
        assert module.dge_mode is nisa.dge_mode
        assert module is sys.modules["neuronxcc.nki"].__dict__[name].constants


def test_kernels_name_their_function() -> None:
    assert nki.jit(square).func is square
    assert api.jit(square).func is square


def test_a_grid_among_the_options_is_the_launch() -> None:
    assert api.jit(grid=[2])(square)._grid == (2,)
    assert api.jit(square, grid=2)._grid == (2,)
    assert nki.jit(grid=(4, 2))(square)._grid == (4, 2)
    with pytest.raises(KernelError, match="launch_grid"):
        api.jit(square, grid=[3])


# -- accumulation after a fill ---------------------------------------------------------------------

GROUPS = """
@nki.jit
def kernel(a, b):
    out = nl.ndarray((2, 32, 16), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.psum)
    for group in range(2):
        nisa.memset(dst=acc{part}, value={value})
        for k in range(2):
            left = nl.ndarray((64, 32), dtype=a.dtype, buffer=nl.sbuf)
            right = nl.ndarray((64, 16), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=a[group, k])
            nisa.dma_copy(dst=right, src=b[group, k])
            nisa.nc_matmul(dst=acc, stationary=left, moving=right)
        done = nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=done, src=acc)
        nisa.dma_copy(dst=out[group], src=done)
    return out
"""


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_groups_of_products_begin_at_a_fill(value: float, tracing: Any, simulate: Any) -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.random((2, 2, 64, count), dtype=np.float32) for count in (32, 16))
    text = GROUPS.format(part="", value=value)
    (found,) = simulate(text, a, b)
    np.testing.assert_allclose(found, np.einsum("gkpm,gkpn->gmn", a, b), rtol=1e-5)
    warned = find_warnings(tracing(text, a, b), targets.load("trn2"))
    assert [(item.code, item.tensor) for item in warned] == [("psum_fill_overwritten", "acc")]


def test_a_fill_of_a_part_leaves_the_rest_of_a_group_open(tracing: Any) -> None:
    a, b = np.ones((2, 2, 64, 32), np.float32), np.ones((2, 2, 64, 16), np.float32)
    with pytest.raises(KernelError, match="accumulate_overlap"):
        tracing(GROUPS.format(part="[:, 0:8]", value=0.0), a, b)


def test_a_simulated_call_warns_at_the_kernels_line() -> None:
    def kernel(x: Any) -> Any:
        acc = current.ndarray((32, 32), dtype=current.float32, buffer=current.psum)
        out = current.ndarray((32, 32), dtype=current.float32, buffer=current.shared_hbm)
        tile = current.ndarray((32, 32), dtype=current.float32, buffer=current.sbuf)
        isa.dma_copy(dst=tile, src=x)
        isa.memset(dst=acc, value=0.0)
        isa.nc_matmul(dst=acc, stationary=tile, moving=tile)
        isa.tensor_copy(dst=tile, src=acc)
        isa.dma_copy(dst=out, src=tile)
        return out

    x = np.eye(32, dtype=np.float32)
    with pytest.warns(KernelWarning, match="psum_fill_overwritten") as caught:
        np.testing.assert_array_equal(api.simulate(kernel)(x), x)
    assert caught[0].filename == __file__
    assert caught[0].lineno == kernel.__code__.co_firstlineno + 5


# -- what compilers were reported to do ------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "codes"), [("float32", ["dma_transpose_dtype"]), ("bfloat16", [])])
def test_transposes_by_dma_of_wide_types_warn(dtype: str, codes: list[str]) -> None:
    def kernel(x: Any) -> Any:
        out = output(x, (16, 32))
        nl.store(out, nisa.dma_transpose(x))
        return out

    made = program(kernel, ArraySpec((32, 16), dtype))
    assert [item.code for item in find_warnings(made, targets.load("trn2"))] == codes


@pytest.mark.parametrize(("target", "codes"), [("trn1", ["activation_bias_dropped"]), ("trn2", [])])
def test_a_copy_with_a_bias_warns_on_trn1(
    target: str, codes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)

    def kernel(x: Any, c: Any) -> Any:
        out = output(x)
        nl.store(out, nisa.activation(nl.copy, nl.load(x), bias=nl.load(c)))
        return out

    made = program(kernel, ArraySpec((32, 16), "float32"), ArraySpec((32, 1), "float32"))
    assert [item.code for item in find_warnings(made, targets.load(target))] == codes
