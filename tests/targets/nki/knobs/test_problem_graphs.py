"""The graphs that problems carry: what their files say is what the problem is, at every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import seeds
from nki_sim import targets
from seeds.inputs import draw_inputs
from targets.nki.knobs.interpret import interpret_kernel
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.validity import validity_report
from targets.nki.knobs.workload_file import WORKLOAD_FILE, load_graph
from tests.support.problem_workloads import FUNCTIONS, file_of
from tests.support.workloads import simulate_source

CARRIED = sorted(FUNCTIONS)
BEYOND = {"gqa_full", "mamba", "rope_single_freq_apply"}
"""What the knob surface cannot say yet; `docs/knobs.md` says why."""

each = pytest.mark.parametrize("name", CARRIED)


def _reference(problem: seeds.Problem) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(problem.files["reference.py"], names)
    found: Callable[..., Any] = names["reference"]
    return found


def test_every_problem_has_a_graph_or_a_reason() -> None:
    assert {*CARRIED, *BEYOND} == set(seeds.builtin_problems())
    assert [
        name for name in seeds.builtin_problems() if WORKLOAD_FILE in seeds.load_problem(name).files
    ] == CARRIED


@each
def test_the_file_is_what_the_function_is_traced_to(name: str) -> None:
    written = seeds.load_problem(name).files[WORKLOAD_FILE] == file_of(name)
    assert written, "python -m tests.support.problem_workloads writes it anew"


@each
def test_the_graph_takes_and_returns_what_the_problem_does(name: str) -> None:
    problem = seeds.load_problem(name)
    for size, dims in problem.spec.sizes.items():
        graph = load_graph(problem.files[WORKLOAD_FILE], size, "trn2")
        assert graph.name == name
        taken = [(key, graph.shape(key), graph.value[key].dtype) for key in graph.inputs]
        assert taken == [
            (item.name, item.resolve_kernel_shape(dims), item.dtype) for item in problem.spec.inputs
        ]
        (output,) = problem.spec.outputs
        returned = (graph.shape(graph.output), graph.value[graph.output].dtype)
        assert returned == (output.resolve_shape(dims), output.dtype)


@each
def test_it_computes_what_the_reference_does(name: str) -> None:
    """Interpreted, and as a kernel on the simulator, on inputs of the problem's distributions."""
    problem = seeds.load_problem(name)
    graph = load_graph(problem.files[WORKLOAD_FILE], "reduced", "trn2")
    inputs = dict(zip(graph.inputs, draw_inputs(problem.spec, "reduced", 7), strict=True))
    wanted = _reference(problem)(*inputs.values()).astype(np.float64)
    ir = default_ir(graph)
    for found in (interpret_kernel(lower_kernel(ir), inputs), simulate_source(render_kernel(ir), inputs)):
        error = np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted)
        assert error < problem.spec.rel_l2


@each
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_the_default_is_valid_at_every_size_on_every_target(name: str, target: str) -> None:
    problem = seeds.load_problem(name)
    assert target in targets.names()
    for size in problem.spec.sizes:
        ir = default_ir(load_graph(problem.files[WORKLOAD_FILE], size, target))
        assert validity_report(ir) == []
