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


LISTED = """
@nki.jit
def kernel(x):
    out = nl.ndarray((256, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    kept = [nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf) for _ in range(8)]
    for i in nl.affine_range(2):
        for j in nl.affine_range({filled}):
            nisa.dma_copy(
                dst=kept[{written}], src=x[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]
            )
        for k in nl.affine_range(2):
            for l in nl.affine_range(2):
                a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(dst=a, data=kept[{read}], op0=nl.multiply, operand0=2.0)
                nisa.dma_copy(
                    dst=out[i * 128 : (i + 1) * 128, k * 256 + l * 128 : k * 256 + (l + 1) * 128], src=a
                )
    return out
"""


def listed(filled: int = 4, written: str = "j * 2 + i", read: str = "k * 4 + l * 2 + i") -> Sample:
    source = HEADER + LISTED.format(filled=filled, written=written, read=read)
    return Sample(source, ((256, 512),), lambda x: 2 * x)


def test_an_iteration_has_its_own_tiles_of_a_list_and_numbers_them_anew():
    source = find_rewrite(listed(), "buffer_scope", "kept into i", {})
    assert (
        "        kept = [nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]\n"
        in source
    )
    assert "dst=kept[j]," in source
    assert "data=kept[k * 2 + l]," in source
    assert relative_error(listed(), source) < 1e-6


@pytest.mark.parametrize(
    ("made", "refusal"),
    [
        (listed(filled=3), "an iteration over i reads a tile of kept before it fills it"),
        (listed(written="j * 2"), "an iteration over i uses tiles of kept that others use"),
    ],
)
def test_a_list_stays_if_iterations_share_its_tiles(made: Sample, refusal: str):
    assert find_refusal(made, "buffer_scope", "kept into i") == refusal
