"""Pipelining: the first part of each iteration runs before the second part of the one before it."""

from __future__ import annotations

import pytest

from tests.support.kernels import TARGET, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite, list_rewrites_by_site
from tests.targets.nki.rewrites.test_coalesce import sample as product
from tests.targets.nki.rewrites.test_distribute import SITE, product_of_rows, sample

STEADY = """
    for i_pair in nl.sequential_range(m // P // 2 - 1):
        for i_turn in nl.sequential_range(2):
            for i in nl.affine_range(i_pair * 2 + i_turn + 1, i_pair * 2 + i_turn + 2):
                nisa.dma_copy(dst=rows[:, 1 - i_turn, :], src=x[i * P : (i + 1) * P, 0:n])
"""


@pytest.mark.parametrize("trips", [4, 6, 10])
def test_the_first_part_of_the_next_iteration_comes_before_the_second_of_this_one(trips: int):
    source = find_rewrite(sample(trips=trips), "pipeline", SITE, {})
    assert STEADY in source
    assert "mean = nl.ndarray((P, 2, 1), dtype=nl.float32, buffer=nl.sbuf)" in source
    assert "bias=mean[:, i_turn, :])" in source
    assert source.count("nisa.dma_copy(dst=rows") == 3
    assert source.count("nisa.activation(dst=turned") == 2
    assert relative_error(sample(trips=trips), source) < 2e-5


def test_tiles_in_psum_become_two():
    made = product_of_rows()
    source = made.source.replace(
        "stationary=ones, moving=rows)", "stationary=ones, moving=rows, accumulate=False)"
    )
    made = Sample(source, made.shapes, made.meaning)
    source = find_rewrite(made, "pipeline", "i before tensor_scalar to turned", {})
    assert "acc = [nl.ndarray((P, 64), dtype=nl.float32, buffer=nl.psum) for _ in range(2)]" in source
    assert "data=acc[i_turn]" in source
    assert relative_error(made, source) < 2e-5


@pytest.mark.parametrize("more", ["", ", accumulate=None"])
def test_a_product_that_starts_in_a_new_tile_keeps_it(more: str):
    made = product_of_rows()
    source = made.source.replace("moving=rows)", f"moving=rows{more})")
    made = Sample(source, made.shapes, made.meaning)
    reason = find_refusal(made, "pipeline", "i before tensor_scalar to turned")
    assert reason == "products add up in acc, which has to be new for each iteration"


def test_parts_of_a_distributed_loop_are_pipelined():
    made = sample(inside="nisa.activation(dst=rows, op=nl.copy, data=rows)")
    once = find_rewrite(made, "distribute", "i before tensor_reduce to mean", {"iterations": 4})
    halves = Sample(once, made.shapes, made.meaning)
    source = find_rewrite(halves, "pipeline", "i#2 before activation to rows", {})
    assert relative_error(halves, source) < 2e-5


def test_blocks_whose_loops_begin_with_their_number_are_pipelined():
    made = sample(trips=16)
    once = find_rewrite(made, "distribute", SITE, {"iterations": 2})
    blocks = Sample(once, made.shapes, made.meaning)
    source = find_rewrite(blocks, "pipeline", "i_block before activation to turned", {})
    assert "rows = nl.ndarray((P, 2, AHEAD_I, n), dtype=x.dtype, buffer=nl.sbuf)" in source
    assert "data=rows[:, i_block_turn, i % AHEAD_I, :]" in source
    assert relative_error(blocks, source) < 2e-5


def test_long_iterations_load_for_the_next_one_first():
    made = product()
    made = Sample(made.source, ((512, 512), (512, 1024)), made.meaning)
    source = find_rewrite(made, "pipeline", "i before nc_transpose to turned", {})
    assert relative_error(made, source) < 2e-5
    load = source.index("dst=rows[:, 1 - i_turn, :]")
    assert load < source.index("data=rows[:, i_turn, q * P : (q + 1) * P]")
    short = "q#2 before nc_transpose to turned"  # its loads run ahead of themselves
    assert short not in list_rewrites_by_site(made, "pipeline")


def test_a_tile_may_tell_its_own_width_in_its_subscripts():
    """With a place after its partitions the width is another number of its shape."""
    made = sample()
    halved = "bias=mean[:, mean.shape[1] - 1 : mean.shape[1]]"
    made = Sample(made.source.replace("bias=mean", halved), made.shapes, made.meaning)
    assert halved in made.source
    source = find_rewrite(made, "pipeline", SITE, {})
    assert "mean[:, i_turn, mean[:, i_turn, :].shape[1] - 1 : mean[:, i_turn, :].shape[1]]" in source
    assert relative_error(made, source) < 2e-5


@pytest.mark.parametrize("trips", [2, 3, 5])
def test_a_few_iterations_or_an_odd_number_are_left_alone(trips: int):
    reason = find_refusal(sample(trips=trips), "pipeline", SITE)
    assert reason == f"{trips} iterations over i are no even number from 4 on"


def test_what_is_handed_over_must_fit_twice():
    made = sample()
    columns = TARGET.sbuf_usable_bytes // 4 * 2 // 3
    wide = Sample(made.source, ((512, columns),), made.meaning)
    reason = find_refusal(wide, "pipeline", SITE)
    assert reason == "two places of what an iteration over i hands over do not fit"


def test_iterations_that_share_a_tile_stay_in_order():
    declared = "mean = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)"
    shared = sample(outside=declared)
    source = shared.source.replace(f"        {declared}\n", "")
    shared = Sample(source, shared.shapes, shared.meaning)
    assert find_refusal(shared, "pipeline", SITE) == "an iteration over i leaves mean to the next one"


def test_cuts_are_where_an_engine_goes_on_with_what_another_one_made():
    sites = {"tensor_reduce to mean", "activation to turned", "activation to rows"}
    assert set(list_rewrites_by_site(sample(), "pipeline")) == {f"i before {site}" for site in sites}
