"""Graph rewrite: computes a softmax before a matrix product in one pass, with a running maximum.

As written, the whole row is needed for its maximum before the first exponential; until then the row must be
held, or computed again. In rounds, each block takes its exponentials relative to the largest value so far.
When that value grows, the accumulated sum of exponentials and the accumulated product are both multiplied by
the exponential of the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from targets.nki.knobs.graph import Call, Graph, SettingValue
from targets.nki.knobs.graph_rewrites import row_scale
from targets.nki.knobs.graph_rewrites.base import (
    GraphRewrite,
    GraphRewriteRefused,
    edit_graph,
    fresh_name,
    make_call,
    read_in_psum,
    reader_calls,
)


@dataclass(frozen=True, slots=True)
class _SoftmaxCalls:
    """The calls of one softmax: maximum, difference, exponentials, their sum, transpose, products."""

    highest: Call
    shifted: Call
    powers: Call
    total: Call
    flipped: Call
    products: tuple[Call, ...]


def _apply(graph: Graph) -> Graph:
    try:
        scaled = row_scale.REWRITE.apply(graph)
    except GraphRewriteRefused:
        scaled = graph
    found, reasons = scaled, []
    for item in scaled.calls:
        if item.operator == "NKITensorReduce" and dict(item.settings)["op"] == "maximum":
            try:
                found = _make_online(found, _match_softmax(found, item))
            except GraphRewriteRefused as reason:
                reasons.append(f"{item.result}: {reason}")
    if found is scaled:
        raise GraphRewriteRefused("; ".join(reasons) or "there is no maximum of rows")
    return found


_SHIFT: Mapping[str, SettingValue] = {"op0": "subtract", "op1": None, "reverse0": False}
_EXP: Mapping[str, SettingValue] = {"op": "exp", "scale": 1.0, "bias": 0.0}


def _match_softmax(graph: Graph, highest: Call) -> _SoftmaxCalls:
    """The softmax that begins with a maximum."""
    shifted = _only_reader(graph, highest.result, "NKITensorScalar", settings=_SHIFT)
    if dict(shifted.operands)["data"] != dict(highest.operands)["data"]:
        raise GraphRewriteRefused("it is not taken off the same rows")
    powers = _only_reader(graph, shifted.result, "NKIActivation", settings=_EXP)
    read_by = [item for _, item in reader_calls(graph, powers.result)]
    totals = [item for item in read_by if item.operator == "NKITensorReduce"]
    flips = [item for item in read_by if item.operator == "NKITranspose"]
    if (len(totals), len(flips), len(read_by)) != (1, 1, 2) or dict(totals[0].settings)["op"] != "add":
        raise GraphRewriteRefused(f"{powers.result} is not just summed up and multiplied")
    products = reader_calls(graph, flips[0].result)
    if any((slot, item.operator) != ("stationary", "NKIMatmul") for slot, item in products):
        raise GraphRewriteRefused(f"{flips[0].result} is not just multiplied")
    last = {highest.result, shifted.result, powers.result, flips[0].result} & {graph.output}
    if last or not products:
        raise GraphRewriteRefused("no product follows")
    return _SoftmaxCalls(highest, shifted, powers, totals[0], flips[0], tuple(item for _, item in products))


def _only_reader(graph: Graph, value: str, operator: str, *, settings: Mapping[str, SettingValue]) -> Call:
    """The only call that reads a value, if it is this operator with these settings."""
    match [item for _, item in reader_calls(graph, value)]:
        case [found] if found.operator == operator and settings.items() <= dict(found.settings).items():
            return found
    raise GraphRewriteRefused(f"{value} does not go into the {operator} of a softmax alone")


def _make_online(graph: Graph, softmax: _SoftmaxCalls) -> Graph:
    fade = fresh_name(graph, f"{softmax.highest.result}_fade")
    calls = [make_call("NKIFade", fade, {"data": softmax.highest.result})]
    parts = []
    for item in (softmax.total, *softmax.products):
        part = fresh_name(graph, f"{item.result}_part")
        parts.append(part)
        calls.append(replace(item, result=part))
        calls.append(make_call("NKIFadingSum", item.result, {"data": part, "scale": fade}))
    made = edit_graph(graph, calls)
    along = made.value[softmax.powers.result].dims[-1]
    return read_in_psum(
        _mark_rounds(made, softmax.highest.result, {fade, *parts}, along=along), set(parts[1:])
    )


def _mark_rounds(graph: Graph, running: str, of_rounds: set[str], *, along: str) -> Graph:
    """The graph in which one value is running along a dimension, and others are made again in its rounds."""
    values = (
        replace(item, running=along if item.name == running else item.running)
        if item.name not in of_rounds
        else replace(item, round=along)
        for item in graph.values
    )
    return replace(graph, values=tuple(values))


REWRITE = GraphRewrite(
    name="online",
    keeps="exp(x - n) = exp(m - n) exp(x - m): a factor makes of sums of exp(x - m) those of exp(x - n)",
    apply=_apply,
)
