"""Defines graph rewrites, and makes graphs of edited calls.

The calls are repeated on symbols, as when the workload was traced: dimensions, tiles and types of the new
graph follow from its calls by the same rules as for any other graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from targets.nki.knobs.graph import Call, Graph, SettingValue, Value
from targets.nki.knobs.operators import OPERATORS
from targets.nki.knobs.tracing import Symbol, build_graph, input_symbol, record_call


class GraphRewriteRefused(Exception):  # noqa: N818  a refusal is an answer, not a fault
    """A rewrite does not apply to a graph; the message says why."""


@dataclass(frozen=True, slots=True)
class GraphRewrite:
    """One rewrite: its name, why the result stays the same, and the function that makes the graph.

    `apply` raises `GraphRewriteRefused` if the rewrite applies nowhere.
    """

    name: str
    keeps: str
    apply: Callable[[Graph], Graph]


def producer_calls(graph: Graph) -> Mapping[str, Call]:
    """The call that computes each value; inputs have none."""
    return {call.result: call for call in graph.calls}


def reader_calls(graph: Graph, value: str) -> tuple[tuple[str, Call], ...]:
    """The calls that read a value, each with the slot that holds it."""
    return tuple((slot, call) for call in graph.calls for slot, name in call.operands if name == value)


def fresh_name(graph: Graph, wanted: str, taken: Iterable[str] = ()) -> str:
    """Return a name that no value of a graph and no taken name has; `wanted` itself if it is free."""
    known = {*graph.value, *taken}
    names = [wanted, *(f"{wanted}_{number}" for number in range(1, len(known) + 2))]
    return next(name for name in names if name not in known)


def make_call(operator: str, result: str, operands: Mapping[str, str], **settings: SettingValue) -> Call:
    """A call; settings that are not given get the operator's defaults."""
    given = {**OPERATORS[operator].settings, **settings}
    return Call(operator, tuple(operands.items()), tuple(sorted(given.items())), result)


def replace_operands(given: Call, names: Mapping[str, str]) -> Call:
    """A call that reads other values in place of some."""
    return replace(given, operands=tuple((slot, names.get(name, name)) for slot, name in given.operands))


def edit_graph(graph: Graph, calls: Iterable[Call]) -> Graph:
    """The graph with these calls added, or replacing those with the same results.

    Calls that the output no longer needs are dropped. The others keep their memory and rounds.
    """
    by_result = {**producer_calls(graph), **{item.result: item for item in calls}}
    inputs = {name: input_symbol(graph.shape(name), graph.value[name].dtype) for name in graph.inputs}
    known: dict[str, Symbol] = dict(inputs)

    def made(name: str) -> Symbol:
        if name not in known:
            item = by_result[name]
            operands = {slot: made(operand) for slot, operand in item.operands}
            known[name] = record_call(OPERATORS[item.operator], operands, dict(item.settings))
        return known[name]

    result = made(graph.output)
    names = {item: name for name, item in known.items()}
    found = build_graph(graph.name, graph.target, inputs, result, names)
    return replace(
        found, values=tuple(_restore_rounds(item, graph.value.get(item.name)) for item in found.values)
    )


def _restore_rounds(made: Value, before: Value | None) -> Value:
    """A value with the memory and rounds of the value of the same name; the inputs name the dimensions."""
    if before is None:
        return made
    return replace(made, memory=before.memory, round=before.round, running=before.running)


def read_in_psum(graph: Graph, names: set[str]) -> Graph:
    """The graph in which these values are read from PSUM."""
    values = (replace(item, memory="psum") if item.name in names else item for item in graph.values)
    return replace(graph, values=tuple(values))
