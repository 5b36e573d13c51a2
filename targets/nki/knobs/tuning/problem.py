"""Makes a problem of a workload: a specification, a reference, an initial kernel, and its graph.

The initial kernel is the mechanical lowering of the graph's default knobs. It is the baseline from which
gains count. The least work of any kernel is derived from the graph; where that leaves a choice, the lower
value is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import hypot

from seeds.faults import FULL, REDUCED
from seeds.problem_files import KERNEL_FILE, REFERENCE_FILE, SPEC_FILE
from targets.nki.knobs.graph import Call, Graph
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.operators import OPERATORS
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.workload_file import WORKLOAD_FILE, dump_graphs

__all__ = ["FULL", "REDUCED", "baseline_kernel", "problem_files", "specification_text", "tolerance"]

FLOAT32 = 2e-5
"""Relative L2 error below which an output is right if everything is float32."""

ROUNDED: Mapping[str, float] = {"float16": 1e-3, "bfloat16": 8e-3}
"""The same for one value that is kept in a narrower type; for several, errors add up as squares."""

SEEDS = (0, 21, 42, 63, 84)

_TABLE = frozenset({"exp", "log", "sigmoid", "silu", "tanh"})
"""ScalarE functions that use a lookup table."""

_FREE = frozenset({"NKITranspose"})
"""Operators that compute nothing."""


def problem_files(graph: Graph, reference: str, size: str = FULL) -> dict[str, bytes]:
    """Return the files of a graph's problem, with the text of its reference.

    Kernels are for the graph's own shapes, so the problem has one size with this name.

    Raises:
        KnobError: no valid configuration of the graph can be found.
    """
    return {
        SPEC_FILE: specification_text(graph, size).encode(),
        REFERENCE_FILE: reference.encode(),
        KERNEL_FILE: baseline_kernel(graph).encode(),
        WORKLOAD_FILE: dump_graphs({size: graph}),
    }


def baseline_kernel(graph: Graph) -> str:
    """The baseline kernel of a graph: its default knobs, lowered mechanically."""
    return render_kernel(default_ir(graph))


def specification_text(graph: Graph, size: str = FULL) -> str:
    """The text of `problem.toml` for a graph."""
    return "\n".join(_specification_lines(graph, size)) + "\n"


def tolerance(graph: Graph) -> float:
    """The relative L2 error allowed for kernels of a graph, from the types of its results."""
    rounded = [ROUNDED.get(graph.value[call.result].dtype, 0.0) for call in graph.calls]
    return max(FLOAT32, float(f"{hypot(*rounded):.2g}"))


def _specification_lines(graph: Graph, size: str) -> Iterator[str]:
    yield f'name = "{graph.name}"'
    yield f'formula = "{_formula_text(graph)}"'
    yield f"rel_l2 = {tolerance(graph)!r}"
    yield f"seeds = {list(SEEDS)}"
    yield "shape_generic = false"
    yield f"\n[sizes.{size}]"
    yield from (f"{dim.name} = {dim.size}" for dim in graph.dims)
    for kind, names in (("inputs", graph.inputs), ("outputs", (graph.output,))):
        for name in names:
            value = graph.value[name]
            yield f'\n[[{kind}]]\nname = "{name}"\nshape = {json.dumps(list(value.dims))}'
            yield f'dtype = "{value.dtype}"'
    yield "\n[work]"
    yield from (f"{key} = {json.dumps(' + '.join(terms) or 0)}" for key, terms in _work_terms(graph).items())
    yield f'matmul_dtype = "{_matmul_dtype(graph)}"'


def _formula_text(graph: Graph) -> str:
    steps = ", ".join(call.operator.removeprefix("NKI").lower() for call in graph.calls)
    text = f"{graph.output} = {graph.name}({', '.join(graph.inputs)}): {steps}"
    return text if len(text) <= 200 else text[:196] + " ..."


def _work_terms(graph: Graph) -> dict[str, list[str]]:
    """The terms of the least work.

    What leaves PSUM passes one engine once; without matrix products, the output does.
    """
    calls = list({(call.operator, call.operands, call.settings): call for call in graph.calls}.values())
    products = [call for call in calls if OPERATORS[call.operator].memory == "psum" and _is_product(call)]
    others = [call for call in calls if call not in products and call.operator not in _FREE]
    tables = [call for call in others if dict(call.settings).get("op") in _TABLE]
    return {
        "matmul_flops": [f"2 * {_size_expression(_call_dims(graph, call))}" for call in products],
        "other_flops": [_size_expression(_call_dims(graph, call)) for call in others],
        "activation_elements": [_size_expression(_call_dims(graph, call)) for call in tables],
        "elementwise_elements": [
            _size_expression(graph.value[name].dims)
            for name in [call.result for call in products] or [graph.output]
        ],
    }


def _is_product(call: Call) -> bool:
    return call.operator not in _FREE


def _call_dims(graph: Graph, call: Call) -> tuple[str, ...]:
    """Every dimension that a call ranges over."""
    return tuple(dict.fromkeys(dim for _, name in call.operands for dim in graph.value[name].dims))


def _size_expression(dims: tuple[str, ...]) -> str:
    return " * ".join(dims)


def _matmul_dtype(graph: Graph) -> str:
    """The type with the highest rate among the operands of matrix products."""
    types = {
        graph.value[name].dtype
        for call in graph.calls
        if OPERATORS[call.operator].memory == "psum" and _is_product(call)
        for _, name in call.operands
    }
    return min(types or {"float32"}, key=lambda dtype: (dtype == "float32", dtype))
