"""Rows that are scaled before a product are scaled after it: the product need not wait for the scale.

A softmax or an RMSNorm in front of a product scales its rows by a column that is known once all of a row has
been seen. The product of the rows as they are needs one pass over them, the same in which the column is
summed up.
"""

from __future__ import annotations

from agent_core.knobs.graph import Call, Graph
from agent_core.knobs.rewrites.base import Refused, Rewrite, call, edited, fresh, producers, readers

_SCALE = {"op0": "multiply", "op1": None}


def _apply(graph: Graph) -> Graph:
    products = [item.result for item in graph.calls if item.operator == "NKIMatmul"]
    reasons = []
    found = graph
    for name in products:
        try:
            found = _moved(found, producers(found)[name])
        except Refused as reason:
            reasons.append(f"{name}: {reason}")
    if found is graph:
        raise Refused("; ".join(reasons) or "there is no product")
    return found


def _moved(graph: Graph, product: Call) -> Graph:
    """The graph with one product's rows scaled afterwards."""
    operands = dict(product.operands)
    made = producers(graph)
    transpose = made.get(operands["stationary"])
    if transpose is None or transpose.operator != "NKITranspose":
        raise Refused("its rows are not transposed on the chip")
    scale = made.get(dict(transpose.operands)["data"])
    if scale is None or not _scales(scale):
        raise Refused(f"{dict(transpose.operands)['data']} is not rows times a column")
    _check_readers(graph, scale, transpose)
    if graph.value[product.result].dtype == "float16":
        raise Refused("sums of rows that are not scaled yet may be too large for float16")
    data, column = (dict(scale.operands)[slot] for slot in ("data", "operand0"))
    flipped = next((item for item in graph.calls if _transposes(item, data)), None)
    flipped = flipped or call("NKITranspose", fresh(graph, f"{data}_T"), {"data": data})
    unscaled = fresh(graph, f"{product.result}_unscaled")
    operands = {"stationary": flipped.result, "moving": operands["moving"]}
    after = call("NKITensorScalar", product.result, {"data": unscaled, "operand0": column}, op0="multiply")
    return edited(graph, (flipped, call("NKIMatmul", unscaled, operands), after))


def _scales(item: Call) -> bool:
    """Whether a call multiplies rows by a column and does nothing else."""
    settings = dict(item.settings)
    plain = item.operator == "NKITensorScalar" and "operand0" in dict(item.operands)
    return plain and all(settings[key] == value for key, value in _SCALE.items())


def _check_readers(graph: Graph, scale: Call, transpose: Call) -> None:
    """What is scaled goes into products alone, as the operand whose rows are the product's."""
    for _, reader in readers(graph, scale.result):
        if reader != transpose:
            raise Refused(f"{scale.result} is read by {reader.result} too")
    for slot, reader in readers(graph, transpose.result):
        if (reader.operator, slot) != ("NKIMatmul", "stationary"):
            raise Refused(f"{transpose.result} is read by {reader.result} too")
    if graph.output in (scale.result, transpose.result):
        raise Refused(f"{graph.output} is the output")


def _transposes(item: Call, value: str) -> bool:
    return item.operator == "NKITranspose" and dict(item.operands)["data"] == value


REWRITE = Rewrite(
    name="row_scale",
    keeps="(diag(c) A) B = diag(c) (A B): each row of a product is made of one row of its left factor",
    apply=_apply,
)
