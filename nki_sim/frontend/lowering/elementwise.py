"""Element-wise functions of one or two tiles.

Two tiles of one shape become a `tensor_tensor`. A number or a float32 column of one element per partition
becomes a `tensor_scalar`, as the documents recommend. Everything else is broadcast by access patterns. A
function of one tile is an `activation_recipe` of that name unless `UNARY` has another recipe.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from nki_sim.frontend.argument_values import LanguageFunction
from nki_sim.frontend.lowering.emit import (
    MaskBoxes,
    broadcast_tiles,
    broadcast_to_shape,
    declare_tile,
    ensure_in_sbuf,
    is_column,
    issue_instruction,
    require_on_chip,
)  # fmt: skip
from nki_sim.frontend.lowering.promotion import as_number, dtype_of, promote_types
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.functions import ACTIVATIONS, ALU

BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "mod", "fmod",
    "abs_max", "abs_min",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    "logical_and", "logical_or", "logical_xor",
)  # fmt: skip


def apply_binary(op: str, x: Any, y: Any, dtype: Any = None, *, where: MaskBoxes = None) -> Tensor:
    """x op y; at least one is a tile, shapes broadcast."""
    if op not in ALU:
        fail("unsupported", f"not supported yet: nl.{op}")
    wanted = dtype or promote_types(x, y)
    left, right = as_number(x), as_number(y)
    if left is not None and right is not None:
        fail("argument_type", f"nl.{op} of two numbers", "at least one is a tile; compute with Python")
    if right is not None:
        return _apply_with_number(op, require_on_chip(f"nl.{op}: x", x), right, wanted, where)
    data = require_on_chip(f"nl.{op}: y", y)
    if left is None:
        return _apply_to_tiles(op, require_on_chip(f"nl.{op}: x", x), data, dtype=wanted, where=where)
    if op != "power":
        return _apply_with_number(op, data, left, wanted, where, reverse=True)
    base = declare_tile((data.shape[0], 1), "float32")
    issue_instruction("memset", dst=base, value=left)
    return _apply_to_tiles(op, base, data, dtype=wanted, where=where)


def _apply_with_number(
    op: str, data: Tensor, value: float, dtype: Any, where: MaskBoxes, *, reverse: bool = False
) -> Tensor:
    result = declare_tile(data.shape, dtype)
    issue_instruction(
        "tensor_scalar", where, dst=result, data=data, op0=op_value(op), operand0=value, reverse0=reverse
    )
    return result


def _apply_to_tiles(op: str, x: Tensor, y: Tensor, *, dtype: Any, where: MaskBoxes) -> Tensor:
    shape, (x, y) = broadcast_tiles(x, y)
    result = declare_tile(shape, dtype)
    for data, column, reverse in ((x, y, False), (y, x, True)):
        if data.shape == shape and _is_scalar_column(column, shape) and not (op == "power" and reverse):
            issue_instruction(
                "tensor_scalar",
                where,
                dst=result,
                data=data,
                op0=op_value(op),
                operand0=column,
                reverse0=reverse,
            )
            return result
    x, y = _place_operands(op, broadcast_to_shape(x, shape), broadcast_to_shape(y, shape), where=where)
    issue_instruction("tensor_tensor", where, dst=result, data1=x, data2=y, op=op_value(op))
    return result


def _is_scalar_column(column: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether an operand is a column that `tensor_scalar` takes, rather than a tile like the other one."""
    fits = column.shape[0] == shape[0] and column.shape != shape
    return fits and is_column(column) and dtype_of(column) == "float32"


def _place_operands(op: str, x: Tensor, y: Tensor, *, where: MaskBoxes) -> tuple[Tensor, Tensor]:
    """Move operands where the engine can read them: not both in PSUM, and none there for GpSimd's powers."""
    if op == "power":
        return ensure_in_sbuf(x, where), ensure_in_sbuf(y, where)
    both = x.buffer == y.buffer == "psum"
    return x, ensure_in_sbuf(y, where) if both else y


@cache
def op_value(name: str) -> LanguageFunction:
    """Return one object per name, because calls are recognised by the identity of their arguments."""
    return LanguageFunction(name)


Recipe = Callable[[Tensor, Tensor, MaskBoxes], None]
"""Emits instructions that fill the first tile from the second."""


def activation_recipe(op: str) -> Recipe:
    def emit(result: Tensor, x: Tensor, where: MaskBoxes) -> None:
        issue_instruction("activation", where, dst=result, op=op_value(op), data=x)

    return emit


def tensor_scalar_recipe(
    op0: str, operand0: float, op1: str | None = None, operand1: float | None = None
) -> Recipe:
    """(x op0 operand0) op1 operand1."""
    second: dict[str, Any] = {} if op1 is None else {"op1": op_value(op1), "operand1": operand1}

    def emit(result: Tensor, x: Tensor, where: MaskBoxes) -> None:
        issue_instruction(
            "tensor_scalar", where, dst=result, data=x, op0=op_value(op0), operand0=operand0, **second
        )

    return emit


def _subtract_remainder(
    result: Tensor, x: Tensor, near: Tensor, op: str, by: float, *, where: MaskBoxes
) -> None:
    """x - (near op by)."""
    issue_instruction(
        "scalar_tensor_tensor", where, dst=result, data=near, op0=op_value(op), operand0=by,
        op1=op_value("subtract"), operand1=x, reverse1=True,
    )  # fmt: skip


_INTEGRAL = 2.0**23
"""From this magnitude on every float32 is an integer."""


def _integral_recipe(op: str, divisor: float) -> Recipe:
    """x without its fraction, x - (x op divisor); also for infinity, which has no remainder."""

    def emit(result: Tensor, x: Tensor, where: MaskBoxes) -> None:
        x, near = ensure_in_sbuf(x, where), declare_tile(x.shape, "float32")
        tensor_scalar_recipe("minimum", _INTEGRAL, "maximum", -_INTEGRAL)(near, x, where)
        _subtract_remainder(result, x, near, op, divisor, where=where)

    return emit


def _sine_recipe(shift: float) -> Recipe:
    """sin(x + shift), reduced to [-pi, pi], where ScalarE's sine is valid.

    Only whole turns are subtracted, so an angle within the range stays exact.
    """

    def emit(result: Tensor, x: Tensor, where: MaskBoxes) -> None:
        moved, angle = declare_tile(x.shape, "float32"), declare_tile(x.shape, "float32")
        tensor_scalar_recipe("add", shift + math.pi)(moved, x, where)
        _subtract_remainder(moved, moved, moved, "mod", 2 * math.pi, where=where)
        issue_instruction(
            "scalar_tensor_tensor", where, dst=angle, data=x, op0=op_value("add"), operand0=shift,
            op1=op_value("subtract"), operand1=moved,
        )  # fmt: skip
        # Rounding may carry an angle past the edge, where the function is undefined.
        tensor_scalar_recipe("minimum", math.pi, "maximum", -math.pi)(angle, angle, where)
        activation_recipe("sin")(result, angle, where)

    return emit


def _emit_tangent(result: Tensor, x: Tensor, where: MaskBoxes) -> None:
    parts = [declare_tile(x.shape, "float32") for _ in range(2)]
    for part, shift in zip(parts, (0.0, math.pi / 2), strict=True):
        _sine_recipe(shift)(part, x, where)
    issue_instruction(
        "tensor_tensor", where, dst=result, data1=parts[0], data2=parts[1], op=op_value("divide")
    )


_STEEP = 2.0**30
"""Beyond this magnitude the arctangent is pi / 2 in float32."""


def _emit_arctangent(result: Tensor, x: Tensor, where: MaskBoxes) -> None:
    """2 arctan(x / (1 + sqrt(1 + x^2))): the argument stays below 1, where ScalarE's arctangent is valid."""
    slope, root = declare_tile(x.shape, "float32"), declare_tile(x.shape, "float32")
    tensor_scalar_recipe("minimum", _STEEP, "maximum", -_STEEP)(slope, x, where)
    issue_instruction("tensor_tensor", where, dst=root, data1=slope, data2=slope, op=op_value("multiply"))
    tensor_scalar_recipe("add", 1.0)(root, root, where)
    activation_recipe("sqrt")(root, root, where)
    issue_instruction(
        "scalar_tensor_tensor", where, dst=slope, data=root, op0=op_value("add"), operand0=1.0,
        op1=op_value("divide"), operand1=slope, reverse1=True,
    )  # fmt: skip
    activation_recipe("arctan")(slope, slope, where)
    tensor_scalar_recipe("multiply", 2.0)(result, slope, where)


def _emit_reciprocal(result: Tensor, x: Tensor, where: MaskBoxes) -> None:
    issue_instruction("reciprocal", where, dst=result, data=x)


def _emit_copy(result: Tensor, x: Tensor, where: MaskBoxes) -> None:
    issue_instruction("tensor_copy", where, dst=result, src=x)


def _emit_invert(result: Tensor, x: Tensor, where: MaskBoxes) -> None:
    """Exclusive or with all ones, as documented."""
    ones = (1 << 8 * x.dtype.itemsize) - 1 if x.dtype.kind == "uint" else -1
    tensor_scalar_recipe("bitwise_xor", ones)(result, x, where)


UNARY: dict[str, Recipe] = {
    "copy": _emit_copy,
    "reciprocal": _emit_reciprocal,
    "negative": tensor_scalar_recipe("multiply", -1.0),
    "logical_not": tensor_scalar_recipe("equal", 0.0),
    "invert": _emit_invert,
    "floor": _integral_recipe("mod", 1.0),
    "ceil": _integral_recipe("mod", -1.0),
    "trunc": _integral_recipe("fmod", 1.0),
    "sin": _sine_recipe(0.0),
    "cos": _sine_recipe(math.pi / 2),
    "tan": _emit_tangent,
    "arctan": _emit_arctangent,
}


def apply_unary(name: str, x: Any, dtype: Any = None, *, where: MaskBoxes = None) -> Tensor:
    """Apply a function to every element; the result has the type of `x` unless `dtype` is given."""
    data = require_on_chip(f"nl.{name}: x", x)
    recipe = UNARY.get(name) or activation_recipe(name)
    result = declare_tile(data.shape, dtype or data.dtype)
    recipe(result, data, where)
    return result


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: partial(apply_unary, name) for name in sorted({*ACTIVATIONS, *UNARY})},
    **{name: partial(apply_binary, name) for name in BINARY},
}
