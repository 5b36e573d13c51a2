"""Writes the reference of an exported graph: one line for each call, and the functions that these use."""

from __future__ import annotations

import ast
import inspect
import keyword
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any

from seeds.errors import ScaffoldError
from seeds.from_torch import numpy_functions
from seeds.from_torch.exported_graph import ExportedGraph, ExportedInput, ExportedNode
from seeds.from_torch.operators import Operand, UnwritableError, numpy_type, write_operator
from seeds.problem_files import REFERENCE_FUNCTION
from seeds.spec import ITEMSIZE_BYTES

_FUNCTIONS: Mapping[str, FunctionType] = {
    name: item
    for name, item in vars(numpy_functions).items()
    if isinstance(item, FunctionType) and item.__module__ == numpy_functions.__name__
}
_RESERVED = frozenset({"np", "math", "nki", "nl", "nisa", REFERENCE_FUNCTION, *_FUNCTIONS})


def write_reference(graph: ExportedGraph, source: str) -> str:
    """Return the text of a file with `reference` and INPUT_SPECS that computes an exported graph.

    Raises:
        ScaffoldError: an operator has no NumPy text, or an input has no type of kernels; names the first.
    """
    known: dict[str, Operand] = {}
    taken = set(_RESERVED)
    arguments = [item for item in graph.inputs if item.values is None]
    for item in graph.inputs:
        name = item.target if item.target and item.kind != "user_input" else item.name
        known[item.name] = Operand(_free_name(name, taken), item.shape, item.dtype)
    lines = [
        f"    {known[item.name]} = {_constant(item)}" for item in graph.inputs if item.values is not None
    ]
    for node in _needed_calls(graph):
        lines += _write_call(node, known, taken, source)
    results = [str(_operand(graph, name, known, source=source)) for name in graph.outputs]
    returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
    names = ", ".join(str(known[item.name]) for item in arguments)
    body = "\n".join([f"def {REFERENCE_FUNCTION}({names}):", *lines, f"    return {returned}"])
    parts = [*_used_functions(body), body]
    head = [f'"""{graph.module} of {source}, exported by torch.export."""', ""]
    head += ["import math", ""] * any("math." in part for part in parts) + ["import numpy as np", ""]
    head += _declarations(arguments, known, source)
    return "\n".join([*head, *(f"\n\n{part}" for part in parts), ""])


def _operand(graph: ExportedGraph, name: str, known: Mapping[str, Operand], *, source: str) -> Operand:
    if name not in known:
        raise ScaffoldError(f"{source}: no exported graph: {graph.module} has no value {name!r}")
    return known[name]


def _free_name(name: str, taken: set[str]) -> str:
    found = "".join(letter if letter.isalnum() else "_" for letter in name).strip("_") or "x"
    found = f"p_{found}" if found[0].isdigit() or keyword.iskeyword(found) else found
    while found in taken:
        found += "_"
    taken.add(found)
    return found


def _needed_calls(graph: ExportedGraph) -> list[ExportedNode]:
    """The calls that the outputs need; checks of the graph on its own inputs are none."""
    wanted, found = set(graph.outputs), list[ExportedNode]()
    for node in reversed(graph.nodes):
        if node.name in wanted:
            found.append(node)
            wanted |= set(_names_in([node.args, node.kwargs]))
    return found[::-1]


def _names_in(item: Any) -> Iterator[str]:
    if isinstance(item, dict) and isinstance(item.get("node"), str):
        yield item["node"]
    for one in item.values() if isinstance(item, dict) else item if isinstance(item, list | tuple) else ():
        yield from _names_in(one)


def _write_call(node: ExportedNode, known: dict[str, Operand], taken: set[str], source: str) -> Iterator[str]:
    out = Operand(node.name, node.shape or (), node.dtype or "")
    place = f" ({node.line})" if node.line else ""
    try:
        args = [_decode(item, known) for item in node.args]
        kwargs = {key: _decode(item, known) for key, item in node.kwargs.items()}
        text = write_operator(node.target, out, args, kwargs)
    except UnwritableError as error:
        raise ScaffoldError(f"{source}: {node.target}{place}: {error}") from None
    is_name = text in {str(item) for item in known.values()}  # what changes no number needs no line
    name = text if is_name else _free_name(node.name, taken)
    known[node.name] = replace(out, text=name)
    if not is_name:
        yield f"    {name} = {text}"


def _decode(item: Any, known: Mapping[str, Operand]) -> Any:
    match item:
        case {"node": str(name)}:
            if name not in known:
                raise UnwritableError(f"it takes {name!r}, which no call before it gives")
            return known[name]
        case {"number": "nan"}:
            return Operand("np.nan")
        case {"number": str(number)}:
            return Operand("(-np.inf)" if number.startswith("-") else "np.inf")
        case {"dtype": str(dtype)}:
            return dtype
        case list() | tuple():
            return [_decode(one, known) for one in item]
        case _:
            return item


def _constant(item: ExportedInput) -> str:
    values = ", ".join(str(_decode(value, {})) for value in item.values or ())
    return f"np.reshape(np.array([{values}], {numpy_type(item.dtype)!r}), {item.shape})"


def _declarations(arguments: list[ExportedInput], known: Mapping[str, Operand], source: str) -> list[str]:
    lines, positive = ["INPUT_SPECS = {"], list[str]()
    for item in arguments:
        name = str(known[item.name])
        if item.dtype not in ITEMSIZE_BYTES:
            kinds = f"kernels take {', '.join(ITEMSIZE_BYTES)}"
            raise ScaffoldError(f"{source}: {item.target or item.name} has the type {item.dtype}; {kinds}")
        lines.append(f'    "{name}": ({item.shape or (1,)}, "{item.dtype}"),')
        positive += [name] if item.positive else []
    lines.append("}")
    return [*lines, f"VALUES = {dict.fromkeys(positive, 'positive')}"] if positive else lines


def _used_functions(body: str) -> list[str]:
    """The sources of the functions that a text calls, and of those that they call, without annotations."""
    used, todo = dict[str, str](), [body]
    while todo:
        for item in ast.walk(ast.parse(todo.pop())):
            if isinstance(item, ast.Name) and item.id in _FUNCTIONS and item.id not in used:
                used[item.id] = _plain_source(_FUNCTIONS[item.id])
                todo.append(used[item.id])
    return [used[name] for name in _FUNCTIONS if name in used]


def _plain_source(function: FunctionType) -> str:
    source = inspect.getsource(function).rstrip()
    names = ", ".join(inspect.signature(function).parameters)
    _, _, body = source.partition(") -> Any:\n")
    return f"def {function.__name__}({names}):\n{body}"
