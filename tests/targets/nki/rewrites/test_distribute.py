"""Distribution in blocks: several iterations do their first part before any does its second."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import HEADER, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite, list_rewrites_by_site

ROWS = """
P = 128

@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    {outside}
    for i in nl.affine_range(m // P):
        rows = nl.ndarray((P, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[i * P : (i + 1) * P, 0:n])
        nisa.tensor_copy(dst=rows, src=rows)
        nisa.activation(dst=rows, op=nl.copy, data=rows)
        # Rows without their offset.
        mean = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=mean, op=nl.add, data=rows, axis=1)
        {inside}
        turned = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=turned, op=nl.tanh, data=rows, bias=mean)
        nisa.dma_copy(dst=out[i * P : (i + 1) * P, 0:n], src=turned)
    return out
"""
SITE = "i before activation to turned"


def sample(outside: str = "pass", inside: str = "pass", trips: int = 4) -> Sample:
    source = HEADER + ROWS.format(outside=outside, inside=inside)
    return Sample(source, ((128 * trips, 64),), lambda x: np.tanh(x + x.sum(axis=1, keepdims=True)))


def test_the_second_part_follows_the_first_of_all_iterations_of_a_block():
    source = find_rewrite(sample(), "distribute", SITE, {"iterations": 2})
    assert (
        """
    for i_block in nl.affine_range(m // P // AHEAD_I):
        rows = nl.ndarray((P, AHEAD_I, n), dtype=x.dtype, buffer=nl.sbuf)
        # Rows without their offset.
        mean = nl.ndarray((P, AHEAD_I, 1), dtype=nl.float32, buffer=nl.sbuf)
        for i in nl.affine_range(i_block * AHEAD_I, (i_block + 1) * AHEAD_I):
            nisa.dma_copy(dst=rows[:, i % AHEAD_I, :], src=x[i * P : (i + 1) * P, 0:n])
            nisa.tensor_copy(dst=rows[:, i % AHEAD_I, :], src=rows[:, i % AHEAD_I, :])
            nisa.activation(dst=rows[:, i % AHEAD_I, :], op=nl.copy, data=rows[:, i % AHEAD_I, :])
            nisa.tensor_reduce(dst=mean[:, i % AHEAD_I, :], op=nl.add, data=rows[:, i % AHEAD_I, :], axis=1)
            pass
        for i in nl.affine_range(i_block * AHEAD_I, (i_block + 1) * AHEAD_I):
            turned = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation("""
        in source
    )
    assert "AHEAD_I = 2  # iterations over i whose first part runs ahead" in source
    assert relative_error(sample(), source) < 2e-5


def test_a_block_of_all_iterations_needs_no_loop_around_it():
    source = find_rewrite(sample(trips=3), "distribute", SITE, {"iterations": 3})
    assert "    mean = nl.ndarray((P, m // P, 1), dtype=nl.float32, buffer=nl.sbuf)" in source
    assert source.count("    for i in nl.affine_range(m // P):") == 2
    assert "bias=mean[:, i, :])" in source
    assert relative_error(sample(trips=3), source) < 2e-5


def test_parts_of_a_block_are_distributed_further():
    made = sample(
        inside="nisa.activation(dst=rows, op=nl.copy, data=rows)\n"
        "        nisa.tensor_copy(dst=rows, src=rows)"
    )
    once = find_rewrite(made, "distribute", "i before tensor_reduce to mean", {"iterations": 2})
    block = Sample(once, made.shapes, made.meaning)
    source = find_rewrite(block, "distribute", "i#2 before activation to turned", {"iterations": 2})
    assert source.count("for i in nl.affine_range(i_block * AHEAD_I, (i_block + 1) * AHEAD_I):") == 3
    assert relative_error(block, source) < 2e-5


def test_blocks_are_distributed_further():
    made = sample(trips=16)
    once = find_rewrite(made, "distribute", SITE, {"iterations": 2})
    blocks = Sample(once, made.shapes, made.meaning)
    source = find_rewrite(blocks, "distribute", "i_block before activation to turned", {"iterations": 4})
    assert "data=rows[:, i_block % AHEAD_BLOCK, i % AHEAD_I, :]" in source
    assert relative_error(blocks, source) < 2e-5


@pytest.mark.parametrize("technique", ["distribute", "pipeline"])
def test_a_loop_whose_variable_is_counted_again_inside_stays(technique: str):
    made = sample(
        inside="for i in nl.affine_range(i * 1, i + 1):\n            nisa.tensor_copy(dst=rows, src=rows)"
    )
    assert find_refusal(made, technique, SITE) == "i means something else in a part of its loop"


def product_of_rows() -> Sample:
    """Its first part leaves a tile in PSUM to the second, behind `i before tensor_scalar to turned`."""
    product = sample(
        inside="acc = nl.ndarray((P, 64), dtype=nl.float32, buffer=nl.psum)\n"
        "        nisa.nc_matmul(dst=acc, stationary=ones, moving=rows)",
        outside="ones = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)\n"
        "    nisa.memset(dst=ones, value=1.0)",
    )
    shifted = "tensor_scalar(dst=turned, data=acc, op0=nl.add, operand0=mean)"
    source = product.source.replace("activation(dst=turned, op=nl.tanh, data=rows, bias=mean)", shifted)
    return Sample(source, product.shapes, lambda x: _of_tiles(x) + x.sum(axis=1, keepdims=True))


def test_tiles_in_psum_become_a_list():
    product = product_of_rows()
    source = find_rewrite(product, "distribute", "i before tensor_scalar to turned", {"iterations": 2})
    assert "acc = [nl.ndarray((P, 64), dtype=nl.float32, buffer=nl.psum) for _ in range(AHEAD_I)]" in source
    assert "data=acc[i % AHEAD_I]" in source
    assert relative_error(product, source) < 2e-5


def _of_tiles(x: np.ndarray) -> np.ndarray:
    tiles = x.reshape(-1, 128, x.shape[1]).sum(axis=1, keepdims=True)
    return np.broadcast_to(tiles, (len(tiles), 128, x.shape[1])).reshape(x.shape)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sample(outside="turned = 1", inside="if m > 1:\n            pass"), "cannot be read"),
        (sample(inside="other = mean"), "mean has a second name"),
        (sample(inside="other = x[0:1, 0:1]\n        other = rows"), "rows has a second name"),
    ],
)
def test_it_says_why_not(bad: Sample, reason: str):
    assert reason in find_refusal(bad, "distribute", SITE)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("1 + i * 0", "mean is declared with i, which only the loop over i knows"),
        ("rows.shape[0] // P", "rows has a second name or is used by what cannot be read"),
    ],
)
def test_a_tile_must_be_declared_without_the_loop(size: str, expected: str):
    made = sample()
    source = made.source.replace("mean = nl.ndarray((P, 1)", f"mean = nl.ndarray((P, {size})")
    made = Sample(source, made.shapes, made.meaning)
    assert find_refusal(made, "distribute", SITE) == expected


def test_iterations_that_share_a_tile_stay_in_order():
    shared = sample(outside="mean = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)")
    shared = Sample(
        shared.source.replace("        mean = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)\n", ""),
        shared.shapes,
        shared.meaning,
    )
    assert find_refusal(shared, "distribute", SITE) == "an iteration over i leaves mean to the next one"


def test_what_one_iteration_of_the_second_part_makes_for_all_stays_there():
    kept = "w = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)"
    once = "if i == 0:\n            nisa.memset(dst=w, value=2.0)\n        "
    made = sample(outside=kept, inside="nisa.activation(dst=rows, op=nl.copy, data=rows)")
    made = Sample(
        made.source.replace(
            "nisa.activation(dst=turned, op=nl.tanh, ",
            f"{once}nisa.activation(dst=turned, op=nl.tanh, scale=w, ",
        ),
        made.shapes,
        lambda x: np.tanh(2 * x + x.sum(axis=1, keepdims=True)),
    )
    changed = find_rewrite(made, "distribute", "i before memset to w", {"iterations": 2})
    assert "if i == 0:" in changed
    assert relative_error(made, changed) < 2e-5
    assert find_refusal(made, "distribute", SITE) == "an iteration over i leaves w to the next one"


def test_cuts_are_where_an_engine_that_has_worked_before_waits_for_another():
    assert set(list_rewrites_by_site(sample(), "distribute")) == {SITE, "i before tensor_reduce to mean"}
