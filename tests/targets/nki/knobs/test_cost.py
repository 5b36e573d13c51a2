"""The static estimate, and the default that is chosen by it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from nki_sim import ArraySpec, targets
from nki_sim.frontend.entry import trace_bytes
from nki_sim.program.ir import Program
from nki_sim.timing.forecast import forecast_program
from targets.nki.knobs.cost import cost_ns, estimate_cost
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import KernelIR, Scope
from targets.nki.knobs.narrowing import build_layout, default_ir, widest_ir
from targets.nki.knobs.placement import compute_placement
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.sampling import sample_ir
from targets.nki.knobs.tracing import trace_workload
from tests.support.problem_workloads import graph_of
from tests.support.sweeps import parametrize_sweep
from tests.support.workloads import WORKLOADS, matmul

LARGE = trace_workload(matmul, {"lhs": ((1024, 1024), "bfloat16"), "rhs": ((1024, 2048), "bfloat16")})


def _cost(ir: KernelIR) -> float:
    return cost_ns(ir, compute_placement(ir))


def _predicted_ns(ir: KernelIR) -> float:
    specs = [ArraySpec(ir.graph.shape(name), ir.graph.value[name].dtype) for name in ir.graph.inputs]
    program = Program.from_bytes(trace_bytes(render_kernel(ir), args=specs, target=ir.graph.target))
    return forecast_program(program, targets.load(ir.graph.target)).latency_ms * 1e6


@parametrize_sweep("name", WORKLOADS, quick=["matmul", "softmax", "rmsnorm_matmul"])
def test_a_kernel_is_not_promised_to_be_slower_than_it_is(name: str) -> None:
    start, rng = WORKLOADS[name].default, Random(2)
    for ir in (start, *(sample_ir(start, rng) for _ in range(4))):
        assert 0 < estimate_cost(ir, compute_placement(ir)).least_ns < _predicted_ns(ir)


def test_what_costs_more_is_predicted_to_take_longer() -> None:
    start, rng = default_ir(LARGE), Random(0)
    points = [sample_ir(start, rng) for _ in range(12)]
    costs, times = [_cost(ir) for ir in points], [_predicted_ns(ir) for ir in points]
    ranks = (np.argsort(np.argsort(item)) for item in (costs, times))
    assert np.corrcoef(*ranks)[0, 1] > 0.8


def test_loading_again_costs_more_than_holding() -> None:
    held = widest_ir(LARGE, default_ir(LARGE).loop_order)
    tile = held.with_knob(("buffer_scopes", "sbuf_rhs", "d2"), Scope.PER_TILE)
    again = tile.with_knob(("buffer_scopes", "sbuf_rhs", "d1"), Scope.PER_TILE)
    assert _cost(again) > _cost(held)


def test_the_default_costs_less_than_most_samples() -> None:
    start, rng = default_ir(LARGE), Random(1)
    samples = [_cost(sample_ir(start, rng)) for _ in range(20)]
    assert sum(_cost(start) <= cost for cost in samples) >= 18


@pytest.mark.parametrize("graph", [LARGE, WORKLOADS["bmm_softmax"].graph, WORKLOADS["swiglu"].graph])
def test_the_default_is_near_what_it_would_cost_if_everything_fitted(graph: Graph) -> None:
    ir = default_ir(graph)
    assert build_layout(ir) is not None
    assert _cost(ir) <= 1.05 * _cost(widest_ir(graph, ir.loop_order))


def test_a_default_is_found_where_everything_at_once_overruns_the_chip_by_far() -> None:
    graph = graph_of("bmm_softmax", "full")
    ir = default_ir(graph)
    assert _cost(ir) <= 1.05 * _cost(widest_ir(graph, ir.loop_order))
    assert ir.loop_order[:2] == ("d0.block", "d0.tile")
