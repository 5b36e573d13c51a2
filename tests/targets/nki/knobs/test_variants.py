"""Which variants there are of a workload, and what a rewrite makes of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from targets.nki.knobs import ops
from targets.nki.knobs import variants as table
from targets.nki.knobs.graph import Call, Graph
from targets.nki.knobs.graph_rewrites import affine, epilogue, load_transpose, online, operand_swap, row_scale
from targets.nki.knobs.graph_rewrites.base import GraphRewriteRefused
from targets.nki.knobs.interpret import interpret_kernel
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.plan import plan_graph
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.tracing import trace_workload
from targets.nki.knobs.validity import validity_report
from targets.nki.knobs.variants import (
    IDENTITY,
    REWRITES,
    GraphVariant,
    canonical_form,
    make_variants,
    rewrite_refusals,
)
from tests.support.workloads import WORKLOADS, Workload, rmsnorm_matmul

BOTH = "row_scale+load_transpose"

each = pytest.mark.parametrize("name", WORKLOADS)


def _graph(function: Any, dtype: str = "float32", **shapes: tuple[int, ...]) -> Graph:
    return trace_workload(function, {name: (shape, dtype) for name, shape in shapes.items()})


def _operators(graph: Graph) -> list[str]:
    return [call.operator.removeprefix("NKI") for call in graph.calls]


def _variant(found: tuple[GraphVariant, ...], name: str) -> Graph:
    return {item.name: item.graph for item in found}[name]


@each
def test_the_identity_comes_first_and_no_graph_comes_twice(name: str) -> None:
    graph = WORKLOADS[name].graph
    found = make_variants(graph)
    assert found[0] == GraphVariant(IDENTITY, graph)
    assert len({canonical_form(item.graph) for item in found}) == len(found) <= table.MOST_VARIANTS
    assert len({item.name for item in found}) == len(found)
    assert make_variants(graph) == found


@each
def test_variants_take_and_give_what_the_workload_does(name: str) -> None:
    graph = WORKLOADS[name].graph
    for variant in make_variants(graph):
        made = variant.graph
        assert made.inputs == graph.inputs
        assert made.output == graph.output
        assert made.name == graph.name
        for value in (*graph.inputs, graph.output):
            assert made.shape(value) == graph.shape(value)
            assert made.value[value].dtype == graph.value[value].dtype


@each
def test_a_rewrite_that_makes_no_variant_says_why(name: str) -> None:
    graph = WORKLOADS[name].graph
    single = {item.name for item in make_variants(graph)}
    refused = rewrite_refusals(graph)
    assert {item.name for item in REWRITES} == refused.keys() | (single & {item.name for item in REWRITES})
    assert all(refused.values())


def _narrow_then_wide(x_T: Any, w1: Any, w2: Any) -> Any:
    hidden = ops.NKIActivation(op="silu")(data=ops.NKIMatmul()(stationary=w1, moving=x_T))
    return ops.NKIMatmul()(stationary=hidden, moving=w2)


def test_products_that_overrun_psum_together_are_summed_up_one_by_one() -> None:
    """Of 37 tiles of hidden rows PSUM holds 32: the sum of one has to end before the next begins."""
    graph = _graph(_narrow_then_wide, x_T=(256, 128), w1=(256, 37 * 128), w2=(37 * 128, 128))
    read_there = default_ir(_variant(make_variants(graph), "epilogue"))
    summed, hidden = (graph.value[name].dims[0] for name in ("w1", "w2"))
    assert validity_report(read_there) == []
    assert read_there.loop_order.index(f"{hidden}.tile") < read_there.loop_order.index(f"{summed}.block")
    plain = default_ir(graph)
    assert plain.loop_order.index(f"{summed}.tile") < plain.loop_order.index(f"{hidden}.block")


def test_the_number_of_variants_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_VARIANTS", 1)
    assert [item.name for item in make_variants(WORKLOADS["rmsnorm_matmul"].graph)] == [IDENTITY]


def test_graphs_that_differ_in_names_alone_are_the_same() -> None:
    def renamed(x: Any, w: Any) -> Any:
        rows = ops.NKIRMSNorm(eps=1e-6)(data=x)
        return ops.NKIMatmul()(stationary=ops.NKITranspose()(data=rows), moving=w)

    shapes = {"x": (256, 512), "w": (512, 1024)}
    one, other = _graph(rmsnorm_matmul, **shapes), _graph(renamed, **shapes)
    assert one != other
    assert canonical_form(one) == canonical_form(other)
    assert canonical_form(one) != canonical_form(_graph(rmsnorm_matmul, x=(128, 512), w=(512, 1024)))


def test_rows_are_scaled_after_the_product() -> None:
    graph = row_scale.REWRITE.apply(WORKLOADS["rmsnorm_matmul"].graph)
    calls: Mapping[str, Any] = {call.result: call for call in graph.calls}
    assert dict(calls["output"].operands).keys() == {"data", "operand0"}
    product = calls[dict(calls["output"].operands)["data"]]
    assert product.operator == "NKIMatmul"
    assert dict(calls[dict(product.operands)["stationary"]].operands) == {"data": "x"}
    assert "normed" not in graph.value


def test_the_rows_of_every_product_that_shares_them_are_scaled_after_it() -> None:
    def two(x: Any, w: Any, v: Any) -> Any:
        normed_T = ops.NKITranspose()(data=ops.NKIRMSNorm()(data=x))
        left = ops.NKIMatmul()(stationary=normed_T, moving=w)
        return ops.NKITensorTensor(op="add")(data1=left, data2=ops.NKIMatmul()(stationary=normed_T, moving=v))

    graph = row_scale.REWRITE.apply(_graph(two, x=(256, 256), w=(256, 512), v=(256, 512)))
    assert _operators(graph).count("Transpose") == 1
    assert _operators(graph).count("Matmul") == 2
    assert _operators(graph).count("TensorScalar") == 3  # mean, and one for each product


def _weighted_products(x: Any, gamma: Any, w: Any, v: Any) -> Any:
    """Two products of a norm's rows with weights, which are a column of the transposed rows."""
    normed_T = ops.NKITranspose()(data=ops.NKIRMSNorm()(data=x))
    weighted_T = ops.NKITensorScalar(op0="multiply")(data=normed_T, operand0=gamma)
    left = ops.NKIMatmul()(stationary=weighted_T, moving=w)
    return ops.NKITensorTensor(op="add")(data1=left, data2=ops.NKIMatmul()(stationary=weighted_T, moving=v))


def test_weights_of_a_norm_stay_with_the_transposed_rows() -> None:
    shapes = {"x": (256, 256), "gamma": (256,), "w": (256, 512), "v": (256, 512)}
    workload = Workload(
        _weighted_products,
        lambda x, gamma, w, v: (x / np.sqrt((x * x).mean(axis=1, keepdims=True)) * gamma) @ (w + v),
        {name: (shape, "float32") for name, shape in shapes.items()},
    )
    graph = row_scale.REWRITE.apply(workload.graph)
    assert _operators(graph).count("Transpose") == 1
    assert _operators(graph).count("TensorScalar") == 4  # mean, weights, and one for each product
    inputs = workload.inputs()
    assert (
        workload.error(interpret_kernel(lower_kernel(default_ir(graph)), inputs), inputs) < workload.tolerance
    )


def _moving(x: Any, w: Any) -> Any:
    return ops.NKIMatmul()(stationary=w, moving=ops.NKITranspose()(data=ops.NKIRMSNorm()(data=x)))


def _read_twice(x: Any, w: Any) -> Any:
    normed = ops.NKIRMSNorm()(data=x)
    product = ops.NKIMatmul()(stationary=ops.NKITranspose()(data=normed), moving=w)
    highest = ops.NKITensorReduce(op="max")(data=normed)
    return ops.NKITensorScalar(op0="add")(data=product, operand0=highest)


@pytest.mark.parametrize(
    ("function", "dtype", "reason"),
    [
        (_moving, "float32", "its rows are not transposed"),
        (_read_twice, "float32", "is read by .* too"),
        (rmsnorm_matmul, "float16", "too large for float16"),
    ],
)
def test_rows_that_cannot_be_scaled_later_are_left(function: Any, dtype: str, reason: str) -> None:
    graph = _graph(function, dtype, x=(256, 256), w=(256, 256))
    with pytest.raises(GraphRewriteRefused, match=reason):
        row_scale.REWRITE.apply(graph)


def _in_psum(graph: Graph) -> set[str]:
    return {value.name for value in graph.values if value.memory == "psum"}


def test_products_that_other_engines_read_stay_in_psum() -> None:
    graph = epilogue.REWRITE.apply(WORKLOADS["swiglu"].graph)
    assert _in_psum(graph) == {"gate", "up"}
    buffers = plan_graph(graph).buffer
    assert not {"sbuf_gate", "sbuf_up"} & buffers.keys()
    assert buffers["psum_gate"].partial is None
    assert buffers["psum_output"].partial is not None


def _sum_of_products(a: Any, b: Any) -> Any:
    one = ops.NKIMatmul()(stationary=a, moving=b)
    other = ops.NKIMatmul()(stationary=a, moving=b)
    return ops.NKITensorTensor(op="add")(data1=one, data2=other)


def _double_product(a: Any, b: Any) -> Any:
    product = ops.NKIMatmul()(stationary=a, moving=b)
    return ops.NKITensorTensor(op="add")(data1=product, data2=product)


def _softmax_of_product(a: Any, b: Any) -> Any:
    return ops.NKISoftmax()(data=ops.NKIMatmul()(stationary=a, moving=b))


def test_an_instruction_reads_one_operand_in_psum() -> None:
    graph = epilogue.REWRITE.apply(_graph(_sum_of_products, a=(128, 128), b=(128, 256)))
    assert len(_in_psum(graph)) == 1
    with pytest.raises(GraphRewriteRefused, match="two operands in PSUM"):
        epilogue.REWRITE.apply(_graph(_double_product, a=(128, 128), b=(128, 256)))


def test_rows_that_are_read_twice_stay_in_psum_where_it_holds_them() -> None:
    short = epilogue.REWRITE.apply(_graph(_softmax_of_product, a=(128, 128), b=(128, 1024)))
    assert len(_in_psum(short)) == 1
    with pytest.raises(GraphRewriteRefused, match="too long for PSUM"):
        epilogue.REWRITE.apply(_graph(_softmax_of_product, a=(128, 128), b=(128, 4096)))


def test_a_product_that_is_stored_or_multiplied_is_copied() -> None:
    with pytest.raises(GraphRewriteRefused, match="lhs_T: output needs it in SBUF; output: it is the output"):
        epilogue.REWRITE.apply(WORKLOADS["matmul"].graph)


def test_products_are_computed_as_their_transposes_are_read() -> None:
    graph = operand_swap.REWRITE.apply(WORKLOADS["swiglu"].graph)
    calls = {call.result: call for call in graph.calls}
    assert _operators(graph).count("Transpose") == 1  # of x
    assert dict(calls["gate_T"].operands) == {"stationary": "w_gate", "moving": "x_T"}
    assert graph.shape("hidden_T") == WORKLOADS["swiglu"].graph.shape("hidden_T")
    assert not {"gate", "up", "silu", "hidden"} & calls.keys()


def test_the_output_itself_may_be_computed_transposed() -> None:
    graph = operand_swap.REWRITE.apply(WORKLOADS["transposed_product"].graph)
    assert _operators(graph) == ["Matmul", "Activation"]
    assert dict(graph.calls[0].operands) == {"stationary": "b", "moving": "a"}


def test_a_narrow_operand_moves_and_the_product_is_transposed_back() -> None:
    graph = operand_swap.REWRITE.apply(WORKLOADS["narrow_matmul"].graph)
    assert dict(graph.calls[-2].operands) == {"stationary": "rhs", "moving": "lhs_T"}
    assert (graph.calls[-1].operator, graph.calls[-1].result) == ("NKITranspose", "output")


def _both_ways(a: Any, b: Any, c: Any) -> Any:
    product = ops.NKIMatmul()(stationary=a, moving=b)
    product_T, c_T = ops.NKITranspose()(data=product), ops.NKITranspose()(data=c)
    again = ops.NKIMatmul()(stationary=product_T, moving=c_T)
    return ops.NKITensorScalar(op0="add")(data=again, operand0=ops.NKITensorReduce(op="max")(data=product))


def _biased_product(a: Any, b: Any, c: Any) -> Any:
    product = ops.NKIMatmul()(stationary=a, moving=b)
    scaled = ops.NKITensorScalar(op0="add")(data=product, operand0=ops.NKITensorReduce(op="max")(data=c))
    return ops.NKITranspose()(data=scaled)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_both_ways, "product is read untransposed too"),
        (_biased_product, "is not computed element by element"),
    ],
)
def test_products_that_are_read_as_they_are_stay(function: Any, reason: str) -> None:
    with pytest.raises(GraphRewriteRefused, match=reason):
        operand_swap.REWRITE.apply(_graph(function, a=(128, 128), b=(128, 256), c=(128, 256)))


def test_products_of_two_types_stay() -> None:
    specs = {"a": ((128, 128), "bfloat16"), "b": ((128, 256), "float16")}

    def product(a: Any, b: Any) -> Any:
        return ops.NKITranspose()(data=ops.NKIMatmul()(stationary=a, moving=b))

    with pytest.raises(GraphRewriteRefused, match="its operands are of two types"):
        operand_swap.REWRITE.apply(trace_workload(product, specs))


def test_an_input_is_transposed_while_it_is_loaded() -> None:
    graph = load_transpose.REWRITE.apply(WORKLOADS["matmul_bfloat16"].graph)
    plan = plan_graph(graph)
    assert [step.operator for step in plan.steps[:2]] == ["NKILoadTranspose", "NKILoad"]
    assert plan.steps[0].tensors == ("lhs", "sbuf_lhs_T")
    assert not {"sbuf_lhs", "psum_lhs_T"} & plan.buffer.keys()
    assert "nisa.dma_transpose(" in render_kernel(default_ir(graph))


def test_what_is_read_as_it_is_too_is_loaded_twice() -> None:
    graph = _variant(make_variants(_graph(rmsnorm_matmul, "bfloat16", x=(256, 512), w=(512, 512))), BOTH)
    loads = [step.tensors for step in plan_graph(graph).steps if step.entry.engine == "dma"]
    assert {("x", "sbuf_x"), ("x", "sbuf_x_T")} <= set(loads)


def test_dma_takes_as_many_rows_at_once_as_the_buffer_holds() -> None:
    graph = load_transpose.REWRITE.apply(WORKLOADS["matmul_bfloat16"].graph)
    (step,) = (item for item in plan_graph(graph).steps if item.operator == "NKILoadTranspose")
    rows, columns = (dict(step.axes)[letter] for letter in ("P", "F"))
    assert step.single_tile_dims == {columns}
    assert plan_graph(graph).step_reach[step.number, rows][0] >= graph.dim[rows].tiles


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("matmul", "lhs is float32, and DMA"),
        ("rmsnorm_matmul", "normed is not an input"),
        ("softmax", "nothing"),
    ],
)
def test_what_dma_cannot_transpose_well_is_left(name: str, reason: str) -> None:
    with pytest.raises(GraphRewriteRefused, match=reason):
        load_transpose.REWRITE.apply(WORKLOADS[name].graph)


def _call(graph: Graph, operator: str) -> Call:
    (found,) = (call for call in graph.calls if call.operator == operator)
    return found


def test_the_difference_from_a_column_is_left_to_the_activation() -> None:
    graph = affine.REWRITE.apply(WORKLOADS["softmax"].graph)
    powers = _call(graph, "NKIActivation")
    bias = dict(powers.operands)["bias"]
    assert dict(powers.operands)["data"] == "x"
    assert "bias" not in dict(powers.settings)
    (negated,) = (call for call in graph.calls if call.result == bias)
    assert dict(negated.settings)["operand0"] == -1.0
    assert graph.value[bias].dims == ("d0",)


def _scaled_product(op0: str, reverse0: bool = False, **settings: Any) -> Any:
    def function(x: Any) -> Any:
        rows = ops.NKITensorScalar(op0=op0, operand0=3.0, reverse0=reverse0)(data=x)
        return ops.NKIActivation(op="tanh", **settings)(data=rows)

    return function


@pytest.mark.parametrize(
    ("op0", "expected"),
    [
        ("multiply", {"scale": 3.0, "bias": 0.0}),
        ("add", {"scale": 1.0, "bias": 3.0}),
        ("subtract", {"scale": 1.0, "bias": -3.0}),
    ],
)
def test_numbers_become_scale_and_bias(op0: str, expected: Mapping[str, float]) -> None:
    graph = affine.REWRITE.apply(_graph(_scaled_product(op0), x=(128, 256)))
    assert _operators(graph) == ["Activation"]
    assert expected.items() <= dict(graph.calls[0].settings).items()


def _scaled_and_kept(x: Any) -> Any:
    rows = ops.NKITensorScalar(op0="multiply", operand0=3.0)(data=x)
    return ops.NKITensorTensor(op="add")(data1=rows, data2=ops.NKIActivation(op="tanh")(data=rows))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_scaled_product("maximum"), "it is no single sum or product"),
        (_scaled_product("subtract", reverse0=True), "it is no single sum or product"),
        (_scaled_product("multiply", bias=1.0), "has a scale or bias of its own"),
        (_scaled_and_kept, "is no activation"),
    ],
)
def test_what_an_activation_cannot_take_over_is_left(function: Any, reason: str) -> None:
    with pytest.raises(GraphRewriteRefused, match=reason):
        affine.REWRITE.apply(_graph(function, x=(128, 256)))


def test_a_bias_is_no_number_where_the_engine_takes_none() -> None:
    specs = {"x": ((128, 256), "float32")}
    with pytest.raises(GraphRewriteRefused, match="on trn1 a bias is a column"):
        affine.REWRITE.apply(trace_workload(_scaled_product("add"), specs, target="trn1"))
    affine.REWRITE.apply(trace_workload(_scaled_product("multiply"), specs, target="trn1"))


def test_what_is_made_of_a_running_maximum_is_made_in_each_round() -> None:
    graph = affine.REWRITE.apply(online.REWRITE.apply(WORKLOADS["softmax_matmul_bfloat16"].graph))
    bias = dict(_call(graph, "NKIActivation").operands)["bias"]
    assert graph.value[bias].round == "d1"
    assert graph.rounds == {"d1"}
    assert {value.running for value in graph.values} == {None, "d1"}
