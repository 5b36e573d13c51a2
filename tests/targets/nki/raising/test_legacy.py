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
