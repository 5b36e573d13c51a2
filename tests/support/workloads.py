"""Workloads for the knob surface: functions of operators, their NumPy twins, shapes that are quick to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import nki_sim
from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.running import numerics
from targets.nki.knobs import ops
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import KernelIR
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.tracing import trace_workload

Array = NDArray[Any]
Specs = Mapping[str, tuple[tuple[int, ...], str]]
TARGET = targets.load("trn2")


@dataclass(frozen=True)
class Workload:
    """A function of operators, what it means on float64 arrays, and inputs."""

    function: Callable[..., Any]
    meaning: Callable[..., Array]
    specs: Specs
    tolerance: float = 1e-5

    @cached_property
    def graph(self) -> Graph:
        return trace_workload(self.function, self.specs)

    @cached_property
    def default(self) -> KernelIR:
        return default_ir(self.graph)

    def inputs(self, seed: int = 0) -> dict[str, Array]:
        random = np.random.default_rng(seed)
        return {
            name: random.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))
            for name, (shape, dtype) in self.specs.items()
        }

    def error(self, found: Array, inputs: Mapping[str, Array]) -> float:
        """Relative L2 error of an output; NaN where some element was never written."""
        wanted = self.meaning(*(np.asarray(item, np.float64) for item in inputs.values()))
        return float(np.linalg.norm(np.asarray(found, np.float64) - wanted) / np.linalg.norm(wanted))


def simulate_source(source: str, inputs: Mapping[str, Array]) -> Array:
    """What a kernel's source computes on the simulator, which refuses nothing of it."""
    (found,) = run_kernel(source, list(inputs.values()))
    return found


def run_kernel(source: str, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a kernel's source on the simulator, which refuses nothing of it."""
    program = nki_sim.trace(source, args=[ArraySpec(array.shape, str(array.dtype)) for array in inputs])
    refused = checks.check(program, TARGET)
    assert not refused, f"{refused[0].message}\n{source}"
    return [np.asarray(found) for found in numerics.run(program, list(inputs))]


def matmul(lhs: Any, rhs: Any) -> Any:
    lhs_T = ops.NKITranspose()(data=lhs)
    output = ops.NKIMatmul()(stationary=lhs_T, moving=rhs)
    return output  # noqa: RET504 - as workloads are written


def rmsnorm_matmul(x: Any, w: Any) -> Any:
    normed = ops.NKIRMSNorm(eps=1e-6)(data=x)
    normed_T = ops.NKITranspose()(data=normed)
    output = ops.NKIMatmul()(stationary=normed_T, moving=w)
    return output  # noqa: RET504


def softmax(x: Any) -> Any:
    output = ops.NKISoftmax()(data=x)
    return output  # noqa: RET504


def swiglu(x: Any, w_up: Any, w_down: Any, w_gate: Any) -> Any:
    x_T = ops.NKITranspose()(data=x)
    gate = ops.NKIMatmul()(stationary=x_T, moving=w_gate)
    up = ops.NKIMatmul()(stationary=x_T, moving=w_up)
    silu = ops.NKIActivation(op="silu")(data=gate)
    hidden = ops.NKITensorTensor(op="multiply")(data1=silu, data2=up)
    hidden_T = ops.NKITranspose()(data=hidden)
    output = ops.NKIMatmul()(stationary=hidden_T, moving=w_down)
    return output  # noqa: RET504


def attention(q: Any, k: Any, v: Any) -> Any:
    q_T = ops.NKITranspose()(data=q)
    k_T = ops.NKITranspose()(data=k)
    scores = ops.NKIMatmul()(stationary=q_T, moving=k_T)
    scaled = ops.NKITensorScalar(op0="multiply")(data=scores, operand0=0.125)
    weights = ops.NKISoftmax()(data=scaled)
    weights_T = ops.NKITranspose()(data=weights)
    output = ops.NKIMatmul()(stationary=weights_T, moving=v)
    return output  # noqa: RET504


def transposed_product(a: Any, b: Any) -> Any:
    product = ops.NKIMatmul()(stationary=a, moving=b)
    output = ops.NKITranspose()(data=ops.NKIActivation(op="tanh", scale=0.1)(data=product))
    return output  # noqa: RET504


def softmax_matmul(x: Any, v: Any) -> Any:
    weights_T = ops.NKITranspose()(data=ops.NKISoftmax()(data=x))
    output = ops.NKIMatmul()(stationary=weights_T, moving=v)
    return output  # noqa: RET504


def bmm_softmax(lhs: Any, rhs: Any) -> Any:
    """A batch of products, and their softmax: columns of a batch too."""
    lhs_T = ops.NKITranspose()(data=lhs)
    scores = ops.NKIMatmul()(stationary=lhs_T, moving=rhs)
    output = ops.NKISoftmax()(data=scores)
    return output  # noqa: RET504


def largest_of_shared_product(x: Any, w: Any) -> Any:
    """The largest of each row of a batch of products, whose factor is the same for a part of the batch."""
    x_T = ops.NKITranspose()(data=x)
    product = ops.NKIMatmul()(stationary=x_T, moving=w)
    output = ops.NKITensorReduce(op="max")(data=product)
    return output  # noqa: RET504


def weighted_rows(x: Any, g: Any) -> Any:
    """Rows times the same row, and what each is after that is taken off its largest."""
    product = ops.NKITensorRow(op="multiply")(data=x, row=g)
    highest = ops.NKITensorReduce(op="max")(data=product)
    output = ops.NKITensorScalar(op0="subtract")(data=product, operand0=highest)
    return output  # noqa: RET504


def spread(x: Any) -> Any:
    """A column: how far each row's largest element is from its smallest."""
    highest = ops.NKITensorReduce(op="max", axis=1)(data=x)
    lowest = ops.NKITensorReduce(op="min", axis=1)(data=x)
    output = ops.NKITensorTensor(op="subtract")(data1=highest, data2=lowest)
    return output  # noqa: RET504


def shifted_rows(x: Any, shift: Any) -> Any:
    """A column taken off every row, from the other side, and halved."""
    scalar = ops.NKITensorScalar(op0="subtract", reverse0=True, op1="multiply", operand1=0.5)
    output = scalar(data=x, operand0=shift)
    return output  # noqa: RET504


def moved_rows(x: Any, y: Any, step: Any) -> Any:
    """A column times rows taken off others, moved by a number, times the rows again."""
    weighted = ops.NKIScalarTensorTensor(op0="multiply", op1="subtract", reverse1=True)
    nearer = weighted(data=x, operand0=step, operand1=y)
    output = ops.NKIScalarTensorTensor(op0="add", op1="multiply")(data=nearer, operand0=0.5, operand1=x)
    return output  # noqa: RET504


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _rms(x: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-6))


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def _float32(**shapes: tuple[int, ...]) -> Specs:
    return {name: (shape, "float32") for name, shape in shapes.items()}


WORKLOADS: Mapping[str, Workload] = {
    "matmul": Workload(matmul, np.matmul, _float32(lhs=(256, 512), rhs=(512, 1024))),
    "matmul_bfloat16": Workload(
        matmul,
        np.matmul,
        {"lhs": ((256, 512), "bfloat16"), "rhs": ((512, 1024), "bfloat16")},
        tolerance=1e-2,
    ),
    "rmsnorm_matmul": Workload(
        rmsnorm_matmul, lambda x, w: _rms(x) @ w, _float32(x=(256, 512), w=(512, 1024))
    ),
    "softmax": Workload(softmax, _softmax, _float32(x=(256, 2048))),
    "swiglu": Workload(
        swiglu,
        lambda x, up, down, gate: (_silu(x @ gate) * (x @ up)) @ down,
        _float32(x=(256, 256), w_up=(256, 1024), w_down=(1024, 256), w_gate=(256, 1024)),
    ),
    "attention": Workload(
        attention,
        lambda q, k, v: _softmax(q @ k.T * 0.125) @ v,
        _float32(q=(256, 64), k=(512, 64), v=(512, 64)),
    ),
    "narrow_matmul": Workload(matmul, np.matmul, _float32(lhs=(32, 256), rhs=(256, 512))),
    "transposed_product": Workload(
        transposed_product, lambda a, b: np.tanh(0.1 * (a.T @ b)).T, _float32(a=(256, 256), b=(256, 512))
    ),
    "softmax_matmul_bfloat16": Workload(
        softmax_matmul,
        lambda x, v: _softmax(x) @ v,
        {"x": ((256, 1024), "bfloat16"), "v": ((1024, 64), "bfloat16")},
        tolerance=3e-2,
    ),
    "bmm_softmax": Workload(
        bmm_softmax,
        lambda lhs, rhs: np.stack([_softmax(item) for item in lhs @ rhs]),
        _float32(lhs=(3, 256, 64), rhs=(3, 64, 1024)),
    ),
    "shared": Workload(
        largest_of_shared_product,
        lambda x, w: (x @ w[:, None]).max(axis=-1),
        _float32(x=(2, 3, 128, 128), w=(2, 128, 64)),
    ),
    "weighted": Workload(
        weighted_rows,
        lambda x, g: x * g - (x * g).max(axis=1, keepdims=True),
        {"x": ((250, 1536), "bfloat16"), "g": ((1536,), "bfloat16")},
        tolerance=1e-2,
    ),
    "spread": Workload(spread, lambda x: x.max(axis=1) - x.min(axis=1), _float32(x=(512, 1536))),
    "moved": Workload(
        moved_rows,
        lambda x, y, step: (y - x * step[:, None] + 0.5) * x,
        _float32(x=(256, 1024), y=(256, 1024), step=(256,)),
    ),
    "shifted": Workload(
        shifted_rows, lambda x, shift: (shift[:, None] - x) * 0.5, _float32(x=(250, 1000), shift=(250,))
    ),
}
