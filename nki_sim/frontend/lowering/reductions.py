"""Reductions over free axes: one `tensor_reduce` for any axes.

The access pattern moves the reduced axes to the end. The partition axis is refused; the documents recommend a
transpose or a matmul with ones for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nki_sim.frontend.lowering.elementwise import apply_binary, apply_unary, op_value, tensor_scalar_recipe
from nki_sim.frontend.lowering.emit import Box, MaskBoxes, declare_tile, issue_instruction, require_on_chip
from nki_sim.frontend.tensor import Tensor, fail


def reduce_axes(
    op: str, x: Any, axis: Any, dtype: Any = None, keepdims: bool = False,
    *, where: MaskBoxes = None, negate: bool = False,
) -> Tensor:  # fmt: skip
    """Reduce a tile along `axis`; without `keepdims` drop those axes, but keep at least one free axis."""
    data = require_on_chip(f"nl.{op}: x", x)
    axes = free_axes(data, axis)
    kept = [dim for dim in range(1, data.ndim) if dim not in axes]
    result, whole = _declare_result(data, axes, dtype or data.dtype, keepdims=keepdims)
    order = (0, *kept, *axes)
    dst = result if where is None else whole._permute(order)
    issue_instruction(
        "tensor_reduce", _reorder_boxes(where, order, len(axes)), dst=dst, op=op_value(op),
        data=data._permute(order), axis=tuple(range(1 + len(kept), data.ndim)), negate=negate,
    )  # fmt: skip
    return result


def _declare_result(
    data: Tensor, axes: Sequence[int], dtype: Any, *, keepdims: bool
) -> tuple[Tensor, Tensor]:
    """Declare the result tile of a reduction; also return it with every axis of `data`."""
    sizes = [1 if dim in axes else size for dim, size in enumerate(data.shape)]
    result = declare_tile(
        sizes if keepdims else [size for dim, size in enumerate(sizes) if dim not in axes], dtype
    )
    whole = result
    for dim in axes:
        whole = whole._expand_dim(dim) if whole.ndim < data.ndim else whole
    return result, whole


def free_axes(data: Tensor, axis: Any) -> tuple[int, ...]:
    """Return the given axes, counted from the front and in the given order; refuses the partition axis."""
    given = axis if isinstance(axis, tuple | list) else (axis,)
    if not given or any(type(item) is not int for item in given):
        fail("reduce_axis", f"axis={axis!r} is not an axis or a list of axes")
    axes = sorted({item + data.ndim if item < 0 else item for item in given})
    if not axes or axes[0] < 1 or axes[-1] >= data.ndim:
        fail(
            "reduce_axis", f"axis={axis!r} of {data.name} {data.shape}: free axes are 1 to {data.ndim - 1}",
            "reduce over partitions with a transpose first, or a matmul with a column of ones",
        )  # fmt: skip
    return tuple(axes)


def _reorder_boxes(where: MaskBoxes, order: Sequence[int], reduced: int) -> MaskBoxes:
    """Reorder the axes of the boxes; no two boxes may reduce into one element."""
    if where is None:
        return None
    boxes = [tuple(box[axis] for axis in order) for box in where]
    rows = [box[: len(order) - reduced] for box in boxes]
    if any(_boxes_overlap(one, two) for at, one in enumerate(rows) for two in rows[:at]):
        fail(
            "unsupported_expression_in_mask", "the mask cuts the axes that are reduced into several parts",
            "mask the data before, for example with nisa.affine_select",
        )  # fmt: skip
    return boxes


def _boxes_overlap(one: Box, two: Box) -> bool:
    return all(a[0] < b[1] and b[0] < a[1] for a, b in zip(one, two, strict=True))


def count_reduced(data: Tensor, axis: Any) -> int:
    """How many elements a reduction over these axes combines."""
    total = 1
    for dim in free_axes(data, axis):
        total *= data.shape[dim]
    return total


def mean(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False, *, where: MaskBoxes = None) -> Tensor:
    """The average, computed in float32; for integers the result is float32 too."""
    data = require_on_chip("nl.mean: x", x)
    total = reduce_axes("add", data, axis, "float32", True, where=where)
    wanted = dtype or (data.dtype if data.dtype.kind == "float" else "float32")
    result, whole = _declare_result(data, free_axes(data, axis), wanted, keepdims=keepdims)
    tensor_scalar_recipe("multiply", 1.0 / count_reduced(data, axis))(whole, total, where)
    return result


def var(x: Any, axis: Any, dtype: Any = None, keepdims: bool = True, *, where: MaskBoxes = None) -> Tensor:
    """The mean squared deviation from the mean; the current namespace always keeps the axes."""
    data = require_on_chip("nl.var: x", x)
    apart = apply_binary(
        "subtract", data, mean(data, axis, "float32", True, where=where), "float32", where=where
    )
    wanted = dtype or (data.dtype if data.dtype.kind == "float" else "float32")
    return mean(apply_unary("square", apart, "float32", where=where), axis, wanted, keepdims, where=where)


def reduce_all(
    x: Any, axis: Any, dtype: Any = None, keepdims: bool = False, *, where: MaskBoxes = None
) -> Tensor:
    """1 where no element along the axes is 0."""
    data = require_on_chip("nl.all: x", x)
    held = apply_binary("not_equal", data, 0, "uint8", where=where)
    return reduce_axes("minimum", held, axis, dtype or data.dtype, keepdims, where=where)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": partial(reduce_axes, "add"),
    "prod": partial(reduce_axes, "multiply"),
    "max": partial(reduce_axes, "maximum"),
    "min": partial(reduce_axes, "minimum"),
    "mean": mean,
    "var": var,
    "all": reduce_all,
}
