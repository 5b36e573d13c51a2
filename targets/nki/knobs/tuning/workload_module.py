"""Checks what a workload's module must define, five or six names, and reports all faults at once."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np

from targets.nki.knobs.tracing import TYPES, Specs
from targets.nki.knobs.tuning.excerpt import names_needed

GRAPH, TRUTH, SPECS, ROOT, HOSTS, TARGET = (
    "f_nkigym",
    "f_numpy",
    "INPUT_SPECS",
    "CACHE_ROOT",
    "HOSTS",
    "TARGET_MFU",
)
REFERENCE = "reference"
MOST_HOSTS = 64
LEAST_TARGET = 1e-6
"""Every kernel reaches this target; with far smaller ones the latency would no longer be a number."""


def find_faults(module: Mapping[str, Any], source: str) -> list[str]:
    """Return everything that is missing from a module or malformed, one line each; empty if it is valid."""
    checks: Mapping[str, Callable[[Any, Mapping[str, Any], str], Iterator[str]]] = {
        GRAPH: _graph_faults,
        TRUTH: _truth_faults,
        SPECS: _spec_faults,
        ROOT: _root_faults,
        HOSTS: _host_faults,
        TARGET: _target_faults,
    }
    found: list[str] = []
    for name, check in checks.items():
        if name in module:
            found += [f"{name}: {text}" for text in check(module[name], module, source)]
        elif name != GRAPH or _parameter_names(module.get(TRUTH)) is None:  # a function alone will do
            found.append(f"{name}: missing")
    return found


def _graph_faults(value: Any, module: Mapping[str, Any], source: str) -> Iterator[str]:
    names = _parameter_names(value)
    if names is None:
        yield f"is {value!r:.60}; it is a function of the inputs, by name"
        return
    specs = module.get(SPECS)
    if isinstance(specs, dict) and set(names) != set(specs):
        yield f"takes {', '.join(names)}; {SPECS} has {', '.join(map(str, specs))}"
    body = _function_body(source, GRAPH)
    if body is None:
        yield "is not defined by `def` at the top of the file"
    elif not (isinstance(body[-1], ast.Return) and isinstance(body[-1].value, ast.Name)):
        yield "does not end in `return NAME`"


def _truth_faults(value: Any, module: Mapping[str, Any], source: str) -> Iterator[str]:
    names, others = _parameter_names(value), _parameter_names(module.get(GRAPH))
    specs = module.get(SPECS)
    if names is None:
        yield f"is {value!r:.60}; it is a function of the inputs, by name"
    elif others is not None and set(names) != set(others):
        yield f"takes {', '.join(names)}; {GRAPH} takes {', '.join(others)}"
    elif GRAPH not in module and isinstance(specs, dict) and set(names) != set(specs):
        yield f"takes {', '.join(names)}; {SPECS} has {', '.join(map(str, specs))}"
    elif _function_body(source, TRUTH) is None:
        yield f"is not defined at the top of the file: it is cut out as the problem's {REFERENCE}"
    elif REFERENCE in names_needed(source, TRUTH):
        yield f"needs a name {REFERENCE!r}, which the problem gives a meaning to; call it otherwise"


def _spec_faults(value: Any, module: Mapping[str, Any], source: str) -> Iterator[str]:
    if not isinstance(value, dict) or not value:
        yield f"is {value!r:.60}; it is a dict of inputs: {{name: (shape, dtype)}}"
        return
    for name, item in value.items():
        if not isinstance(item, tuple | list) or len(item) != 2:
            yield f"{name!r} is {item!r:.60}; it is (shape, dtype)"
            continue
        shape, dtype = item
        if not (isinstance(shape, tuple | list) and shape and all(_is_size(size) for size in shape)):
            yield f"{name!r} has shape {shape!r:.60}; it is a tuple of sizes from 1 on"
        if type_name(dtype) not in TYPES:
            yield f"{name!r} has the type {dtype!r:.60}; it is one of {', '.join(TYPES)}"


def _root_faults(value: Any, module: Mapping[str, Any], source: str) -> Iterator[str]:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        yield f"is {value!r:.60}; it is a path"


def _host_faults(value: Any, module: Mapping[str, Any], source: str) -> Iterator[str]:
    sound = isinstance(value, list | tuple) and all(isinstance(item, str) and item for item in value)
    if not sound or len(value) > MOST_HOSTS:
        yield f"is {value!r:.60}; it is a list of host names, at most {MOST_HOSTS}; empty for the simulator"


def _target_faults(value: Any, module: Mapping[str, Any], source: str) -> Iterator[str]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not LEAST_TARGET <= value <= 100:
        share = f"a share of the peak: from {LEAST_TARGET:g} up to 1 (or a percentage, up to 100)"
        yield f"is {value!r:.60}; it is {share}"


def input_specs(module: Mapping[str, Any]) -> Specs:
    """The inputs of a valid module."""
    return {name: (tuple(shape), type_name(dtype)) for name, (shape, dtype) in module[SPECS].items()}


def target_mfu(module: Mapping[str, Any]) -> float:
    """The target of a valid module, as a share of the peak; values above 1 are percents."""
    value = float(module[TARGET])
    return value / 100 if value > 1 else value


def type_name(dtype: Any) -> str:
    """Return the name of a data type, given by name or as NumPy has it; empty if it is none."""
    if isinstance(dtype, str):
        return dtype
    try:
        return str(np.dtype(dtype).name)
    except (TypeError, ValueError):
        return ""


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1


def _parameter_names(value: Any) -> tuple[str, ...] | None:
    """The parameters that a function accepts by name; None if the value is no such function."""
    try:
        found = signature(value).parameters
    except (TypeError, ValueError):
        return None
    named = all(item.kind is Parameter.POSITIONAL_OR_KEYWORD for item in found.values())
    return tuple(found) if found and named else None


def _function_body(source: str, function: str) -> list[ast.stmt] | None:
    """The statements of a function that the module defines at top level."""
    found = [
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    return found[-1].body if found else None
