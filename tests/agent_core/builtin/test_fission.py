"""Fission: tiles that iterations make for themselves are made ahead, each in a place of its own."""

from __future__ import annotations

import pytest

from tests.agent_core.builtin.test_coalesce import SHAPES, sample
from tests.support.kernels import HEADER, Sample, error
from tests.support.rewriting import only, refusal, rewritten

SCALED = """
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    {outside}
    for i in nl.affine_range(m // 128):
        t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, :])
        u = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=u, data=t, op0=nl.multiply, operand0=2.0)
        {inside}
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=u)
    return out
"""


def scaled(outside: str = "pass", inside: str = "pass") -> Sample:
    source = HEADER + SCALED.format(outside=outside, inside=inside)
    return Sample(source, ((512, 64),), lambda x: 2 * x)


def test_all_iterations_are_made_ahead():
    source = only(scaled(), "fission", "u in i", {"iterations": 4})
    assert (
        """
    u_all = nl.ndarray((128, m // 128, n), dtype=x.dtype, buffer=nl.sbuf)
    for i in nl.affine_range(m // 128):
        t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, :])
        nisa.tensor_scalar(dst=u_all[:, i, :], data=t, op0=nl.multiply, operand0=2.0)
    for i in nl.affine_range(m // 128):
"""
        in source
    )
    assert "src=u_all[:, i, :])" in source


def test_a_block_of_iterations_is_made_ahead():
    source = only(scaled(), "fission", "u in i", {"iterations": 2})
    assert "AHEAD_I = 2  # iterations over i in a block\n" in source
    assert "    for i_block in nl.affine_range(m // 128 // AHEAD_I):\n        u_all = " in source
    assert source.count("for i in nl.affine_range(i_block * AHEAD_I, (i_block + 1) * AHEAD_I):") == 2


@pytest.mark.parametrize("size", [2, 4])
def test_the_result_stays(size: int):
    assert error(scaled(), only(scaled(), "fission", "u in i", {"iterations": size})) < 1e-6


def test_products_find_their_operands_made_ahead():
    made = Sample(sample().source, ((256, 512), SHAPES[1]), sample().meaning)
    ((choice, source),) = rewritten(made, "fission")["left in i"]
    assert choice == {"iterations": 2}
    assert error(made, source) < 2e-5


def test_a_tile_that_is_only_loaded_is_left_to_wider_transfers():
    assert refusal(scaled(), "fission", "t in i") == "t is only loaded: widen its transfer instead"


def test_inputs_that_the_loop_changes_stay_with_it():
    made = scaled(
        outside="c = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.sbuf)",
        inside="nisa.memset(dst=c, value=1.0)\n"
        "        nisa.tensor_scalar(dst=u, data=u, op0=nl.multiply, operand0=c)",
    )
    assert refusal(made, "fission", "u in i") == "c changes inside the loop over i"
