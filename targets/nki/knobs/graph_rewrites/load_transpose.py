"""Graph rewrite: transposes an input while it is loaded, by DMA from HBM instead of by the tensor engine.

This saves a pass of the tensor engine and a copy out of PSUM. DMA does it at nearly full rate for elements of
two bytes; it would move wider ones one by one. An input that is also read untransposed is loaded twice.
"""

from __future__ import annotations

from dataclasses import replace

from nki_sim.dtypes import DTYPES
from targets.nki.knobs.graph import Call, Graph
from targets.nki.knobs.graph_rewrites.base import GraphRewrite, GraphRewriteRefused, edit_graph

_BYTES = 2


def _apply(graph: Graph) -> Graph:
    calls, reasons = [], []
    for call in graph.calls:
        if call.operator == "NKITranspose":
            try:
                calls.append(_transpose_on_load(graph, call))
            except GraphRewriteRefused as reason:
                reasons.append(f"{call.result}: {reason}")
    if not calls:
        raise GraphRewriteRefused("; ".join(reasons) or "nothing is transposed")
    return edit_graph(graph, calls)


def _transpose_on_load(graph: Graph, transpose: Call) -> Call:
    source = dict(transpose.operands)["data"]
    if source not in graph.inputs:
        raise GraphRewriteRefused(f"{source} is not an input")
    if DTYPES[graph.value[source].dtype].itemsize != _BYTES:
        raise GraphRewriteRefused(
            f"{source} is {graph.value[source].dtype}, and DMA transposes types of {_BYTES} bytes"
        )
    return replace(transpose, operator="NKILoadTranspose")


REWRITE = GraphRewrite(
    name="load_transpose",
    keeps="the same elements come to the same places, by another way",
    apply=_apply,
)
