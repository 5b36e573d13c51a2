"""Counting, enumerating and drawing points."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from targets.nki.knobs import ops
from targets.nki.knobs.interpret import interpret_kernel
from targets.nki.knobs.ir import BLOCK, TILE
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.neighbours import is_valid
from targets.nki.knobs.program import program_digest
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.sampling import sample_any_point, sample_ir
from targets.nki.knobs.space import iter_loop_orders, iter_points, iter_programs, space_size
from tests.support.workloads import WORKLOADS, Workload


def _exponential(x: Any) -> Any:
    output = ops.NKIActivation(op="exp", scale=0.5)(data=x)
    return output  # noqa: RET504


def _total(x: Any) -> Any:
    output = ops.NKIActivationReduce(op="square")(data=x)
    return output  # noqa: RET504


def _twice(x: Any) -> Any:
    total = ops.NKITensorReduce(op="add")(data=x)
    output = ops.NKITensorScalar(op0="subtract")(data=x, operand0=total)
    return output  # noqa: RET504


TINY = {
    "elementwise": Workload(_exponential, lambda x: np.exp(x * 0.5), {"x": ((8, 12), "float32")}),
    "sum": Workload(_total, lambda x: (x * x).sum(axis=1), {"x": ((8, 12), "float32")}),
    "sum, then all again": Workload(
        _twice, lambda x: x - x.sum(axis=1, keepdims=True), {"x": ((4, 6), "float32")}
    ),
}


EACH = {name: 1 if "KNOB_SEEDS" in os.environ else each for name, each in zip(TINY, (5, 2, 23), strict=True)}
"""One of how many points is looked at; all of them where more seeds are asked for."""


def _cut(workload: Workload) -> Any:
    """A graph whose dimensions have two tiles each, so that every loop may matter."""
    graph = workload.graph
    return replace(graph, dims=tuple(replace(dim, tile=dim.size // 2) for dim in graph.dims))


@pytest.mark.parametrize("name", TINY)
def test_every_valid_point_of_a_small_space_is_right(name: str) -> None:
    workload = TINY[name]
    graph, inputs = _cut(workload), workload.inputs()
    found = list(iter_points(graph))
    assert len(found) == space_size(graph).points
    valid = [ir for ir in found[:: EACH[name]] if is_valid(ir)]
    assert len(valid) > 20
    for source, ir in {render_kernel(ir): ir for ir in valid}.items():
        assert workload.error(interpret_kernel(lower_kernel(ir), inputs), inputs) < workload.tolerance, source


@pytest.mark.parametrize("name", ["elementwise", "sum"])
def test_programs_are_all_that_the_space_has_each_once(name: str) -> None:
    graph = _cut(TINY[name])
    found = [program_digest(ir) for ir in iter_programs(graph)]
    assert len(set(found)) == len(found)
    assert set(found) == {program_digest(ir) for ir in iter_points(graph) if is_valid(ir)}


def test_the_size_of_a_space_is_that_of_its_knobs() -> None:
    size = space_size(WORKLOADS["matmul"].graph)
    assert (size.loop_orders, size.block_sizes) == (90, 2 * 3 * 2)
    assert size.buffer_scopes == 3**10 * 3**2 * 2  # five buffers of two dimensions, PSUM in the sum as well
    assert size.points == size.loop_orders * size.block_sizes * size.buffer_scopes


def test_orders_walk_blocks_outside_of_their_tiles() -> None:
    graph = WORKLOADS["matmul"].graph
    found = list(iter_loop_orders(graph))
    assert len(set(found)) == len(found) == space_size(graph).loop_orders
    assert all(
        order.index(f"{dim.name}.{BLOCK}") < order.index(f"{dim.name}.{TILE}")
        for order in found
        for dim in graph.dims
    )


def test_the_same_seed_draws_the_same_samples() -> None:
    ir = WORKLOADS["matmul"].default
    first, again = ([sample_ir(ir, rng) for _ in range(3)] for rng in (Random(5), Random(5)))
    assert first == again
    assert len(set(first)) == 3


def test_samples_reach_every_block_size_and_both_ways_to_drain() -> None:
    graph = WORKLOADS["matmul"].graph
    rng = Random(2)
    found = [sample_ir(default_ir(graph), rng) for _ in range(40)]
    assert {ir.ltiles["d1"] for ir in found} == {1, 2, 4}
    assert len({ir.scopes["psum_output"]["d1"] for ir in found}) == 2
    assert len({ir.loop_order for ir in found}) > 25


def test_points_anywhere_are_mostly_not_valid() -> None:
    graph = WORKLOADS["matmul"].graph
    rng = Random(0)
    found = [sample_any_point(graph, rng) for _ in range(200)]
    assert sum(is_valid(ir) for ir in found) < 60
