"""Element-wise instructions, reductions and scans."""

from __future__ import annotations

import numpy as np

from nki_sim.arrays import Float, load, store
from nki_sim.semantics.common import REDUCTIONS, UNARY, Semantics, Values, Views, apply, operand, rows


def _tensor_tensor(views: Views, values: Values) -> None:
    store(views["dst"], apply(values["op"], rows(views["data1"]), rows(views["data2"])))


def _first_op(views: Views, values: Values) -> Float:
    scalar = operand(views, values, "operand0")
    return apply(values["op0"], rows(views["data"]), scalar, values.get("reverse0"))


def _tensor_scalar(views: Views, values: Values) -> None:
    """(data op0 operand0) op1 operand1."""
    result = _first_op(views, values)
    if "op1" in values:
        result = apply(values["op1"], result, operand(views, values, "operand1"), values.get("reverse1"))
    store(views["dst"], result)


def _tensor_scalar_reduce(views: Views, values: Values) -> None:
    result = _first_op(views, values)
    store(views["dst"], result)
    store(views["reduce_res"], REDUCTIONS[str(values["reduce_op"])](result, axis=1, keepdims=True))


def _tensor_reduce(views: Views, values: Values) -> None:
    """The innermost axes; on a fully written tile a reduction over all free axes gives [P, 1]."""
    axes = values["axis"]
    assert isinstance(axes, tuple)
    result = REDUCTIONS[str(values["op"])](load(views["data"]), axis=axes)
    store(views["dst"], -result if values.get("negate") else result)


def _scan(views: Views, values: Values) -> None:
    """res[i] = (data0[i] op0 res[i-1]) op1 data1[i]; res[-1] is `initial`."""
    data0, data1 = rows(views["data0"]), rows(views["data1"])
    state = np.broadcast_to(operand(views, values, "initial"), (len(data0), 1))
    out = np.empty_like(data0)
    for i in range(data0.shape[1]):
        state = apply(values["op0"], data0[:, i : i + 1], state, values.get("reverse0"))
        state = apply(values["op1"], state, data1[:, i : i + 1], values.get("reverse1"))
        out[:, i : i + 1] = state
    store(views["dst"], out)


def _activation(views: Views, values: Values) -> None:
    """op(data * scale + bias); with `reduce_res` also its sum over the free axis."""
    value = rows(views["data"])
    scale = operand(views, values, "scale")
    if isinstance(scale, np.ndarray) or scale != 1.0:
        value = value * scale
    if "bias" in views or "bias" in values:
        value = value + operand(views, values, "bias")
    result = UNARY[str(values["op"])](value)
    store(views["dst"], result)
    if "reduce_res" in views:
        reduction = REDUCTIONS[str(values.get("reduce_op", "add"))]
        store(views["reduce_res"], reduction(result, axis=1, keepdims=True))


def _reciprocal(views: Views, values: Values) -> None:
    del values
    store(views["dst"], np.reciprocal(rows(views["data"])))


SEMANTICS: dict[str, Semantics] = {
    "tensor_tensor": _tensor_tensor,
    "tensor_scalar": _tensor_scalar,
    "scalar_tensor_tensor": _tensor_scalar,
    "tensor_scalar_reduce": _tensor_scalar_reduce,
    "tensor_reduce": _tensor_reduce,
    "tensor_tensor_scan": _scan,
    "activation": _activation,
    "activation_reduce": _activation,
    "reciprocal": _reciprocal,
}
