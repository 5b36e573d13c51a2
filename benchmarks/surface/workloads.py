"""The functions that the benchmark looks at, each so small that it has few programs, and at its own size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import seeds
from targets.nki.knobs import ops
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.tracing import Specs, trace_workload
from targets.nki.knobs.workload_file import WORKLOAD_FILE, load_graph


def matmul(lhs: Any, rhs: Any) -> Any:
    return ops.NKIMatmul()(stationary=ops.NKITranspose()(data=lhs), moving=rhs)


def rmsnorm_matmul(x: Any, w: Any) -> Any:
    normed = ops.NKITranspose()(data=ops.NKIRMSNorm()(data=x))
    return ops.NKIMatmul()(stationary=normed, moving=w)


def softmax(x: Any) -> Any:
    return ops.NKISoftmax()(data=x)


def swiglu(x: Any, w_up: Any, w_down: Any, w_gate: Any) -> Any:
    flipped = ops.NKITranspose()(data=x)
    gate = ops.NKIMatmul()(stationary=w_gate, moving=flipped)
    up = ops.NKIMatmul()(stationary=w_up, moving=flipped)
    hidden = ops.NKITensorTensor(op="multiply")(data1=ops.NKIActivation(op="silu")(data=gate), data2=up)
    return ops.NKIMatmul()(stationary=hidden, moving=w_down)


def attention(q: Any, k: Any, v: Any) -> Any:
    queries, keys = ops.NKITranspose()(data=q), ops.NKITranspose()(data=k)
    scores = ops.NKIMatmul()(stationary=queries, moving=keys)
    weights = ops.NKISoftmax()(data=ops.NKITensorScalar(op0="multiply")(data=scores, operand0=0.125))
    return ops.NKIMatmul()(stationary=ops.NKITranspose()(data=weights), moving=v)


@dataclass(frozen=True, slots=True)
class Workload:
    """A function at a reduced size, and at its own: that of these shapes, or of the problem it is.

    Reduced sizes have so few tiles that every program of their space can be predicted.
    """

    function: Callable[..., Any]
    reduced: Mapping[str, tuple[int, ...]]
    shapes: Specs | str
    dtype: str = "float32"
    """Of the inputs at the reduced size."""
    reference: str = ""
    """The file `reference.py` of a workload that is no problem."""

    def small(self, target: str) -> Graph:
        """The graph at the reduced size."""
        specs = {name: (shape, self.dtype) for name, shape in self.reduced.items()}
        return trace_workload(self.function, specs, target=target)

    def graph(self, target: str) -> Graph:
        """The graph at the workload's own size."""
        if isinstance(self.shapes, str):
            return load_graph(seeds.load_problem(self.shapes).files[WORKLOAD_FILE], "full", target)
        return trace_workload(self.function, self.shapes, target=target)


_SQUARE = ((2048, 2048), "bfloat16")

_PRODUCT = """def reference(lhs, rhs):
    return (lhs.astype("float64") @ rhs.astype("float64")).astype("float32")
"""

_SOFTMAX = """import numpy as np


def reference(x):
    powers = np.exp(x.astype("float64") - x.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype("float32")
"""

_ATTENTION = """import numpy as np


def reference(q, k, v):
    scores = 0.125 * q.astype("float64") @ k.astype("float64").T
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True) @ v.astype("float64")).astype("float32")
"""

WORKLOADS: Mapping[str, Workload] = {
    "matmul_2048_bfloat16": Workload(
        matmul,
        {"lhs": (256, 384), "rhs": (384, 512)},
        {"lhs": _SQUARE, "rhs": _SQUARE},
        dtype="bfloat16",
        reference=_PRODUCT,
    ),
    "softmax": Workload(softmax, {"x": (384, 1024)}, {"x": ((2048, 2048), "float32")}, reference=_SOFTMAX),
    "attention": Workload(
        attention,
        {"q": (128, 64), "k": (256, 64), "v": (256, 64)},
        dict.fromkeys(("q", "k", "v"), ((1024, 128), "float32")),
        reference=_ATTENTION,
    ),
    "rmsnorm_matmul": Workload(rmsnorm_matmul, {"x": (384, 128), "w": (128, 512)}, "rmsnorm_matmul"),
    "swiglu": Workload(
        swiglu,
        {"x": (384, 128), "w_up": (128, 128), "w_down": (128, 128), "w_gate": (128, 128)},
        "swiglu",
    ),
    "matmul": Workload(matmul, {"lhs": (512, 256), "rhs": (256, 512)}, "matmul"),
}
