"""Stores graphs as plain data: the file `workload.json` of a problem, with a graph for each of its sizes.

Only the calls are stored, as the workload's function made them; intermediate shapes, dimensions and tiles
follow. Reading repeats the calls, so a file can only contain what could have been traced, on any target.
Numbers that a workload takes from its shapes (such as one over the row length) are part of the calls: that is
why each size has its own graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from state.model import validation_reason
from targets.nki.knobs import ops
from targets.nki.knobs.errors import WorkloadError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.tracing import Symbol, build_graph, check_specs, input_symbol

WORKLOAD_FILE = "workload.json"
"""The file's name in the problem's folder."""

MOST_CALLS = 256


class _StrictData(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _CallData(_StrictData):
    operator: str
    operands: dict[str, str]
    settings: dict[str, str | bool | int | float | None] = {}
    result: str


class _GraphData(_StrictData):
    name: str
    inputs: dict[str, tuple[list[int], str]]
    calls: list[_CallData] = Field(min_length=1, max_length=MOST_CALLS)
    output: str


class _WorkloadData(_StrictData):
    version: Literal[1]
    graphs: dict[str, _GraphData] = Field(min_length=1)


def dump_graphs(graphs: Mapping[str, Graph]) -> bytes:
    """Return the file of a problem whose sizes have these graphs."""
    told = {"version": 1, "graphs": {size: _graph_data(graph) for size, graph in graphs.items()}}
    return (json.dumps(told, indent=1, allow_nan=False) + "\n").encode()


def _graph_data(graph: Graph) -> dict[str, Any]:
    return {
        "name": graph.name,
        "inputs": {name: [list(graph.shape(name)), graph.value[name].dtype] for name in graph.inputs},
        "calls": [
            {
                "operator": call.operator,
                "operands": dict(call.operands),
                "settings": {key: item for key, item in call.settings if item is not None},
                "result": call.result,
            }
            for call in graph.calls
        ],
        "output": graph.output,
    }


def load_graph(data: bytes, size: str, target: str) -> Graph:
    """Return the file's graph for a size.

    Raises:
        WorkloadError: the file is invalid, has no graph for that size, or one that cannot be traced.
    """
    try:
        file = _WorkloadData.model_validate_json(data)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])) or "the file"
        raise WorkloadError(f"{WORKLOAD_FILE}: {where}: {validation_reason(fault)}") from error
    if size not in file.graphs:
        raise WorkloadError(
            f"{WORKLOAD_FILE} has no graph for the size {size!r}; it has {', '.join(file.graphs)}"
        )
    return _rebuild_graph(file.graphs[size], target)


def _rebuild_graph(told: _GraphData, target: str) -> Graph:
    specs = {name: (tuple(shape), dtype) for name, (shape, dtype) in told.inputs.items()}
    check_specs(specs, tuple(specs))
    inputs = {name: input_symbol(*spec) for name, spec in specs.items()}
    known = dict(inputs)
    for call in told.calls:
        if call.result in known:
            raise WorkloadError(f"{WORKLOAD_FILE}: there are two values called {call.result!r}")
        known[call.result] = _repeat_call(call, known)
    if told.output not in known or told.output in inputs:
        raise WorkloadError(f"{WORKLOAD_FILE}: the output {told.output!r} is no call's result")
    names = {symbol: name for name, symbol in known.items()}
    return build_graph(told.name, target, inputs, known[told.output], names)


def _repeat_call(call: _CallData, known: Mapping[str, Symbol]) -> Symbol:
    operator = getattr(ops, call.operator, None)
    if not (isinstance(operator, type) and issubclass(operator, ops.NKIOp) and operator is not ops.NKIOp):
        raise WorkloadError(f"{WORKLOAD_FILE}: {call.operator!r} is no operator")
    for name in call.operands.values():
        if name not in known:
            raise WorkloadError(
                f"{WORKLOAD_FILE}: {call.result} is made of {name!r}, which no call before it made"
            )
    operands = {slot: known[name] for slot, name in call.operands.items()}
    found: Symbol = operator(**call.settings)(**operands)
    return found
