"""Graph rewrite: scales rows after a matrix product instead of before it, so the product need not wait.

A softmax or an RMSNorm before a product scales its rows by a column that is known only after the whole row
was seen. The product of the unscaled rows needs one pass over them, the same pass that sums up the column.
Factors on the transposed rows in between, such as the weights of a norm, stay where they are.
"""

from __future__ import annotations

from dataclasses import replace

from targets.nki.knobs.graph import Call, Graph
from targets.nki.knobs.graph_rewrites.base import (
    GraphRewrite,
    GraphRewriteRefused,
    edit_graph,
    fresh_name,
    make_call,
    producer_calls,
    reader_calls,
)

_SCALE = {"op0": "multiply", "op1": None}


def _apply(graph: Graph) -> Graph:
    products = [item.result for item in graph.calls if item.operator == "NKIMatmul"]
    reasons = []
    found = graph
    for name in products:
        try:
            found = _scale_after_product(found, producer_calls(found)[name])
        except GraphRewriteRefused as reason:
            reasons.append(f"{name}: {reason}")
    if found is graph:
        raise GraphRewriteRefused("; ".join(reasons) or "there is no product")
    return found


def _scale_after_product(graph: Graph, product: Call) -> Graph:
    """The graph in which one product's rows are scaled afterwards."""
    operands, made = dict(product.operands), producer_calls(graph)
    between: list[Call] = []
    transpose = made.get(operands["stationary"])
    while transpose is not None and _is_row_scaling(transpose):
        between.insert(0, transpose)
        transpose = made.get(dict(transpose.operands)["data"])
    if transpose is None or transpose.operator != "NKITranspose":
        raise GraphRewriteRefused("its rows are not transposed on the chip")
    scale = made.get(dict(transpose.operands)["data"])
    if scale is None or not _is_row_scaling(scale) or "operand0" not in dict(scale.operands):
        raise GraphRewriteRefused(f"{dict(transpose.operands)['data']} is not rows times a column")
    _check_readers(graph, [scale, transpose, *between])
    if graph.value[product.result].dtype == "float16":
        raise GraphRewriteRefused("sums of rows that are not scaled yet may be too large for float16")
    data, column = (dict(scale.operands)[slot] for slot in ("data", "operand0"))
    calls = [_reuse_call(graph, make_call("NKITranspose", fresh_name(graph, f"{data}_T"), {"data": data}))]
    for item in between:
        name = fresh_name(graph, f"{item.result}_unscaled", [one.result for one in calls])
        read = {**dict(item.operands), "data": calls[-1].result}
        calls.append(_reuse_call(graph, replace(item, operands=tuple(read.items()), result=name)))
    unscaled = fresh_name(graph, f"{product.result}_unscaled", [one.result for one in calls])
    operands["stationary"] = calls[-1].result
    calls.append(make_call("NKIMatmul", unscaled, operands))
    after = make_call(
        "NKITensorScalar", product.result, {"data": unscaled, "operand0": column}, op0="multiply"
    )
    return edit_graph(graph, (*calls, after))


def _is_row_scaling(item: Call) -> bool:
    """Whether a call only multiplies rows by a column or a number."""
    settings = dict(item.settings)
    return item.operator == "NKITensorScalar" and all(settings[key] == _SCALE[key] for key in _SCALE)


def _check_readers(graph: Graph, chain: list[Call]) -> None:
    """Check that the scaled rows are read only by products, as the operand whose rows are the product's."""
    for item, after in zip(chain, [*chain[1:], None], strict=True):
        for slot, reader in reader_calls(graph, item.result):
            multiplied = (reader.operator, slot) == ("NKIMatmul", "stationary") and item is not chain[0]
            if reader is not after and not multiplied:
                raise GraphRewriteRefused(f"{item.result} is read by {reader.result} too")
        if item.result == graph.output:
            raise GraphRewriteRefused(f"{graph.output} is the output")


def _reuse_call(graph: Graph, wanted: Call) -> Call:
    """The call, or an existing one of the graph that computes the same."""
    alike = (item for item in graph.calls if replace(item, result=wanted.result) == wanted)
    return next(alike, wanted)


REWRITE = GraphRewrite(
    name="row_scale",
    keeps="(diag(c) A) B = diag(c) (A B): each row of a product is made of one row of its left factor",
    apply=_apply,
)
