"""Problems of `seeds/` in the operators of the knob surface: what their files `workload.json` are made of.

    .venv/bin/python -m tests.support.problem_workloads    # writes the files anew

A function takes a problem's inputs, by name and in order; what it computes is held against the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import seeds
from targets.nki.knobs import ops
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.tracing import trace_workload
from targets.nki.knobs.workload_file import WORKLOAD_FILE, dump_graphs

FOLDER = Path(seeds.__file__).parent / "problems"


def adamw(theta: Any, g: Any, m: Any, v: Any) -> Any:
    rate, decay, beta_1, beta_2, epsilon = 1e-2, 1e-3, 0.9, 0.999, 1e-8
    m_part = ops.NKITensorScalar(op0="multiply")(data=m, operand0=beta_1)
    weighted = ops.NKIScalarTensorTensor(op0="multiply", op1="add")
    mean = weighted(data=g, operand0=1 - beta_1, operand1=m_part)
    squares = ops.NKIActivation(op="square")(data=g)
    # The mean of squares over 1 - beta_2, which corrects it after one step.
    square = weighted(data=v, operand0=beta_2 / (1 - beta_2), operand1=squares)
    root = ops.NKIActivation(op="sqrt")(data=square)
    denominator = ops.NKITensorScalar(op0="add")(data=root, operand0=epsilon)
    inverse = ops.NKIReciprocal()(data=denominator)
    ratio = ops.NKITensorTensor(op="multiply")(data1=mean, data2=inverse)
    decayed = ops.NKITensorScalar(op0="multiply")(data=theta, operand0=1 - rate * decay)
    out = weighted(data=ratio, operand0=-rate, operand1=decayed)
    return out  # noqa: RET504 - as workloads are written


def add_rmsnorm_matmul(x: Any, w: Any, z: Any, g: Any) -> Any:
    y = ops.NKITensorTensor(op="add")(data1=x, data2=z)
    normed = ops.NKIRMSNorm(eps=1e-5)(data=y)
    normed_T = ops.NKITranspose()(data=normed)
    # Features lie on the partitions here, where g is a column.
    scaled_T = ops.NKITensorScalar(op0="multiply")(data=normed_T, operand0=g)
    out = ops.NKIMatmul()(stationary=scaled_T, moving=w)
    return out  # noqa: RET504


def bmm(lhs: Any, rhs: Any) -> Any:
    lhs_T = ops.NKITranspose()(data=lhs)
    out = ops.NKIMatmul()(stationary=lhs_T, moving=rhs)
    return out  # noqa: RET504


def bmm_softmax(lhs: Any, rhs: Any) -> Any:
    lhs_T = ops.NKITranspose()(data=lhs)
    scores = ops.NKIMatmul()(stationary=lhs_T, moving=rhs)
    out = ops.NKISoftmax()(data=scores)
    return out  # noqa: RET504


def lora(x: Any, w: Any, a: Any, b: Any) -> Any:
    x_T = ops.NKITranspose()(data=x)
    low_T = ops.NKIMatmul()(stationary=a, moving=x_T)
    wide = ops.NKIMatmul()(stationary=x_T, moving=w)
    narrow = ops.NKIMatmul()(stationary=low_T, moving=b)
    out = ops.NKITensorTensor(op="add")(data1=wide, data2=narrow)
    return out  # noqa: RET504


def matmul(lhs: Any, rhs: Any) -> Any:
    lhs_T = ops.NKITranspose()(data=lhs)
    out = ops.NKIMatmul()(stationary=lhs_T, moving=rhs)
    return out  # noqa: RET504


def matmul_add_rmsnorm(x: Any, w: Any, z: Any, g: Any) -> Any:
    x_T = ops.NKITranspose()(data=x)
    product = ops.NKIMatmul()(stationary=x_T, moving=w)
    y = ops.NKITensorTensor(op="add")(data1=product, data2=z)
    normed = ops.NKIRMSNorm(eps=1e-5)(data=y)
    out = ops.NKITensorRow(op="multiply")(data=normed, row=g)
    return out  # noqa: RET504


def rmsnorm_matmul(x: Any, w: Any) -> Any:
    normed = ops.NKIRMSNorm()(data=x)
    normed_T = ops.NKITranspose()(data=normed)
    out = ops.NKIMatmul()(stationary=normed_T, moving=w)
    return out  # noqa: RET504


def silu(x: Any) -> Any:
    out = ops.NKIActivation(op="silu")(data=x)
    return out  # noqa: RET504


def swiglu(x: Any, w_up: Any, w_down: Any, w_gate: Any) -> Any:
    x_T = ops.NKITranspose()(data=x)
    # Hidden features on the partitions: so the last product contracts over them as they are.
    gate_T = ops.NKIMatmul()(stationary=w_gate, moving=x_T)
    up_T = ops.NKIMatmul()(stationary=w_up, moving=x_T)
    silu_T = ops.NKIActivation(op="silu")(data=gate_T)
    hidden_T = ops.NKITensorTensor(op="multiply")(data1=silu_T, data2=up_T)
    out = ops.NKIMatmul()(stationary=hidden_T, moving=w_down)
    return out  # noqa: RET504


def transpose_matmul(lhs: Any, rhs: Any) -> Any:
    out = ops.NKIMatmul()(stationary=lhs, moving=rhs)
    return out  # noqa: RET504


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(adamw, add_rmsnorm_matmul, bmm, bmm_softmax, lora, matmul, matmul_add_rmsnorm, rmsnorm_matmul),
        *(silu, swiglu, transpose_matmul),
    )
}


def graph_of(name: str, size: str, target: str = "trn2") -> Graph:
    """What a problem's function is traced to at one of its sizes."""
    spec = seeds.load_problem(name).spec
    dims = spec.dims(size)
    specs = {item.name: (item.resolve_kernel_shape(dims), item.dtype) for item in spec.inputs}
    return trace_workload(FUNCTIONS[name], specs, target=target, name=name)


def file_of(name: str) -> bytes:
    """The file that a problem is to have."""
    return dump_graphs({size: graph_of(name, size) for size in seeds.load_problem(name).spec.sizes})


if __name__ == "__main__":
    for each in FUNCTIONS:
        (FOLDER / each / WORKLOAD_FILE).write_bytes(file_of(each))
