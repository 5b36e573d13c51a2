"""Arithmetic of element-wise instructions, reductions and scans."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nki_sim.functions import BITWISE, INTEGER_ALU
from nki_sim.semantics.activations import apply_activation, apply_parametric
from nki_sim.semantics.arrays import Array, Float, load_float32, store
from nki_sim.semantics.common import (
    BINARY,
    FLOATS,
    IDENTITIES,
    REDUCTIONS,
    NumberDomain,
    Semantics,
    Values,
    Views,
    accumulate_registers,
    apply_operator,
    load_bits,
    load_rows,
    read_operand,
    select_domain,
    store_bits,
)

_NATIVE = frozenset({np.dtype(np.int32), np.dtype(np.uint32)})


def _tensor_tensor(views: Views, values: Values) -> None:
    """On GpSimd, compute in integers if all three tiles have 32-bit integers."""
    op = values["op"]
    native = values.get("engine") == "gpsimd" and op in INTEGER_ALU
    numbers = select_domain(op, native=native and all(view.dtype in _NATIVE for view in views.values()))
    left, right = (numbers.read_operand(views, values, role) for role in ("data1", "data2"))
    numbers.store(views["dst"], numbers.apply(op, left, right))


def _apply_first_op(views: Views, values: Values, numbers: NumberDomain = FLOATS) -> Array:
    data, scalar = (numbers.read_operand(views, values, role) for role in ("data", "operand0"))
    return numbers.apply(values["op0"], data, scalar, values.get("reverse0"))


def _tensor_scalar(views: Views, values: Values) -> None:
    """(data op0 operand0) op1 operand1."""
    numbers = select_domain(values["op0"])
    result = _apply_first_op(views, values, numbers)
    if "op1" in values:
        scalar = numbers.read_operand(views, values, "operand1")
        result = numbers.apply(values["op1"], result, scalar, values.get("reverse1"))
    numbers.store(views["dst"], result)


def _tensor_scalar_reduce(views: Views, values: Values) -> None:
    result = _apply_first_op(views, values)
    store(views["dst"], result)
    accumulate_registers(views, values, result, str(values["reduce_op"]))


def _tensor_scalar_cumulative(views: Views, values: Values) -> None:
    """reg = (src op0 imm0) op1 reg, element after element; dst gets every value of reg."""
    registers, op = views["reduce_regs"], str(values["op1"])
    command = values["reduce_cmd"]
    if command == "reset_reduce":
        registers[...] = IDENTITIES[op]
    elif command == "load_reduce":
        registers[...] = read_operand(views, values, "imm1")
    terms = _contiguous_columns(
        apply_operator(values["op0"], load_rows(views["src"]), read_operand(views, values, "imm0"))
    )
    out, state, step = np.empty_like(terms), load_float32(registers)[:, 0], _ordered_operator(values, "1")
    for term, place in zip(terms, out, strict=True):
        state = step(term, state, out=place)
    store(registers, state[:, None])
    store(views["dst"], out.T)


def _tensor_tensor_scan(views: Views, values: Values) -> None:
    """res[i] = (data0[i] op0 res[i-1]) op1 data1[i]; res[-1] is `initial`.

    All partitions take a step at once, so columns are stored one after another.
    """
    data0, data1 = (
        _contiguous_columns(load_rows(views["data0"])),
        _contiguous_columns(load_rows(views["data1"])),
    )
    state = np.broadcast_to(read_operand(views, values, "initial"), (data0.shape[1], 1))[:, 0]
    out, between = np.empty_like(data0), np.empty(data0.shape[1], np.float32)
    first, second = _ordered_operator(values, "0"), _ordered_operator(values, "1")
    for left, right, place in zip(data0, data1, out, strict=True):
        first(left, state, out=between)
        state = second(between, right, out=place)
    store(views["dst"], out.T)


def _contiguous_columns(value: Float) -> Float:
    """The data as contiguous [free, partitions]."""
    return np.ascontiguousarray(value.T)


def _ordered_operator(values: Values, number: str) -> Callable[..., Float]:
    """The operator with its operands in the wanted order; it takes `out`, the array to write."""
    function: Callable[..., Float] = BINARY[str(values[f"op{number}"])]
    return (lambda a, b, out: function(b, a, out=out)) if values.get(f"reverse{number}") else function


def _tensor_reduce(views: Views, values: Values) -> None:
    """Reduce the innermost axes; on a fully written tile a reduction over all free axes gives [P, 1]."""
    axes, op, data = values["axis"], str(values["op"]), views["data"]
    assert isinstance(axes, tuple)
    if len(axes) > 1:
        data = data.reshape(*data.shape[: axes[0]], -1)
    if op in BITWISE:
        store_bits(views["dst"], REDUCTIONS[op](load_bits(data), axis=-1))
        return
    result = np.asarray(REDUCTIONS[op](load_float32(data), axis=-1), dtype=np.float32)
    store(views["dst"], -result if values.get("negate") else result)


def _tensor_partition_reduce(views: Views, values: Values) -> None:
    """Reduce all partitions into one: [P, F] -> [1, F]."""
    op, data = str(values["op"]), views["data"]
    if op in BITWISE:
        store_bits(views["dst"], REDUCTIONS[op](load_bits(data), axis=0))
        return
    store(views["dst"], np.asarray(REDUCTIONS[op](load_rows(data), axis=0), dtype=np.float32))


def _activation(views: Views, values: Values) -> None:
    """op(data * scale + bias), and its sum over the free axis into the registers."""
    value = load_rows(views["data"])
    scale = read_operand(views, values, "scale")
    if isinstance(scale, np.ndarray) or scale != 1.0:
        value = value * scale
    if "bias" in views or "bias" in values:
        value = value + read_operand(views, values, "bias")
    result = apply_activation(str(values["op"]), value)
    store(views["dst"], result)
    accumulate_registers(views, values, result, str(values.get("reduce_op", "add")))


def _activate2(views: Views, values: Values) -> None:
    """op((data op0 imm0) op1 imm1), and its reduction over the free axis into the registers."""
    value = load_rows(views["data"])
    for number in "01":
        if values[f"op{number}"] != "bypass":
            other = read_operand(views, values, f"imm{number}")
            value = apply_operator(values[f"op{number}"], value, other, values.get(f"reverse{number}"))
    if values["op"] == "prelu":
        result = apply_parametric(value, read_operand(views, values, "relu_param"))
    else:
        result = apply_activation(str(values["op"]), value)
    store(views["dst"], result)
    accumulate_registers(views, values, result, str(values.get("reduce_op", "add")))


def _exponential(views: Views, values: Values) -> None:
    """exp(src - max_value), and its sum over the free axis into the registers."""
    result = np.exp(load_rows(views["src"]) - read_operand(views, values, "max_value"))
    store(views["dst"], result)
    accumulate_registers(views, values, result, "add")


def _reciprocal(views: Views, values: Values) -> None:
    del values
    store(views["dst"], np.reciprocal(load_rows(views["data"])))


SEMANTICS: dict[str, Semantics] = {
    "tensor_tensor": _tensor_tensor,
    "tensor_scalar": _tensor_scalar,
    "scalar_tensor_tensor": _tensor_scalar,
    "tensor_scalar_reduce": _tensor_scalar_reduce,
    "tensor_scalar_cumulative": _tensor_scalar_cumulative,
    "tensor_reduce": _tensor_reduce,
    "tensor_partition_reduce": _tensor_partition_reduce,
    "tensor_tensor_scan": _tensor_tensor_scan,
    "activation": _activation,
    "activation_reduce": _activation,
    "activate2": _activate2,
    "exponential": _exponential,
    "reciprocal": _reciprocal,
}
