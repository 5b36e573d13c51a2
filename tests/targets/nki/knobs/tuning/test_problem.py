"""Workloads as problems: what their specifications say."""

from __future__ import annotations

import pytest

from seeds import ProblemWork, build_problem
from seeds.spec import parse_spec
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.tracing import trace_workload
from targets.nki.knobs.tuning.problem import problem_files, specification_text, tolerance
from targets.nki.knobs.tuning.roofline import peak_flops_per_ms, roofline_ms
from tests.support.workloads import WORKLOADS


def work_of(name: str) -> ProblemWork:
    spec, faults = parse_spec(specification_text(WORKLOADS[name].graph).encode())
    assert spec is not None, faults
    return spec.minimal_work("full")


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_a_sound_problem(name: str) -> None:
    workload = WORKLOADS[name]
    names = ", ".join(workload.specs)
    problem = build_problem(
        problem_files(workload.graph, f"def reference({names}):\n    return {workload.graph.inputs[0]}\n")
    )
    dims = problem.spec.dims("full")
    shapes = {item.name: (item.resolve_shape(dims), item.dtype) for item in problem.spec.inputs}
    assert shapes == dict(workload.specs)
    (output,) = problem.spec.outputs
    assert output.resolve_shape(dims) == workload.graph.shape(workload.graph.output)
    assert problem.kernel == render_kernel(default_ir(workload.graph))
    narrow = any(value.dtype != "float32" for value in workload.graph.values)
    assert (problem.spec.rel_l2 == 2e-5) is not narrow


def test_products_count_once_each_way() -> None:
    work = work_of("swiglu")
    assert work.matmul_flops == 2 * 3 * 256 * 256 * 1024
    assert work.activation_elements == 256 * 1024
    assert work.elementwise_elements == 2 * 256 * 1024 + 256 * 256


def test_without_products_the_output_is_what_passes_an_engine() -> None:
    work = work_of("softmax")
    assert (work.matmul_flops, work.elementwise_elements) == (0, 256 * 2048)
    assert work.activation_elements == 256 * 2048


def test_what_is_computed_twice_counts_once() -> None:
    twice, once = work_of("attention"), work_of("matmul")
    assert twice.matmul_flops == 2 * 2 * 256 * 512 * 64
    assert once.other_flops == 0


def test_the_rate_is_that_of_the_products_type() -> None:
    assert work_of("matmul_bfloat16").matmul_dtype == "bfloat16"
    assert peak_flops_per_ms("bfloat16", "trn2") == 4 * peak_flops_per_ms("float32", "trn2")
    assert roofline_ms(work_of("matmul"), "trn2") > roofline_ms(work_of("matmul_bfloat16"), "trn2") > 0


def test_more_values_in_a_narrow_type_may_err_more() -> None:
    narrow = {name: (shape, "bfloat16") for name, (shape, _) in WORKLOADS["attention"].specs.items()}
    deep = trace_workload(WORKLOADS["attention"].function, narrow)
    assert 0.011 == tolerance(WORKLOADS["matmul_bfloat16"].graph) < tolerance(deep) < 0.03
