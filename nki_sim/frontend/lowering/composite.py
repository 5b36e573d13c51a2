"""Functions composed of others: softmax, RMS normalisation, selection by a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nki_sim.frontend.lowering.elementwise import apply_binary, apply_unary, tensor_scalar_recipe
from nki_sim.frontend.lowering.emit import (
    MaskBoxes,
    broadcast_tiles,
    broadcast_to_shape,
    declare_tile,
    issue_instruction,
    require_on_chip,
)
from nki_sim.frontend.lowering.promotion import as_number, promote_types
from nki_sim.frontend.lowering.reductions import reduce_axes
from nki_sim.frontend.tensor import Tensor


def softmax(
    x: Any, axis: Any = -1, dtype: Any = None, compute_dtype: Any = None, *, where: MaskBoxes = None
) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) over the axes; `compute_dtype` is another name for `dtype`."""
    data = require_on_chip("nl.softmax: x", x)
    largest = reduce_axes("maximum", data, axis, "float32", True, where=where)
    powers = apply_unary(
        "exp", apply_binary("subtract", data, largest, "float32", where=where), "float32", where=where
    )
    total = apply_unary(
        "reciprocal", reduce_axes("add", powers, axis, "float32", True, where=where), "float32", where=where
    )
    return apply_binary("multiply", powers, total, dtype or compute_dtype or data.dtype, where=where)


def rms_norm(  # noqa: PLR0917  the documented signature
    x: Any, w: Any, axis: Any, n: int, epsilon: float = 1e-6, dtype: Any = None, compute_dtype: Any = None,
    *, where: MaskBoxes = None,
) -> Tensor:  # fmt: skip
    """x / sqrt(sum(x * x) / n + epsilon) * w."""
    data = require_on_chip("nl.rms_norm: x", x)
    squares = reduce_axes(
        "add", apply_unary("square", data, "float32", where=where), axis, "float32", True, where=where
    )
    roots = declare_tile(squares.shape, "float32")
    tensor_scalar_recipe("multiply", 1.0 / n, "add", float(epsilon))(roots, squares, where)
    normal = apply_binary(
        "multiply", data, apply_unary("rsqrt", roots, "float32", where=where), "float32", where=where
    )
    return apply_binary("multiply", normal, w, dtype or compute_dtype or data.dtype, where=where)


_PREDICATES = frozenset({"uint8", "uint16", "uint32"})


def select_where(condition: Any, x: Any, y: Any, dtype: Any = None, *, where: MaskBoxes = None) -> Tensor:
    """x where the condition is not 0, else y; both may be numbers. A predicated copy of x over y."""
    test = require_on_chip("nl.where: condition", condition)
    if str(test.dtype) not in _PREDICATES:
        test = apply_binary("not_equal", test, 0, "uint8", where=where)
    tiles = [require_on_chip("nl.where", value) for value in (x, y) if as_number(value) is None]
    shape, (test, *_) = broadcast_tiles(test, *tiles)
    wanted = dtype or promote_types(x, y)
    result = declare_tile(shape, wanted)
    _fill_tile(result, y, where)
    chosen = declare_tile(shape, wanted)
    _fill_tile(chosen, x, where)
    issue_instruction(
        "tensor_copy_predicated", where, dst=result, src=chosen, predicate=broadcast_to_shape(test, shape)
    )
    return result


def _fill_tile(result: Tensor, value: Any, where: MaskBoxes) -> None:
    constant = as_number(value)
    if constant is not None:
        issue_instruction("memset", where, dst=result, value=constant)
        return
    shape, (_, source) = broadcast_tiles(result, value)
    issue_instruction("tensor_copy", where, dst=result, src=broadcast_to_shape(source, shape))


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "softmax": softmax,
    "rms_norm": rms_norm,
    "where": select_where,
}
