"""What each instruction computes, on NumPy views: one function per operator of the table, same name.

A function takes the operands by role and the parameters; on-chip views are [partitions, free...]. It
computes in float32 and stores into the output roles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nki_sim.arrays import Array, Float, load, store
from nki_sim.forms import ParamValue

Views = Mapping[str, Array]
Values = Mapping[str, ParamValue]
Semantics = Callable[[Views, Values], None]

_erf = np.frompyfunc(math.erf, 1, 1)


def _sigmoid(x: Float) -> Float:
    return np.reciprocal(np.float32(1.0) + np.exp(-x))


def _softplus(x: Float) -> Float:
    return np.asarray(np.logaddexp(x, np.float32(0.0)), dtype=np.float32)


def _erf32(x: Float) -> Float:
    return np.asarray(_erf(x), dtype=np.float32)


def _gelu(x: Float) -> Float:
    return np.float32(0.5) * x * (np.float32(1.0) + _erf32(x * np.float32(math.sqrt(0.5))))


def _rsqrt(x: Float) -> Float:
    return np.reciprocal(np.sqrt(x))


UNARY: dict[str, Callable[[Float], Float]] = {
    "copy": lambda x: x,
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "square": np.square,
    "abs": np.abs,
    "sign": np.sign,
    "negative": np.negative,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "softplus": _softplus,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": np.reciprocal,
    "sin": np.sin,
    "erf": _erf32,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "arctan": np.arctan,
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "abs_max": lambda a, b: np.maximum(np.abs(a), np.abs(b)),
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add.reduce,
    "multiply": np.multiply.reduce,
    "maximum": np.maximum.reduce,
    "minimum": np.minimum.reduce,
}


def _rows(view: Array) -> Float:
    """[partitions, free] in float32."""
    value = load(view)
    return value if value.ndim == 2 else value.reshape(value.shape[0], -1)


def _operand(views: Views, values: Values, role: str) -> Any:
    """A tile [P, F] or [P, 1] in float32, or the constant."""
    return _rows(views[role]) if role in views else np.float32(_number(values[role]))


def _number(value: ParamValue) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _apply(op: ParamValue, left: Any, right: Any, reverse: ParamValue | None = False) -> Float:
    function = BINARY[str(op)]
    result = function(right, left) if reverse else function(left, right)
    return np.asarray(result, dtype=np.float32)


def _copy(views: Views, values: Values) -> None:
    """Bit-exact when the types are equal."""
    del values
    dst, src = views["dst"], views["src"]
    if src.dtype == dst.dtype and src.shape == dst.shape:
        np.copyto(dst, src)
    else:
        store(dst, src if src.dtype == dst.dtype else load(src))


def _dma_transpose(views: Views, values: Values) -> None:
    del values
    np.copyto(views["dst"], views["src"].T)


def _memset(views: Views, values: Values) -> None:
    store(views["dst"], np.float64(_number(values["value"])))


def _nc_matmul(views: Views, values: Values) -> None:
    """dst[M, N] = stationary[K, M].T @ moving[K, N], added to what is there when `accumulate`."""
    dst = views["dst"]
    product = _rows(views["stationary"]).T @ _rows(views["moving"])
    if not _promises_kept(views, values):
        product = np.full_like(product, np.nan)
    if product.shape != dst.shape:
        product = product.reshape(dst.shape)
    if values.get("accumulate"):
        np.add(dst, product, out=dst, casting="unsafe")
    else:
        store(dst, product)


def _promises_kept(views: Views, values: Values) -> bool:
    """Whether operands promised to hold only ones and zeros, which saves passes, really do."""
    kept = True
    if values.get("is_stationary_onezero"):
        kept &= _onezero(views["stationary"])
    if values.get("is_moving_onezero"):
        kept &= _onezero(views["moving"])
    if values.get("is_transpose"):
        kept &= _onezero(views["stationary"]) or _onezero(views["moving"])
    return kept


def _onezero(view: Array) -> bool:
    value = load(view)
    return bool(((value == 0.0) | (value == 1.0)).all())


def _nc_transpose(views: Views, values: Values) -> None:
    del values
    data, dst = views["data"], views["dst"]
    flat = data if data.ndim == 2 else data.reshape(data.shape[0], -1)
    np.copyto(dst, flat.T.reshape(dst.shape) if dst.ndim != 2 else flat.T)


def _tensor_tensor(views: Views, values: Values) -> None:
    store(views["dst"], _apply(values["op"], _rows(views["data1"]), _rows(views["data2"])))


def _first_op(views: Views, values: Values) -> Float:
    operand = _operand(views, values, "operand0")
    return _apply(values["op0"], _rows(views["data"]), operand, values.get("reverse0"))


def _tensor_scalar(views: Views, values: Values) -> None:
    """(data op0 operand0) op1 operand1."""
    result = _first_op(views, values)
    if "op1" in values:
        result = _apply(values["op1"], result, _operand(views, values, "operand1"), values.get("reverse1"))
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
    data0, data1 = _rows(views["data0"]), _rows(views["data1"])
    state = np.broadcast_to(_operand(views, values, "initial"), (len(data0), 1))
    out = np.empty_like(data0)
    for i in range(data0.shape[1]):
        state = _apply(values["op0"], data0[:, i : i + 1], state, values.get("reverse0"))
        state = _apply(values["op1"], state, data1[:, i : i + 1], values.get("reverse1"))
        out[:, i : i + 1] = state
    store(views["dst"], out)


def _activation(views: Views, values: Values) -> None:
    """op(data * scale + bias); with `reduce_res` also its sum over the free axis."""
    value = _rows(views["data"])
    scale = _operand(views, values, "scale")
    if isinstance(scale, np.ndarray) or scale != 1.0:
        value = value * scale
    if "bias" in views or "bias" in values:
        value = value + _operand(views, values, "bias")
    result = UNARY[str(values["op"])](value)
    store(views["dst"], result)
    if "reduce_res" in views:
        reduction = REDUCTIONS[str(values.get("reduce_op", "add"))]
        store(views["reduce_res"], reduction(result, axis=1, keepdims=True))


def _reciprocal(views: Views, values: Values) -> None:
    del values
    store(views["dst"], np.reciprocal(_rows(views["data"])))


SEMANTICS: dict[str, Semantics] = {
    "dma_copy": _copy,
    "dma_transpose": _dma_transpose,
    "tensor_copy": _copy,
    "memset": _memset,
    "nc_matmul": _nc_matmul,
    "nc_transpose": _nc_transpose,
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
