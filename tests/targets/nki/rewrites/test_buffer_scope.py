"""Buffer scope: a buffer moves into a loop that begins by filling it, at once or window by window."""

from __future__ import annotations

import pytest

from tests.support.kernels import HEADER, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite

WINDOWS = """
TILE = 64


@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    # One for all tiles of rows.
    t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
    for i in nl.affine_range(m // 128):
        for j in nl.affine_range({trips}):
            nisa.dma_copy(dst=t[:, {window}], src=x[i * 128 : (i + 1) * 128, {window}])
            {inside}
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=t)
    return out
"""
WINDOW = "j * TILE : (j + 1) * TILE"


def sample(trips: str = "n // TILE", window: str = WINDOW, inside: str = "pass") -> Sample:
    source = HEADER + WINDOWS.format(trips=trips, window=window, inside=inside)
    return Sample(source, ((256, 256),), lambda x: 2 * x)


def test_windows_that_fill_a_buffer_let_it_move():
    source = find_rewrite(sample(), "buffer_scope", "t into i", {})
    assert (
        """
    for i in nl.affine_range(m // 128):
        # One for all tiles of rows.
        t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        for j in nl.affine_range(n // TILE):
"""
        in source
    )
    assert relative_error(sample(), source) < 1e-6


def test_a_buffer_moves_into_the_loop_inside_that_fills_it():
    body = """
    for i in nl.affine_range(m // 128):
        for j in nl.affine_range(n // TILE):
            nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, j * TILE : (j + 1) * TILE])
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * TILE : (j + 1) * TILE], src=t)
    return out
"""
    head, _, _ = sample().source.partition("\n    for i in")
    text = head.replace("(128, n)", "(128, TILE)") + body
    made = Sample(text, ((256, 256),), lambda x: x)
    source = find_rewrite(made, "buffer_scope", "t into j", {})
    assert relative_error(made, source) < 1e-6
    assert source.index("for j in") < source.index("            t = nl.ndarray")
    assert find_refusal(made, "buffer_scope", "t into i") == "iterations over i do not start by filling t"


@pytest.mark.parametrize(
    "made",
    [
        sample(trips="n // TILE - 1"),
        sample(window="j * TILE : j * TILE + 32"),
        sample(window="j * 32 : j * 32 + TILE"),
        sample(trips="1", window="0 : TILE"),
        sample(inside="nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=1.0)"),
    ],
)
def test_what_the_windows_leave_out_must_stay(made: Sample):
    assert find_refusal(made, "buffer_scope", "t into i") == "iterations over i do not start by filling t"
