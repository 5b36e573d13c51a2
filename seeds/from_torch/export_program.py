"""Exports a PyTorch module and prints its graph: `python export_program.py FILE.py NAME > GRAPH.json`.

A program of its own: it needs torch and the standard library, so that you can run it where torch is.
NAME is a module, or a class that takes no arguments. The file's INPUT_SPECS say what `forward` takes. The
module is exported in evaluation mode. Status 3 without torch; status 2, and one line on stderr, if the module
cannot be exported.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

VERSION = 1
MOST_VALUES = 4096
"""Elements of the largest tensor that is no input of kernels, but written out in the reference."""
NO_TORCH, NOT_EXPORTED = 3, 2


class ExportError(Exception):
    """The module cannot be exported; the message says what to do."""


def main() -> int:
    """Print the graph of the module on the command line; what its file prints goes to stderr."""
    path, name = Path(sys.argv[1]), sys.argv[2]
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if importlib.util.find_spec("torch") is None:
        return NO_TORCH
    try:
        graph = export_module(path, name)
    except ExportError as error:
        sys.stderr.write(f"{error}\n")
        return NOT_EXPORTED
    with answer:
        json.dump(graph, answer, allow_nan=False)
    return 0


def export_module(path: Path, name: str) -> dict[str, Any]:
    """Return the graph of a module as data.

    Raises:
        ExportError: the file has no such module, or torch cannot export it.
    """
    import torch

    names = _execute_file(path)
    module = _find_module(names, name)
    specs = names.get("INPUT_SPECS")
    if not isinstance(specs, dict) or not specs:
        raise ExportError(
            'needs INPUT_SPECS = {"x": ((1024, 512), "float32"), ...} with what `forward` takes'
        )
    try:
        arguments = {key: _example(shape, dtype) for key, (shape, dtype) in specs.items()}
        exported = torch.export.export(module.eval(), (), arguments).run_decompositions({})
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        raise ExportError(f"torch.export fails: {type(error).__name__}: {text[0]}") from error
    return _describe(exported, name)


def _execute_file(path: Path) -> dict[str, Any]:
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location("_exported_module", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["_exported_module"] = made
    try:
        spec.loader.exec_module(made)
    except Exception as error:
        raise ExportError(f"running the file fails: {type(error).__name__}: {error}") from error
    return vars(made)


def _find_module(names: dict[str, Any], name: str) -> Any:
    import torch

    found = names.get(name)
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        try:
            return found()
        except TypeError as error:
            raise ExportError(
                f"{name}() fails: {error}; make a module in the file, MODULE = {name}(...), and name that"
            ) from error
    if not isinstance(found, torch.nn.Module):
        have = [key for key, item in names.items() if _is_module(item)]
        raise ExportError(f"{name} is no module of the file; modules: {', '.join(have) or 'none'}")
    return found


def _is_module(item: Any) -> bool:
    import torch

    return issubclass(item if isinstance(item, type) else type(item), torch.nn.Module)


def _example(shape: tuple[int, ...], dtype: str) -> Any:
    import torch

    kind = getattr(torch, dtype)
    return torch.randn(shape).to(kind) if kind.is_floating_point else torch.zeros(shape, dtype=kind)


def _describe(exported: Any, name: str) -> dict[str, Any]:
    signature = exported.graph_signature
    given = {spec.arg.name: spec for spec in signature.input_specs}
    nodes = list(exported.graph.nodes)
    calls = [node for node in nodes if node.op == "call_function"]
    used = {argument.name for node in nodes for argument in node.all_input_nodes}
    placeholders = [node for node in nodes if node.op == "placeholder" and node.name in used]
    outputs = [spec.arg.name for spec in signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    return {
        "version": VERSION,
        "module": name,
        "inputs": [_describe_input(node, given[node.name], exported) for node in placeholders],
        "nodes": [_describe_call(node) for node in calls],
        "outputs": outputs,
    }


def _describe_input(node: Any, spec: Any, exported: Any) -> dict[str, Any]:
    kind = spec.kind.name.lower()
    found = {"name": node.name, "kind": kind, "target": spec.target, **_shape_and_type(node)}
    if kind == "user_input":
        return found
    tensor = exported.state_dict.get(spec.target, exported.constants.get(spec.target))
    if tensor is not None and tensor.is_floating_point() and tensor.dim():
        found["positive"] = bool((tensor > 0).all())
    elif tensor is not None and tensor.numel() <= MOST_VALUES:
        found["values"] = [_encode(item) for item in tensor.flatten().tolist()]
    return found


def _describe_call(node: Any) -> dict[str, Any]:
    frames = re.findall(r'File "([^"]+)", line (\d+), in \w+\n\s*(.*)', node.meta.get("stack_trace") or "")
    where = [f"{Path(file).name}, line {number}: {text}" for file, number, text in frames]
    target = (
        getattr(node.target, "__name__", None) if node.target.__class__.__name__ != "OpOverload" else None
    )
    return {
        "name": node.name,
        "target": target or str(node.target),
        "args": [_encode(item) for item in node.args],
        "kwargs": {key: _encode(item) for key, item in node.kwargs.items()},
        "line": where[-1] if where else "",
        **_shape_and_type(node),
    }


def _shape_and_type(node: Any) -> dict[str, Any]:
    """The shape and the type of one tensor; nothing for several."""
    value = node.meta.get("val")
    if not hasattr(value, "shape"):
        return {}
    return {"shape": [int(size) for size in value.shape], "dtype": str(value.dtype).removeprefix("torch.")}


def _encode(item: Any) -> Any:
    """An argument as JSON: nodes, types and numbers that JSON lacks are tables of one key."""
    if type(item).__name__ == "Node":
        return {"node": item.name}
    if isinstance(item, list | tuple):
        return [_encode(one) for one in item]
    if isinstance(item, float) and not math.isfinite(item):
        return {"number": str(item)}
    if item is None or isinstance(item, bool | int | float | str):
        return item
    if type(item).__name__ == "dtype":
        return {"dtype": str(item).removeprefix("torch.")}
    return {"other": str(item)}


if __name__ == "__main__":
    sys.exit(main())
