"""Reads a workload's module, in a process of its own, and prints its contents as data.

`python -m targets.nki.knobs.tuning.workload_reader PATH TARGET` runs the file. Only the answer goes to
stdout; what the file prints goes to stderr. The function is traced at the given shapes and at small ones. Its
default kernel for the small ones is interpreted and compared with `f_numpy` there, on normal data.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from keyword import iskeyword
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seeds.inputs import dtype_of
from targets.nki.knobs import nkigym_shim
from targets.nki.knobs.errors import KnobError, WorkloadError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.interpret import interpret_kernel
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.tracing import Specs, trace_workload
from targets.nki.knobs.tuning.excerpt import excerpt_function
from targets.nki.knobs.tuning.problem import FULL, REDUCED, tolerance
from targets.nki.knobs.tuning.workload_module import (
    GRAPH,
    HOSTS,
    REFERENCE,
    ROOT,
    TRUTH,
    find_faults,
    input_specs,
    target_mfu,
)
from targets.nki.knobs.workload_file import dump_graphs

SMALL_TILES = 2
"""Tiles of each dimension, at most, at the small size."""

_MODULE = "_workload"

WorkloadAnswer = dict[str, Any]


def main() -> int:
    """Answer for the file and the target on the command line."""
    path, target = Path(sys.argv[1]), sys.argv[2]
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answer:
        json.dump(read_workload(path, target), answer)
    return 0


def read_workload(path: Path, target: str) -> WorkloadAnswer:
    """Return `{"ok": ...}` with the workload's contents, or `{"faults": [...]}`."""
    try:
        source = path.read_text(encoding="utf-8")
        with nkigym_shim.provide_nkigym():
            module = _execute_module(path)
            found = find_faults(module, source)
            return (
                {"faults": found}
                if found
                else {"ok": _describe_workload(path, source, module, target=target)}
            )
    except (WorkloadError, KnobError) as error:
        return {"faults": [f"{GRAPH}{_error_place(path, error, GRAPH)}: {error}"]}
    except BaseException as error:  # noqa: BLE001  the user's own code may raise anything
        place = _error_place(path, error, "<module>")
        return {"faults": [f"{path.name}{place}: {type(error).__name__}: {error}"]}


def _error_place(path: Path, error: BaseException, known: str) -> str:
    """The innermost place in the file that raised an error: the line, and the function if not `known`.

    Empty if the error came from elsewhere.
    """
    frames = [one for one in extract_tb(error.__traceback__) if one.filename == str(path)]
    if not frames:
        return ""
    inside = "" if frames[-1].name == known else f", {frames[-1].name}"
    return f"{inside}, line {frames[-1].lineno}"


def _execute_module(path: Path) -> dict[str, Any]:
    """The names of a module, run from its file with its folder importable."""
    sys.path.insert(0, str(path.parent.resolve()))
    location = importlib.util.spec_from_file_location(_MODULE, path)  # its own name could be numpy
    assert location is not None
    assert location.loader is not None
    made = importlib.util.module_from_spec(location)
    sys.modules[_MODULE] = made
    location.loader.exec_module(made)
    return vars(made)


def _describe_workload(path: Path, source: str, module: Mapping[str, Any], *, target: str) -> WorkloadAnswer:
    specs = input_specs(module)
    name = kernel_name(path.stem, {*specs})
    common = {
        "name": name,
        "inputs": specs,
        "cache_root": str(module[ROOT]),
        "hosts": list(module[HOSTS]),
        "target_mfu": target_mfu(module),
    }
    if GRAPH in module:
        graphs = _trace_graphs(module, specs, target, name=name)
        return {
            **common,
            "graphs": dump_graphs(graphs).decode(),
            "reference": _reference_source(source, [*specs]),
        }
    return {**common, "graphs": None, "reference": _translatable_source(source, [*specs])}


def _trace_graphs(module: Mapping[str, Any], specs: Specs, target: str, *, name: str) -> dict[str, Graph]:
    """The graph of `f_nkigym` by size.

    Raises:
        WorkloadError: it cannot be traced, or computes something else than `f_numpy`.
    """
    graph = trace_workload(module[GRAPH], specs, target=target, name=name)
    graphs = {FULL: graph}
    small = _small_graph(module[GRAPH], graph, target)
    if small is not None:
        graphs[REDUCED] = small
    error = _compare_with_truth(module[TRUTH], small or graph)
    if error is not None and small is not None:  # a constant may fit one shape only
        del graphs[REDUCED]
        error = _compare_with_truth(module[TRUTH], graph)
    if error is not None:
        raise WorkloadError(error)
    return graphs


def kernel_name(stem: str, taken: set[str]) -> str:
    """Return a name for the problem and its kernels: the file's name as an unused identifier."""
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)[:48].strip("_") or "workload"
    name = f"f_{name}" if name[0].isdigit() or iskeyword(name) else name
    return f"{name}_kernel" if name in taken or name in _RESERVED_NAMES else name


_RESERVED_NAMES = frozenset({"nki", "nl", "nisa", "range", "partial", "scratch", "output"})


def _small_graph(function: Callable[..., Any], graph: Graph, target: str) -> Graph | None:
    """The graph at small shapes; None if it is small already, or computes something else there."""
    sizes = {dim.name: min(dim.size, SMALL_TILES * dim.tile) for dim in graph.dims}
    specs: Specs = {
        name: (tuple(sizes[dim] for dim in graph.value[name].dims), graph.value[name].dtype)
        for name in graph.inputs
    }
    if all(sizes[dim.name] == dim.size for dim in graph.dims):
        return None
    try:
        found = trace_workload(function, specs, target=target, name=graph.name)
    except (WorkloadError, ArithmeticError, IndexError, ValueError):
        return None
    return found if _has_same_calls(found, graph) else None


def _has_same_calls(one: Graph, other: Graph) -> bool:
    """Whether two graphs have the same calls on the same dimensions, ignoring numbers."""

    def shape(graph: Graph) -> object:
        return graph.values, tuple((call.operator, call.operands, call.result) for call in graph.calls)

    return shape(one) == shape(other)


def _compare_with_truth(truth: Callable[..., Any], graph: Graph) -> str | None:
    """Compare a graph with `f_numpy`; return a message if the difference is too large."""
    random = np.random.default_rng(0)
    inputs = {
        name: random.standard_normal(graph.shape(name)).astype(dtype_of(graph.value[name].dtype))
        for name in graph.inputs
    }
    wanted = np.asarray(truth(**{name: item.astype(np.float64) for name, item in inputs.items()}))
    shape = graph.shape(graph.output)
    if wanted.shape != shape:
        return f"its result has shape {shape}, that of {TRUTH} {wanted.shape}"
    if not np.isfinite(wanted.astype(np.float64)).all():
        return f"{TRUTH} is not finite everywhere on inputs drawn from N(0, 1), which kernels are compared on"
    found = np.asarray(interpret_kernel(lower_kernel(default_ir(graph)), inputs), np.float64)
    error = _relative_error(found, wanted.astype(np.float64))
    limit = tolerance(graph)
    if error < limit:
        return None
    return (
        f"it is not {TRUTH}: on normal inputs they differ by {error:.2g} (relative L2), {limit:g} is allowed"
    )


def _relative_error(found: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    error = float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) or 1.0))
    return error if np.isfinite(error) else float("inf")


def _reference_source(source: str, names: list[str]) -> str:
    """The problem's reference: `f_numpy` on wide inputs, in the order in which kernels get them."""
    return _wide_call(excerpt_function(source, TRUTH), names, '.astype("float32")')


def _translatable_source(source: str, names: list[str]) -> str:
    """The same with the file's line numbers, which the translator names, and for any number of results."""
    return _wide_call(excerpt_function(source, TRUTH, keeps_lines=True), names, "")


def _wide_call(excerpt: str, names: list[str], cast: str) -> str:
    wide = ", ".join(f'{name}={name}.astype("float64")' for name in names)
    head = f"{excerpt.rstrip()}\n\n\ndef {REFERENCE}({', '.join(names)}):\n"
    return f"{head}    return {TRUTH}({wide}){cast}\n"


if __name__ == "__main__":
    sys.exit(main())
