"""Each check on a point that fails it, with a hint that names the knob."""

from __future__ import annotations

from typing import Any

import pytest

from targets.nki.knobs import ops
from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import KernelIR, Knob, Scope
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.narrowing import widest_ir
from targets.nki.knobs.program import program_digest
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.report import CheckFailure, follow_hint
from targets.nki.knobs.tracing import trace_workload
from targets.nki.knobs.validity import validity_report
from tests.support.workloads import TARGET, WORKLOADS, Workload, matmul, simulate_source

MATMUL = WORKLOADS["matmul"].graph
OUTER = ("d0.block", "d0.tile", "d2.block", "d2.tile", "d1.block", "d1.tile")
SUM_OUTER = ("d1.block", "d0.block", "d0.tile", "d2.block", "d2.tile", "d1.tile")


def _failures(graph: Graph, order: tuple[str, ...], **turns: Any) -> list[CheckFailure]:
    """The report of a point where everything is held, but for the scopes given as `buffer__dim`."""
    ir = widest_ir(graph, order, turns.pop("ltiles", None))
    for name, scope in turns.items():
        buffer, dim = name.split("__")
        ir = ir.with_knob(("buffer_scopes", buffer, dim), scope)
    found = validity_report(ir)
    for failure in found:
        assert failure.key not in {item.key for item in validity_report(follow_hint(ir, failure))}
    return found


def test_a_point_where_all_is_held_is_valid_where_it_fits() -> None:
    assert _failures(MATMUL, OUTER) == []


@pytest.mark.parametrize(
    ("knob", "value", "check"),
    [
        (("loop_order",), ("d0.block", "d0.tile"), "loops"),
        (("loop_order",), (*OUTER, "d0.tile"), "loops"),
        (("loop_order",), ("d0.tile", "d0.block", *OUTER[2:]), "tile_outside_block"),
        (("ltiles_per_block", "d1"), 3, "block_size"),
        (("ltiles_per_block", "d1"), None, "block_size"),
        (("ltiles_per_block", "d7"), 1, "block_size"),
        (("buffer_scopes", "sbuf_lhs", "d0"), None, "scope"),
        (("buffer_scopes", "sbuf_lhs", "d0"), "FULL", "scope"),
        (("buffer_scopes", "sbuf_lhs", "d2"), Scope.FULL, "scope"),
        (("buffer_scopes", "psum_output", "d1"), Scope.PER_TILE, "scope"),
    ],
)
def test_what_is_no_value_of_a_knob_is_refused(knob: Knob, value: Any, check: str) -> None:
    ir = widest_ir(MATMUL, OUTER).with_knob(knob, value)
    (failure,) = validity_report(ir)
    assert failure.check == check
    assert failure.fix[0][0][0] == knob[0]
    assert not {"loops", "tile_outside_block", "block_size", "scope"} & {
        item.check for item in validity_report(follow_hint(ir, failure))
    }
    with pytest.raises(KnobError, match=check):
        lower_kernel(ir)


def test_a_buffer_cannot_hold_all_of_a_dimension_and_be_made_anew_in_its_loop() -> None:
    (failure,) = _failures(MATMUL, OUTER, sbuf_output__d2=Scope.PER_TILE)
    assert (failure.check, failure.buffer, failure.at) == ("scope_interval", "sbuf_output", "d0.block")
    assert failure.hint == "set buffer_scopes[sbuf_output][d2] to FULL"


def test_a_sum_is_made_outside_of_the_loop_that_it_adds_up_over() -> None:
    tile = dict.fromkeys(
        ("sbuf_output__d0", "sbuf_output__d2", "psum_output__d0", "psum_output__d2"), Scope.PER_TILE
    )
    failures = _failures(MATMUL, SUM_OUTER, psum_output__d1=Scope.PER_BLOCK, **tile)
    assert {(item.check, item.buffer, item.at) for item in failures} == {
        ("reduction_interval", "sbuf_output", "d1.block")
    }
    assert failures[0].hint == (
        "set buffer_scopes[sbuf_output][d0] to FULL, buffer_scopes[sbuf_output][d2] to FULL"
    )


def test_what_is_read_again_after_a_sum_is_held_until_then() -> None:
    graph = WORKLOADS["softmax"].graph
    order = ("d0.block", "d0.tile", "d1.block", "d1.tile")
    scopes = {"sbuf_x__d0": Scope.PER_TILE, "sbuf_x__d1": Scope.PER_TILE}
    tiles = {f"sbuf_{value.name}__d0": Scope.PER_TILE for value in graph.values}
    failures = _failures(graph, order, **(tiles | scopes))
    assert {(item.check, item.buffer, item.at) for item in failures} == {
        ("reader_interval", "sbuf_x", "d1.block"),
    }
    assert failures[0].hint == "set buffer_scopes[sbuf_x][d1] to FULL"


def test_float32_sums_do_not_go_into_a_product_of_bfloat16() -> None:
    def chain(a: Any, b: Any, c: Any) -> Any:
        inner = ops.NKIMatmul()(stationary=a, moving=b)
        return ops.NKIMatmul()(stationary=c, moving=inner)

    shapes = {"a": (512, 256), "b": (512, 512), "c": (256, 128)}
    graph = trace_workload(chain, {name: (shape, "bfloat16") for name, shape in shapes.items()})
    order = tuple(f"{dim.name}.{level}" for dim in graph.dims for level in ("block", "tile"))
    (failure,) = _failures(graph, order, psum_inner__d0=Scope.PER_BLOCK)
    assert failure.check == "matmul_dtype"
    assert failure.hint == "set buffer_scopes[psum_inner][d0] to FULL"
    assert _failures(graph, order, psum_inner__d0=Scope.PER_BLOCK, ltiles={**_ones(graph), "d0": 4}) == []


def _ones(graph: Graph) -> dict[str, int]:
    return {dim.name: 1 for dim in graph.dims}


def test_a_product_does_not_lie_over_two_banks() -> None:
    graph = trace_workload(matmul, {"lhs": ((128, 128), "float32"), "rhs": ((128, 768), "float32")})
    assert graph.dim["d2"].tile == 384
    (failure,) = _failures(graph, OUTER)
    assert (failure.check, failure.buffer) == ("psum_bank", "psum_output")
    assert _failures(graph, OUTER, psum_output__d2=Scope.PER_TILE, psum_output__d0=Scope.PER_TILE) == []


@pytest.mark.parametrize(
    ("shapes", "checks"),
    [
        (((4096, 512), (512, 1024)), {"psum_capacity"}),
        (((128, 128), (128, 65536)), {"sbuf_capacity", "psum_capacity"}),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(shapes: Any, checks: set[str]) -> None:
    graph = trace_workload(
        matmul, {name: (shape, "float32") for name, shape in zip(("lhs", "rhs"), shapes, strict=True)}
    )
    ir = widest_ir(graph, OUTER)
    found = validity_report(ir)
    assert {failure.check for failure in found} == checks
    assert "are in use at once" in found[0].detail
    assert validity_report(follow_hint(ir, found[0])) == []


def test_a_report_names_everything_that_contradicts_itself() -> None:
    failures = _failures(
        MATMUL,
        OUTER,
        sbuf_output__d2=Scope.PER_TILE,
        sbuf_lhs__d1=Scope.PER_TILE,
        sbuf_rhs__d2=Scope.PER_TILE,
    )
    assert {failure.buffer for failure in failures} >= {"sbuf_output"}
    with pytest.raises(KnobError) as caught:
        lower_kernel(_with(widest_ir(MATMUL, OUTER), "sbuf_output", "d2"))
    assert "set buffer_scopes[sbuf_output][d2] to FULL" in str(caught.value)


def _with(ir: KernelIR, buffer: str, dim: str) -> KernelIR:
    return ir.with_knob(("buffer_scopes", buffer, dim), Scope.PER_TILE)


def test_a_loop_that_others_come_between_is_two() -> None:
    """Columns are loaded tile by tile and read twice; what is read with them needs all columns before."""

    def again(x: Any) -> Any:
        powers = ops.NKIActivation(op="exp")(data=x)
        squares = ops.NKIActivation(op="square")(data=powers)
        return ops.NKITensorTensor(op="add")(data1=squares, data2=x)

    graph = trace_workload(again, {"x": ((128, 2048), "float32")})
    order = ("d0.block", "d0.tile", "d1.block", "d1.tile")
    (failure,) = _failures(graph, order, sbuf_x__d1=Scope.PER_TILE)
    assert (failure.check, failure.buffer, failure.at) == ("split_loop", "sbuf_x", "d1.block")


def test_a_loop_that_runs_once_places_nothing() -> None:
    """Wherever it stands, and whatever holds only a tile of its dimension."""
    graph = trace_workload(matmul, {"lhs": ((256, 128), "float32"), "rhs": ((128, 512), "float32")})
    found = set()
    for order in (OUTER, SUM_OUTER):
        ir = widest_ir(graph, order, {"d0": 1, "d1": 1, "d2": 1})
        for buffer in ir.plan.buffers:
            for dim in set(buffer.scoped_dims) - {"d0", buffer.partial}:
                ir = ir.with_knob(("buffer_scopes", buffer.name, dim), Scope.PER_TILE)
        assert validity_report(ir) == []
        found.add(program_digest(ir))
    assert found == {program_digest(widest_ir(graph, OUTER))}


def test_an_instruction_reaches_no_further_in_psum_than_it_may() -> None:
    """Seven banks hold 7168 numbers of bfloat16, and an instruction takes 4096 of them."""
    specs = {"lhs": ((7168, 128), "bfloat16"), "rhs": ((128, 128), "bfloat16")}
    graph = trace_workload(matmul, specs)
    ir = widest_ir(graph, OUTER).with_knob(("buffer_scopes", "psum_output", "d0"), Scope.PER_TILE)
    assert validity_report(ir) == []
    drain = next(step for step in ir.plan.steps if step.result == "sbuf_lhs_T")
    assert ir.plan.step_reach[drain.number, "d0"][0] * graph.dim["d0"].tile == TARGET.psum_access_elements_max
    inputs = Workload(matmul, matmul, specs).inputs()
    assert simulate_source(render_kernel(ir), inputs).shape == (7168, 128)
