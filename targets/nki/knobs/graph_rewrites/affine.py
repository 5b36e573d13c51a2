"""Graph rewrite: folds a scale or bias on rows into the activation that follows, which applies one for free.

ScalarE computes a function of its data times a scale plus a bias, each a number or a column. This saves a
pass of VectorE over the rows, for example for the difference from the maximum in a softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nki_sim import targets
from targets.nki.knobs.graph import Call, Graph, SettingValue
from targets.nki.knobs.graph_rewrites.base import (
    GraphRewrite,
    GraphRewriteRefused,
    edit_graph,
    fresh_name,
    make_call,
    reader_calls,
    replace_operands,
)

_ACTIVATIONS = frozenset({"NKIActivation", "NKIActivationReduce"})
_NEUTRAL: Mapping[str, SettingValue] = {"scale": 1.0, "bias": 0.0}
_SLOTS = {"multiply": "scale", "add": "bias", "subtract": "bias"}


def _apply(graph: Graph) -> Graph:
    found, reasons = graph, []
    for item in graph.calls:
        if item.operator == "NKITensorScalar":
            try:
                found = _fold_into_activations(found, item)
            except GraphRewriteRefused as reason:
                reasons.append(f"{item.result}: {reason}")
    if found is graph:
        raise GraphRewriteRefused("; ".join(reasons) or "nothing is added to rows or multiplied with them")
    return found


def _fold_into_activations(graph: Graph, scalar: Call) -> Graph:
    """The graph in which the activations that read a call's result do that call's work."""
    settings = dict(scalar.settings)
    op = str(settings["op0"])
    if op not in _SLOTS or settings["op1"] is not None or (op == "subtract" and settings["reverse0"]):
        raise GraphRewriteRefused("it is no single sum or product")
    read_by = [item for _, item in reader_calls(graph, scalar.result)]
    if scalar.result == graph.output:
        raise GraphRewriteRefused("it is the output")
    for item in read_by:
        _check_activation(graph, item)
    given, sign = dict(scalar.operands), -1.0 if op == "subtract" else 1.0
    if "operand0" in given:
        made, column = _signed_column(graph, given["operand0"], sign)
        changed = [_with_column(item, _SLOTS[op], column) for item in read_by]
    elif _SLOTS[op] == "bias" and not targets.load(graph.target).activation_scalar_bias:
        raise GraphRewriteRefused(f"on {graph.target} a bias is a column")
    else:
        made, number = graph, sign * float(settings["operand0"] or 0.0)
        changed = [_with_number(item, _SLOTS[op], number) for item in read_by]
    return edit_graph(made, [replace_operands(item, {scalar.result: given["data"]}) for item in changed])


def _signed_column(graph: Graph, column: str, sign: float) -> tuple[Graph, str]:
    """A column or its negative; where the column is running, the negative is made again in each round."""
    if sign > 0:
        return graph, column
    negated = fresh_name(graph, f"{column}_negated")
    given = graph.value[column]
    value = replace(given, name=negated, running=None, round=given.running or given.round)
    made = make_call("NKITensorScalar", negated, {"data": column}, op0="multiply", operand0=-1.0)
    return replace(graph, values=(*graph.values, value), calls=(*graph.calls, made)), negated


def _check_activation(graph: Graph, item: Call) -> None:
    settings = dict(item.settings)
    if item.operator not in _ACTIVATIONS:
        raise GraphRewriteRefused(f"{item.result}, which reads it, is no activation")
    if any(settings.get(slot) != number for slot, number in _NEUTRAL.items()):
        raise GraphRewriteRefused(f"{item.result} has a scale or bias of its own")
    if settings["op"] == "reciprocal":
        raise GraphRewriteRefused("a reciprocal takes no bias everywhere")


def _with_number(item: Call, slot: str, number: float) -> Call:
    settings = {**dict(item.settings), slot: number}
    return replace(item, settings=tuple(sorted(settings.items())))


def _with_column(item: Call, slot: str, column: str) -> Call:
    settings = tuple(pair for pair in item.settings if pair[0] != slot)
    return replace(item, operands=(*item.operands, (slot, column)), settings=settings)


REWRITE = GraphRewrite(
    name="affine",
    keeps="f(x + c) and f(x c) are what an activation computes of x with c as its bias or its scale",
    apply=_apply,
)
