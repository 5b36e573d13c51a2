"""Kernels of the legacy namespace come out in the current one: masks, block dimensions, implicit tiles."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import nki_sim
from nki_sim import ArraySpec
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from targets.nki.raising.instruction_rows import NotRaised
from targets.nki.raising.raiser import program_digest, raise_program

HEADER = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import numpy as np


@nki.jit
"""
PRODUCT = f"""{HEADER}def kernel(lhsT, rhs):
    K, M = lhsT.shape
    K, N = rhs.shape
    out = nl.ndarray((M, N), dtype=lhsT.dtype, buffer=nl.shared_hbm)
    left = nl.ndarray((K // 128, nl.par_dim(128), M), dtype=lhsT.dtype, buffer=nl.sbuf)
    for k in nl.affine_range(K // 128):
        left[k] = nl.load(lhsT[k * 128:(k + 1) * 128, :])
    for m in nl.affine_range(M // 128):
        for n in nl.affine_range(N // 512):
            acc = nl.zeros((128, 512), dtype=np.float32, buffer=nl.psum)
            for k in nl.affine_range(K // 128):
                r = nl.load(rhs[k * 128:(k + 1) * 128, n * 512:(n + 1) * 512])
                acc[...] += nl.matmul(left[k, :, m * 128:(m + 1) * 128], r, transpose_x=True)
            nl.store(out[m * 128:(m + 1) * 128, n * 512:(n + 1) * 512], value=nl.copy(acc, dtype=out.dtype))
    return out
"""
MASKED = f"""{HEADER}def kernel(x):
    M, N = x.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = nl.arange(128)[:, None], nl.arange(N)[None, :]
    for i in nl.affine_range((M + 127) // 128):
        kept = i * 128 + rows < M
        t = nl.load(x[i * 128 + rows, columns], mask=kept)
        e = nl.exp(t, mask=kept)
        s = nl.sum(e, axis=1, keepdims=True, mask=kept)
        half = nl.divide(e, 2.0, mask=kept)
        nl.store(out[i * 128 + rows, columns], value=nl.divide(half, s, mask=kept), mask=kept)
    return out
"""


def trace(source: str, *shapes: tuple[int, ...]) -> Program:
    return nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in shapes])


def run(program: Program, *shapes: tuple[int, ...]) -> NDArray[np.float32]:
    random = np.random.default_rng(7)
    (found,) = numerics.run(program, [random.standard_normal(shape).astype(np.float32) for shape in shapes])
    return np.asarray(found)


def test_block_dimensions_become_lists_of_tiles_and_the_program_stays() -> None:
    shapes = (512, 256), (512, 1024)
    before = trace(PRODUCT, *shapes)
    raised = raise_program(before, PRODUCT)
    assert "neuronxcc" not in raised
    assert "left = [nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]" in raised
    after = trace(raised, *shapes)
    assert after.dialect == "nki"
    assert program_digest(after) == program_digest(before)
    np.testing.assert_array_equal(run(after, *shapes), run(before, *shapes))


def test_masks_become_smaller_windows_and_divisions_products_with_reciprocals() -> None:
    before = trace(MASKED, (300, 64))
    raised = raise_program(before, MASKED)
    assert "x[256 : 300, :]" in raised
    assert "op0=nl.divide" not in raised
    after = trace(raised, (300, 64))
    np.testing.assert_allclose(run(after, (300, 64)), run(before, (300, 64)), rtol=1e-6)
    transfers = [form.op for form in (after.forms[number] for number in after.form_ids)].count("dma_copy")
    assert transfers == 6


def test_a_division_of_a_number_by_a_tile_is_kept_with_a_reason() -> None:
    source = MASKED.replace("nl.divide(e, 2.0, mask=kept)", "nl.divide(2.0, e, mask=kept)")
    with pytest.raises(NotRaised, match="divides operand0 by the data"):
        raise_program(trace(source, (300, 64)), source)


SUMS = f"""{HEADER}def kernel(x, scale):
    N = x.shape[1]
    out = nl.ndarray((256, N), dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.zeros((2, nl.par_dim(128), N), dtype=x.dtype)
    for s in nl.affine_range(4):
        for i in nl.affine_range(2):
            t = nl.load(x[i * 128:(i + 1) * 128, 0:N])
            row = nl.load(scale[s:s + 1, 0:N])
            total[i, 0:128, 0:N] += nl.multiply(t, row.broadcast_to((128, N)))
    for i in nl.affine_range(2):
        nl.store(out[i * 128:(i + 1) * 128, 0:N], total[i, 0:128, 0:N])
    return out
"""
SCALED = f"""{HEADER}def kernel(x, scale):
    out = nl.ndarray((256, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    row = nl.load(scale.reshape((1, 64))[nl.arange(1)[:, None], nl.arange(64)[None, :]])
    wide = row.broadcast_to((128, 64))
    for i in nl.affine_range(2):
        t = nl.load(x[i * 128:(i + 1) * 128, 0:64])
        nl.store(out[i * 128:(i + 1) * 128, 0:64], nl.multiply(t, wide))
    return out
"""
LARGEST = f"""{HEADER}def kernel(x):
    out = nl.ndarray((256, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    most = nl.ndarray((2, nl.par_dim(128), 1), dtype=x.dtype, buffer=nl.sbuf)
    for c in nl.affine_range(4):
        for i in nl.affine_range(2):
            t = nl.load(x[i * 128:(i + 1) * 128, c * 64:(c + 1) * 64])
            part = nl.max(t, axis=1, keepdims=True)
            most[i, 0:128, 0:1] = nl.loop_reduce(part, op=np.max, loop_indices=[c])
    for i in nl.affine_range(2):
        nl.store(out[i * 128:(i + 1) * 128, 0:1], most[i, 0:128, 0:1])
    return out
"""


def test_sums_begin_before_their_loops_and_rows_are_loaded_to_all_partitions() -> None:
    shapes = (256, 64), (4, 64)
    before = trace(SUMS, *shapes)
    raised = raise_program(before, SUMS)
    assert raised.count("nisa.memset(") == raised.count("op=nl.add") == 1
    assert raised.index("nisa.memset(") < raised.index("nisa.dma_copy(")
    assert "src=scale[i : i + 1, :].broadcast(0, 128))" in raised
    assert "nc_stream_shuffle" not in raised
    np.testing.assert_array_equal(run(trace(raised, *shapes), *shapes), run(before, *shapes))


def test_a_vector_is_loaded_to_all_partitions() -> None:
    shapes = (256, 64), (64,)
    before = trace(SCALED, *shapes)
    raised = raise_program(before, SCALED)
    assert "src=scale.reshape((1, 64)).broadcast(0, 128))" in raised
    assert "nc_stream_shuffle" not in raised
    np.testing.assert_array_equal(run(trace(raised, *shapes), *shapes), run(before, *shapes))


LOADED_BEFORE_A_STORE = f"""{HEADER}def kernel(x):
    out = nl.ndarray((256, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.load(x[0:128, 0:64])
    nl.store(out[0:128, 0:64], t)
    row = nl.load(out.reshape((2, 8192))[0:1, 0:64])
    nl.store(out[0:128, 0:64], nl.multiply(t, 3.0))
    nl.store(out[128:256, 0:64], nl.multiply(row.broadcast_to((128, 64)), 2.0))
    return out
"""


def test_a_row_is_loaded_before_another_store_to_its_tensor() -> None:
    before = trace(LOADED_BEFORE_A_STORE, (128, 64))
    raised = raise_program(before, LOADED_BEFORE_A_STORE)
    np.testing.assert_array_equal(run(trace(raised, (128, 64)), (128, 64)), run(before, (128, 64)))


def test_a_row_that_goes_on_in_the_next_declared_row_is_no_window() -> None:
    source = SCALED.replace("scale.reshape((1, 64))", "scale.reshape((1, 256))").replace(
        "nl.arange(64)[None, :]])\n    wide", "32 + nl.arange(64)[None, :]])\n    wide"
    )
    shapes = (256, 64), (4, 64)
    before = trace(source, *shapes)
    raised = raise_program(before, source)
    assert "src=scale.ap(pattern=[[0, 128], [1, 64]], offset=32))" in raised
    np.testing.assert_array_equal(run(trace(raised, *shapes), *shapes), run(before, *shapes))


def test_a_reduction_over_a_loop_begins_with_its_neutral_number() -> None:
    before = trace(LARGEST, (256, 256))
    raised = raise_program(before, LARGEST)
    assert raised.count("nisa.tensor_reduce(") == 1
    assert "nisa.tensor_copy(" not in raised
    assert "value=-3.4028234663852886e+38" in raised
    np.testing.assert_array_equal(run(trace(raised, (256, 256)), (256, 256)), run(before, (256, 256)))


def test_a_total_that_is_finished_before_the_next_one_is_filled_in_its_loop() -> None:
    loops = "    for c in nl.affine_range(4):\n        for i in nl.affine_range(2):\n"
    outer, inner = loops.splitlines(keepends=True)
    source = LARGEST.replace(loops, inner[4:] + "    " + outer)
    before = trace(source, (256, 256))
    raised = raise_program(before, source)
    assert raised.count("nisa.tensor_reduce(") == raised.count("nisa.memset(") == 1
    assert raised.index("for i in nl.affine_range(2)") < raised.index("nisa.memset(")
    np.testing.assert_array_equal(run(trace(raised, (256, 256)), (256, 256)), run(before, (256, 256)))


def test_what_does_not_fit_together_is_filled_where_it_was() -> None:
    wide = (256, 16384)
    raised = raise_program(trace(SUMS, wide, (4, 16384)), SUMS)
    assert raised.index("nisa.memset(") > raised.index("nisa.dma_copy(")
