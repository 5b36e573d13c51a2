"""From a function to its graph."""

from __future__ import annotations

from typing import Any

import pytest

from targets.nki.knobs import ops
from targets.nki.knobs.errors import WorkloadError
from targets.nki.knobs.graph import Call, Dim, Value
from targets.nki.knobs.tracing import trace_workload
from tests.support.workloads import WORKLOADS, matmul

SQUARE = {"lhs": ((2048, 2048), "bfloat16"), "rhs": ((2048, 2048), "bfloat16")}


def test_a_matmul_has_three_dimensions_however_equal_their_sizes() -> None:
    graph = trace_workload(matmul, SQUARE)
    assert graph.dims == (Dim("d0", 2048, 128), Dim("d1", 2048, 128), Dim("d2", 2048, 512))
    assert graph.values == (
        Value("lhs", ("d0", "d1"), "bfloat16"),
        Value("rhs", ("d1", "d2"), "bfloat16"),
        Value("lhs_T", ("d1", "d0"), "bfloat16"),
        Value("output", ("d0", "d2"), "bfloat16"),
    )
    assert graph.calls[1] == Call("NKIMatmul", (("stationary", "lhs_T"), ("moving", "rhs")), (), "output")
    assert graph.output == "output"


def test_a_graph_is_a_value() -> None:
    assert trace_workload(matmul, SQUARE) == trace_workload(matmul, SQUARE)
    assert repr(trace_workload(matmul, SQUARE)) == repr(trace_workload(matmul, SQUARE))
    assert trace_workload(matmul, SQUARE) != trace_workload(matmul, SQUARE, target="trn1")


def test_loads_stores_and_copies_may_be_spelled_out() -> None:
    def spelled(lhs: Any, rhs: Any) -> Any:
        left = ops.NKILoad()(src=lhs)
        lhs_T = ops.NKITensorCopy()(src=ops.NKITranspose()(data=left))
        output = ops.NKIMatmul()(stationary=lhs_T, moving=ops.NKILoad()(data=rhs))
        return ops.NKIStore()(src=output)

    assert trace_workload(spelled, SQUARE, name="matmul") == trace_workload(matmul, SQUARE)


def test_what_no_variable_names_is_called_by_its_operator() -> None:
    graph = WORKLOADS["softmax"].graph
    assert [call.result for call in graph.calls] == [
        *("tensorreduce_0", "tensorscalar_0", "activation_0", "tensorreduce_1", "reciprocal_0", "output"),
    ]
    assert graph.value["tensorreduce_0"].dims == ("d0",)


def test_a_variable_that_takes_an_inputs_name_keeps_it_not() -> None:
    def rebound(x: Any) -> Any:
        x = ops.NKIActivation(op="exp")(data=x)
        return ops.NKIActivation(op="exp")(data=x)

    graph = trace_workload(rebound, {"x": ((128, 128), "float32")})
    assert [value.name for value in graph.values] == ["x", "activation_0", "activation_1"]


def test_calls_that_nothing_needs_are_left_out() -> None:
    def wasteful(x: Any) -> Any:
        ops.NKIActivation(op="exp")(data=x)
        y = ops.NKIActivation(op="tanh")(data=x)
        return y  # noqa: RET504

    assert [call.result for call in trace_workload(wasteful, {"x": ((128, 128), "float32")}).calls] == ["y"]


def test_tiles_divide_their_dimension() -> None:
    graph = trace_workload(matmul, {"lhs": ((250, 96), "float32"), "rhs": ((96, 1000), "float32")})
    assert [(dim.tile, dim.tiles) for dim in graph.dims] == [(125, 2), (96, 1), (500, 2)]


def test_a_dimension_that_lies_on_partitions_once_has_tiles_that_fit_there() -> None:
    hidden = WORKLOADS["swiglu"].graph.dim["d2"]
    assert (hidden.size, hidden.tile) == (1024, 128)


def _product(x: Any, y: Any) -> Any:
    return ops.NKIMatmul()(stationary=x, moving=y)


def _row_and_column(x: Any, y: Any) -> Any:
    product = ops.NKITensorRow(op="multiply")(data=x, row=y)
    product_T = ops.NKITranspose()(data=product)
    return ops.NKITensorScalar(op0="add")(data=product_T, operand0=y)


def _sum(x: Any, y: Any) -> Any:
    return ops.NKITensorTensor(op="add")(data1=x, data2=y)


@pytest.mark.parametrize(
    ("function", "shapes", "message"),
    [
        (_product, [(64, 128), (128, 256)], "NKIMatmul: K is 64, but 128 in moving"),
        (_product, [(64,), (64, 128)], "NKIMatmul's stationary has shape (64,), and lies over (K, M)"),
        (lambda x: x, [(64, 64)], "it ends in the result of an operator"),
        (lambda x: _product(x, x), [(64, 64)], "give what is used twice as two inputs"),
        (lambda x: ops.NKITensorReduce(op="add")(data=ops.NKITensorReduce(op="add")(data=x)), [(64, 64)],
         "NKITensorReduce reduces rows, and data is a column"),
        (_sum, [(64, 64), (64,)], "column beside rows"),
        (lambda x: ops.NKIReciprocal()(data=x), [(2,) * 6], "inputs have one to 5 dimensions"),
        (_product, [(3, 64, 64), (2, 64, 64)], "NKIMatmul: a dimension of the batch is 3, but 2 in moving"),
        (_product, [(2, 64, 64), (2, 32, 64)], "NKIMatmul: K is 64, but 32 in moving"),
        (lambda x, y: ops.NKITensorRow(op="add")(data=x, row=y), [(64, 32), (64,)], "F is 32, but 64 in row"),
        (lambda x, y: ops.NKITensorRow(op="add")(data=x, row=y), [(64, 32), (1, 32)],
         "row has shape (1, 32), and lies over (F)"),
        (lambda x, y: ops.NKITensorRow(op="add")(data=x, row=ops.NKITensorReduce(op="add")(data=y)),
         [(64, 32), (32, 16)], "row is an input of one dimension"),
        (_row_and_column, [(64, 32), (32,)], "NKITensorScalar's operand0 is a row elsewhere"),
        (lambda x, y: ops.NKIReciprocal()(data=x), [(64, 64), (64, 64)], "input 'y' reaches no result"),
        (lambda nl: ops.NKIReciprocal()(data=nl), [(64, 64)], "'nl' cannot be a name in a kernel"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_graph_is_refused(function: Any, shapes: Any, message: str) -> None:
    names = function.__code__.co_varnames
    specs = {name: (shape, "float32") for name, shape in zip(names, shapes, strict=False)}
    with pytest.raises(WorkloadError) as caught:
        trace_workload(function, specs, name="workload")
    assert message in str(caught.value)


def test_float32_goes_with_float32_alone() -> None:
    with pytest.raises(WorkloadError, match="NKIMatmul of float32 and bfloat16"):
        trace_workload(_product, {"x": ((64, 64), "float32"), "y": ((64, 64), "bfloat16")})


def test_inputs_are_those_that_the_function_takes_in_its_order() -> None:
    backwards = dict(reversed(SQUARE.items()))
    assert trace_workload(matmul, backwards) == trace_workload(matmul, SQUARE)
    with pytest.raises(WorkloadError, match="shapes are given for a, rhs; the inputs are lhs, rhs"):
        trace_workload(matmul, {"a": SQUARE["lhs"], "rhs": SQUARE["rhs"]})


def test_a_type_that_does_not_exist_is_named() -> None:
    with pytest.raises(WorkloadError, match="input 'x' has the type 'fp32'"):
        trace_workload(_product, {"x": ((64, 64), "fp32"), "y": ((64, 64), "float32")})


def test_a_number_as_bias_is_refused_where_the_target_takes_a_column() -> None:
    def biased(x: Any) -> Any:
        return ops.NKIActivation(op="exp", bias=1.0)(data=x)

    specs = {"x": ((128, 128), "float32")}
    trace_workload(biased, specs, name="biased", target="trn2")
    with pytest.raises(WorkloadError, match=r"NKIActivation's bias is 1\.0; on trn1 it is a column"):
        trace_workload(biased, specs, target="trn1")


def test_dimensions_of_a_batch_come_first_and_have_tiles_of_one() -> None:
    graph = trace_workload(
        lambda a, b: ops.NKIMatmul()(stationary=a, moving=b),
        {"a": ((2, 3, 64, 128), "float32"), "b": ((2, 64, 512), "float32")},
        name="k",
    )
    assert [(dim.size, dim.tile) for dim in graph.dims] == [(2, 1), (3, 1), (64, 64), (128, 128), (512, 512)]
    product = graph.value[graph.output]
    assert (product.lead, graph.shape(graph.output)) == (2, (2, 3, 128, 512))
    assert graph.core_shape(graph.output) == (128, 512)
    assert graph.value["b"].dims[:1] == product.dims[:1]


def test_a_column_of_a_batch_is_one_beside_its_dimensions() -> None:
    graph = trace_workload(
        lambda x: ops.NKITensorReduce(op="add")(data=x), {"x": ((3, 64, 128), "bfloat16")}, name="total"
    )
    column = graph.value[graph.output]
    assert (column.dims, column.core_dims, column.dtype) == (("d0", "d1"), ("d1",), "float32")


def test_a_row_is_spread_over_the_partitions_of_what_it_is_used_with() -> None:
    graph = WORKLOADS["weighted"].graph
    row = graph.value["g"]
    assert (row.dims, row.spread, row.chip_dims) == (("d1",), "d0", ("*d0", "d1"))
    assert [(dim.size, dim.tile) for dim in graph.dims] == [(250, 125), (1536, 512)]
