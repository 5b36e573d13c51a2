"""Graphs to a problem's file and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from targets.nki.knobs.errors import WorkloadError
from targets.nki.knobs.tracing import trace_workload
from targets.nki.knobs.workload_file import dump_graphs, load_graph
from tests.support.workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_graph_comes_back_as_it_was_traced(name: str) -> None:
    graph = WORKLOADS[name].graph
    assert load_graph(dump_graphs({"full": graph}), "full", graph.target) == graph


def test_a_graph_is_read_for_another_target() -> None:
    workload = WORKLOADS["softmax"]
    found = load_graph(dump_graphs({"full": workload.graph}), "full", "trn1")
    assert found == trace_workload(workload.function, workload.specs, target="trn1")


def test_each_size_has_a_graph_of_its_own() -> None:
    small = trace_workload(WORKLOADS["softmax"].function, {"x": ((128, 64), "float32")})
    data = dump_graphs({"full": WORKLOADS["softmax"].graph, "reduced": small})
    assert load_graph(data, "reduced", "trn2") == small
    with pytest.raises(WorkloadError, match="no graph for the size 'tiny'; it has full, reduced"):
        load_graph(data, "tiny", "trn2")


def _change_content(**change: Any) -> bytes:
    told = json.loads(dump_graphs({"full": WORKLOADS["softmax"].graph}))
    graph = told["graphs"]["full"]
    graph["calls"][0] |= change.pop("call", {})
    graph |= change
    return json.dumps(told).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "workload.json: the file: Invalid JSON"),
        (b'{"version": 2, "graphs": {}}', "workload.json: version: "),
        (_change_content(call={"operator": "NKIOp"}), "'NKIOp' is no operator"),
        (_change_content(call={"operator": "computed"}), "'computed' is no operator"),
        (_change_content(call={"operands": {"data": "y"}}), "is made of 'y', which no call before it made"),
        (_change_content(call={"result": "x"}), "two values called 'x'"),
        (_change_content(call={"settings": {"op": "median"}}), "'median' is unknown"),
        (_change_content(output="x"), "the output 'x' is no call's result"),
        (_change_content(name="import os"), "'import os' cannot be a name"),
        (_change_content(inputs={"x": [[256, 2048], "int8"]}), "has the type 'int8'"),
        (_change_content(calls=[]), "graphs.full.calls: "),
    ],
)
def test_what_is_wrong_with_a_file_is_said(data: bytes, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        load_graph(data, "full", "trn2")
    assert message in str(caught.value)
