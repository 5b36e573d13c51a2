"""Shared arithmetic of all instructions: operators by name, and the number types they compute in.

Arithmetic operators compute in float32. Bitwise operators take integers as bit patterns of their own width
and cut the result to the width of the destination; right shifts fill with zeros. GpSimd computes sums,
products and comparisons of 32-bit integers in wrapping integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nki_sim.forms import ParamValue
from nki_sim.functions import BITWISE
from nki_sim.semantics.activations import UNARY
from nki_sim.semantics.arrays import Array, Float, load_float32, store

Views = Mapping[str, Array]
Values = Mapping[str, ParamValue]
Semantics = Callable[[Views, Values], None]
Touched = Callable[[Views, Values], dict[str, Array]]
"""Which elements [P, F] of its `partial` operands an instruction touches; a column stands for whole rows."""
Binary = Callable[[Any, Any], Any]


def _ignore_second(function: Callable[[Any], Any]) -> Binary:
    return lambda a, _: function(a)


BINARY: dict[str, Binary] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "mod": np.mod,
    "fmod": np.fmod,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": _ignore_second(np.logical_not),
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
    "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
    **{name: _ignore_second(UNARY[name]) for name in ("abs", "rsqrt", "reciprocal", "relu", "square")},
}

# Shifts by the width or more give 0 once cut to 32 bits or fewer.
_LONGEST_SHIFT = np.uint64(63)

BITS: dict[str, Binary] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": lambda a, b: np.left_shift(a, np.minimum(b, _LONGEST_SHIFT)),
    "right_shift": lambda a, b: np.right_shift(a, np.minimum(b, _LONGEST_SHIFT)),
    "invert": _ignore_second(np.invert),
}


def _reduce_magnitude(value: Any, axis: int, keepdims: bool, *, most: bool) -> Any:
    """The number of the largest or smallest magnitude along an axis; the last one of several."""
    sizes = np.flip(np.abs(value), axis)
    place = value.shape[axis] - 1 - np.expand_dims((np.argmax if most else np.argmin)(sizes, axis), axis)
    found = np.take_along_axis(value, place, axis)
    return found if keepdims else found.squeeze(axis)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add.reduce,
    "subtract": np.subtract.reduce,
    "multiply": np.multiply.reduce,
    "maximum": np.maximum.reduce,
    "minimum": np.minimum.reduce,
    "abs_max": partial(_reduce_magnitude, most=True),
    "abs_min": partial(_reduce_magnitude, most=False),
    "average": np.mean,
    "logical_and": np.logical_and.reduce,
    "logical_or": np.logical_or.reduce,
    "logical_xor": np.logical_xor.reduce,
    "bitwise_and": np.bitwise_and.reduce,
    "bitwise_or": np.bitwise_or.reduce,
    "bitwise_xor": np.bitwise_xor.reduce,
}

# Initial values of accumulation.
IDENTITIES = {
    "add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf, "abs_max": 0.0,
    "abs_min": np.inf,
}  # fmt: skip


def load_rows(view: Array) -> Float:
    """The view as [partitions, free] in float32."""
    value = load_float32(view)
    return value if value.ndim == 2 else value.reshape(value.shape[0], -1)


def load_bits(view: Array) -> Array:
    """The bit patterns as unsigned 64-bit integers, zero-extended."""
    return view.view(f"u{view.itemsize}").astype(np.uint64)


def store_bits(view: Array, value: Any) -> None:
    """Store integers cut to the width of the view."""
    store(view, value.astype(f"u{view.itemsize}").view(view.dtype))


def store_sum(view: Array, product: Float, accumulate: ParamValue | None) -> None:
    """Write a product to PSUM, or add it in float32 to what is there; it is rounded to the view's type."""
    if product.shape != view.shape:
        product = product.reshape(view.shape)
    if accumulate:
        np.add(view, product, out=view, casting="unsafe")
    else:
        store(view, product)


@dataclass(frozen=True, slots=True)
class NumberDomain:
    """The kind of numbers that an instruction computes in: how to read, combine and write them."""

    load: Callable[[Array], Array]
    constant: Callable[[float], Any]
    operators: Mapping[str, Binary]
    store: Callable[[Array, Any], None]

    def read_operand(self, views: Views, values: Values, role: str) -> Any:
        """A tile [P, F] or [P, 1], or the constant; 0 if an operator of one operand has no second one."""
        if role in views:
            view = views[role]
            return self.load(view if view.ndim == 2 else view.reshape(view.shape[0], -1))
        return self.constant(as_float(values.get(role, 0.0)))

    def apply(self, op: ParamValue, left: Any, right: Any, reverse: ParamValue | None = False) -> Array:
        function = self.operators[str(op)]
        return np.asarray(function(right, left) if reverse else function(left, right))


def _as_float32(function: Binary) -> Binary:
    return lambda a, b: np.asarray(function(a, b), dtype=np.float32)


FLOATS = NumberDomain(load_float32, np.float32, {n: _as_float32(f) for n, f in BINARY.items()}, store)
BIT_PATTERNS = NumberDomain(
    load_bits, lambda value: np.uint64(int(value) & 0xFFFFFFFFFFFFFFFF), BITS, store_bits
)
INTEGERS = NumberDomain(
    lambda view: view.astype(np.int64), lambda value: np.int64(int(value)), BINARY,
    lambda view, value: store_bits(view, np.asarray(value, dtype=np.int64)),
)  # fmt: skip


def select_domain(op: ParamValue, *, native: bool = False) -> NumberDomain:
    """What an operator computes in; `native` selects integers if the engine has them."""
    if op in BITWISE:
        return BIT_PATTERNS
    return INTEGERS if native else FLOATS


def read_operand(views: Views, values: Values, role: str) -> Any:
    """A tile [P, F] or [P, 1] in float32, or the constant."""
    return FLOATS.read_operand(views, values, role)


def as_float(value: ParamValue) -> float:
    assert isinstance(value, int | float)
    return float(value)


def apply_operator(op: ParamValue, left: Any, right: Any, reverse: ParamValue | None = False) -> Float:
    """Apply an arithmetic operator in float32."""
    return FLOATS.apply(op, left, right, reverse)


def accumulate_registers(views: Views, values: Values, result: Float, op: str) -> None:
    """Reduce [P, F] over the free axis into the engine's registers by `reduce_cmd`, and output them.

    Without a command the instruction resets and reduces.
    """
    registers = views.get("reduce_regs")
    if registers is None:
        return
    command = str(values.get("reduce_cmd", "reset_reduce"))
    if command == "reset":
        registers[...] = IDENTITIES[op]
    elif command != "idle":
        part = REDUCTIONS[op](result, axis=1, keepdims=True)
        if command == "load_reduce":
            registers[...] = read_operand(views, values, "reduce_init")
        store(registers, part if command == "reset_reduce" else BINARY[op](registers, part))
    if "reduce_res" in views:
        value = load_float32(registers)
        store(views["reduce_res"], -value if values.get("reduce_res_negate") else value)
