"""Softmax and product in rounds: what the rewrite makes, where its steps end up, what is refused."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from targets.nki.knobs import ops
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.graph_rewrites import online
from targets.nki.knobs.graph_rewrites.base import GraphRewriteRefused
from targets.nki.knobs.interpret import interpret_kernel
from targets.nki.knobs.ir import LTILES, SCOPES, KernelIR, Scope
from targets.nki.knobs.loop_tree import Allocate, Fill, KernelTree, Loop, Node, Statement
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.narrowing import default_ir, widest_ir, widest_layout
from targets.nki.knobs.neighbours import is_valid
from targets.nki.knobs.plan import plan_graph
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.report import follow_hint
from targets.nki.knobs.sampling import sample_ir
from targets.nki.knobs.tracing import trace_workload
from targets.nki.knobs.validity import validity_report
from tests.support.knob_points import turn_knob
from tests.support.workloads import WORKLOADS, Workload, simulate_source, softmax_matmul

SHAPES = {"x": (256, 1024), "v": (1024, 64)}
ORDER = ("d0.block", "d0.tile", "d1.block", "d1.tile", "d2.block", "d2.tile")
D2_FIRST = ("d2.block", "d2.tile", "d0.block", "d0.tile", "d1.block", "d1.tile")
D1_FIRST = ("d1.block", "d0.block", "d0.tile", "d1.tile", "d2.block", "d2.tile")


def _trace_graph(function: Any, **shapes: tuple[int, ...]) -> Graph:
    return trace_workload(function, {name: (shape, "float32") for name, shape in shapes.items()})


GRAPH = online.REWRITE.apply(_trace_graph(softmax_matmul, **SHAPES))
HIGHEST, FADE = "sbuf_tensorreduce_0", "sbuf_tensorreduce_0_fade"


def _means(x: Any, v: Any) -> Any:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) @ v


def _walk(body: tuple[Node, ...], above: tuple[str, ...] = ()) -> list[tuple[Node, tuple[str, ...]]]:
    found: list[tuple[Node, tuple[str, ...]]] = []
    for node in body:
        found.append((node, above))
        if isinstance(node, Loop):
            found += _walk(node.body, (*above, node.variable))
    return found


def _around(kernel: KernelTree, buffer: str) -> tuple[str, ...]:
    """The loops around the statement that makes a buffer's value."""
    return next(
        above
        for node, above in _walk(kernel.body)
        if isinstance(node, Statement) and node.result.tensor == buffer
    )


def _list_buffers(kernel: KernelTree, buffer: str) -> tuple[str, ...]:
    return next(
        above for node, above in _walk(kernel.body) if isinstance(node, Allocate) and node.tile.name == buffer
    )


def _has(loop: Loop, buffers: tuple[str, ...]) -> bool:
    """Whether the values of all these are made within a loop."""
    made = {node.result.tensor for node, _ in _walk(loop.body) if isinstance(node, Statement)}
    return made >= set(buffers)


def _rounds(ir: KernelIR) -> int:
    return ir.trip_count("d1.block")


def test_sums_become_parts_that_fade_and_the_maximum_runs() -> None:
    values = GRAPH.value
    assert {name for name, item in values.items() if item.running} == {"tensorreduce_0"}
    assert {name for name, item in values.items() if item.round} == {
        "tensorreduce_0_fade",
        "tensorreduce_1_part",
        "output_unscaled_part",
    }
    assert GRAPH.rounds == {"d1"}
    assert values["output_unscaled_part"].memory == "psum"
    faded = {call.result for call in GRAPH.calls if call.operator == "NKIFadingSum"}
    assert faded == {"tensorreduce_1", "output_unscaled"}


def test_what_is_carried_to_the_next_round_has_a_buffer_that_outlives_it() -> None:
    plan = plan_graph(GRAPH)
    state = plan.buffer[f"{FADE}_before"]
    assert (state.running, state.round) == ("d1", None)
    assert plan.buffer[FADE].round == "d1"
    assert plan.producer[state.name] is plan.producer[FADE]


def test_one_pass_over_the_rows_makes_statistics_and_product() -> None:
    ir = default_ir(GRAPH)
    assert _rounds(ir) > 1
    kernel = lower_kernel(ir)
    steps = (HIGHEST, FADE, "sbuf_tensorscalar_0", "sbuf_output_unscaled", "sbuf_tensorreduce_1")
    assert all("i_block_d1" in _around(kernel, name) for name in steps)
    loops = [node for node, _ in _walk(kernel.body) if isinstance(node, Loop) and _has(node, steps)]
    assert [loop.variable for loop in loops] == ["i_block_d1"]
    assert "i_block_d1" in _list_buffers(kernel, FADE)
    assert "i_block_d1" in _list_buffers(kernel, "psum_output_unscaled_part")
    assert "i_block_d1" not in _list_buffers(kernel, HIGHEST)


def test_sums_start_from_nothing_and_the_maximum_from_the_least() -> None:
    kernel = lower_kernel(default_ir(GRAPH))
    fills = {node.tile.name: node.value for node, _ in _walk(kernel.body) if isinstance(node, Fill)}
    assert fills["sbuf_output_unscaled"] == fills["sbuf_tensorreduce_1"] == 0.0
    assert fills[HIGHEST] == fills[f"{FADE}_before"] < -1e38


def test_one_round_carries_nothing() -> None:
    ir = widest_ir(GRAPH, ORDER, {"d0": 1, "d1": 8, "d2": 1})
    source = render_kernel(ir)
    assert "fade" not in source
    assert "scalar_tensor_tensor" not in source


@pytest.mark.parametrize("high", [1.0, 60.0])
def test_a_maximum_that_grows_in_every_round_fades_what_there_is(high: float) -> None:
    """Rows that rise from end to end, by more than an exponential in float32 can hold."""
    workload = Workload(softmax_matmul, _means, {"x": ((256, 1024), "float32"), "v": ((1024, 64), "float32")})
    inputs = workload.inputs()
    inputs["x"] = np.sort(inputs["x"], axis=1) * np.float32(high)
    ir = default_ir(GRAPH)
    assert _rounds(ir) > 1
    for found in (interpret_kernel(lower_kernel(ir), inputs), simulate_source(render_kernel(ir), inputs)):
        assert np.isfinite(found).all()
        assert workload.error(found, inputs) < 1e-5


def test_points_of_a_small_space_are_right() -> None:
    """Every knob turned anywhere, from samples on: several rounds and one."""
    workload = Workload(softmax_matmul, _means, {"x": ((8, 16), "float32"), "v": ((16, 8), "float32")})
    made = online.REWRITE.apply(workload.graph)
    graph = replace(made, dims=tuple(replace(dim, tile=dim.size // 4) for dim in made.dims))
    rng, inputs, rounds = Random(3), workload.inputs(), set()
    for _ in range(12):
        ir = sample_ir(default_ir(graph), rng)
        for item in (turn_knob(ir, rng) for _ in range(20)):
            ir = item if is_valid(item) else ir
        rounds.add(_rounds(ir))
        assert workload.error(interpret_kernel(lower_kernel(ir), inputs), inputs) < workload.tolerance, (
            render_kernel(ir)
        )
    assert len(rounds) > 1


def test_no_step_takes_more_than_a_block_of_what_has_rounds() -> None:
    ir = widest_ir(GRAPH, ORDER, {"d0": 2, "d1": 2, "d2": 1})
    loads = [
        node
        for node, _ in _walk(lower_kernel(ir).body)
        if isinstance(node, Statement) and node.result.tensor == "sbuf_x"
    ]
    assert [node.result.spans[1].size for node in loads] == [256]


def test_rows_that_no_memory_holds_go_through_in_rounds() -> None:
    """256 KiB to a row in each partition: what reads them twice finds no place for them."""
    graph = online.REWRITE.apply(_trace_graph(softmax_matmul, x=(128, 65536), v=(65536, 64)))
    ir = default_ir(graph)
    assert validity_report(ir) == []
    assert _rounds(ir) == 64
    held = [node.tile for node, _ in _walk(lower_kernel(ir).body) if isinstance(node, Allocate)]
    assert max(tile.row for tile in held if tile.name != "sbuf_v") == 1024


# -- what is refused ---------------------------------------------------------------------------------


def _turn_knobs(ir: KernelIR, **scopes: Scope) -> KernelIR:
    for name, scope in scopes.items():
        ir = ir.with_knob((SCOPES, *name.split("__")), scope)
    return ir


def test_the_running_maximum_outlives_the_rounds() -> None:
    ir = _turn_knobs(widest_ir(GRAPH, D1_FIRST), **{f"{HIGHEST}__d0": Scope.PER_TILE})
    failures = [item for item in validity_report(ir) if item.buffer == HIGHEST]
    assert {(item.check, item.at) for item in failures} >= {("reduction_interval", "d1.block")}
    for failure in failures:
        assert failure.key not in {item.key for item in validity_report(follow_hint(ir, failure))}


def test_a_part_holds_no_more_than_its_round_sees() -> None:
    start = widest_ir(GRAPH, ORDER)
    ir = _turn_knobs(start, **{f"{FADE}__d0": Scope.FULL})
    (failure, *_) = [item for item in validity_report(ir) if item.buffer == FADE]
    assert (failure.check, failure.at) == ("scope_interval", "d0.block")
    assert failure.hint == f"set buffer_scopes[{FADE}][d0] to PER_BLOCK"
    assert start.scopes[FADE]["d0"] is Scope.PER_TILE


def test_rounds_within_a_loop_that_not_all_run_in_become_one() -> None:
    graph = online.REWRITE.apply(_trace_graph(softmax_matmul, x=(256, 1024), v=(1024, 1024)))
    ir = widest_ir(graph, D2_FIRST)
    failures = validity_report(ir)
    assert any(knob == (LTILES, "d1") for item in failures for knob, _ in item.fix)
    layout = widest_layout(graph, D2_FIRST)
    assert layout is not None
    assert _rounds(layout.ir) == 1


def test_a_maximum_is_not_read_in_other_loops_than_its_own() -> None:
    """Exponentials of two tiles of rows at once wait for both: their rounds are others than the maximum's."""
    wide = {f"{name}__d0": Scope.FULL for name in ("psum_activation_0_T", "sbuf_activation_0_T")}
    ir = _turn_knobs(widest_ir(GRAPH, ORDER), **wide)
    (failure,) = [item for item in validity_report(ir) if item.check == "split_rounds"]
    assert (failure.buffer, failure.at) == (HIGHEST, "d1.block")
    assert failure.hint == "set ltiles_per_block[d1] to 8"
    assert failure.key not in {item.key for item in validity_report(follow_hint(ir, failure))}


# -- where the rewrite does not apply ----------------------------------------------------------------


def _softmax_alone(x: Any, v: Any) -> Any:
    weights = ops.NKISoftmax()(data=x)
    highest = ops.NKITensorReduce(op="max")(data=v)
    return ops.NKITensorTensor(op="add")(data1=ops.NKITensorReduce(op="add")(data=weights), data2=highest)


def _maximum_kept(x: Any, v: Any) -> Any:
    highest = ops.NKITensorReduce(op="max")(data=x)
    powers = ops.NKIActivation(op="exp")(data=ops.NKITensorScalar(op0="subtract")(data=x, operand0=highest))
    total = ops.NKITensorReduce(op="add")(data=powers)
    product = ops.NKIMatmul()(stationary=ops.NKITranspose()(data=powers), moving=v)
    scale = ops.NKITensorTensor(op="multiply")(data1=total, data2=highest)
    return ops.NKITensorScalar(op0="multiply")(data=product, operand0=scale)


def _no_exponential(x: Any, v: Any) -> Any:
    shifted = ops.NKITensorScalar(op0="subtract")(data=x, operand0=ops.NKITensorReduce(op="max")(data=x))
    return ops.NKIMatmul()(stationary=ops.NKITranspose()(data=shifted), moving=v)


@pytest.mark.parametrize(
    ("function", "shapes", "reason"),
    [
        (_softmax_alone, {"x": (128, 256), "v": (128, 64)}, "is not just summed up and multiplied"),
        (_maximum_kept, {"x": (128, 256), "v": (256, 64)}, "does not go into the NKITensorScalar"),
        (_no_exponential, {"x": (128, 256), "v": (256, 64)}, "does not go into the NKIActivation"),
    ],
)
def test_what_is_no_softmax_in_front_of_a_product_is_left(function: Any, shapes: Any, reason: str) -> None:
    with pytest.raises(GraphRewriteRefused, match=reason):
        online.REWRITE.apply(_trace_graph(function, **shapes))


@pytest.mark.parametrize("name", ["matmul", "spread"])
def test_other_workloads_are_left(name: str) -> None:
    with pytest.raises(GraphRewriteRefused):
        online.REWRITE.apply(WORKLOADS[name].graph)
