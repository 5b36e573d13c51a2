"""Legacy instructions whose calls differ from the table: expressions, shapes, axes, products, copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index as to_int
from typing import Any

from nki_sim.frontend.argument_values import engine as engines
from nki_sim.frontend.argument_values import matmul_perf_mode
from nki_sim.frontend.legacy.call_arguments import function_name, mask_result, product_boxes, to_operand_value
from nki_sim.frontend.legacy.index import Index
from nki_sim.frontend.legacy.masks import Box, Condition
from nki_sim.frontend.legacy.recorder import legacy_recorder
from nki_sim.frontend.legacy.tiles import Tile, as_tile, mask_boxes
from nki_sim.frontend.lowering import matrix, reductions
from nki_sim.frontend.lowering.elementwise import op_value
from nki_sim.frontend.lowering.emit import declare_tile, ensure_in_sbuf, issue_instruction, require_on_chip
from nki_sim.frontend.tensor import Tensor, fail

Values = dict[str, Any]

# Integer types that the documents of this namespace exclude from affine_select.
_WIDE = frozenset({"int32", "uint32"})


def _memset(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    """Handle memset: its shape is that of the tile; `dtype` may also be positional."""
    shape = tuple(to_int(size) for size in given["shape"])
    result = declare_tile(shape, dtype or given.get("dtype"))
    boxes = mask_boxes(mask, result.shape)
    issue_instruction("memset", boxes, dst=result, value=to_operand_value(given["value"]), engine=engine)
    return mask_result(result, boxes, result.shape)


def _nc_matmul(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    """Handle nc_matmul: the mask is over the moving operand; products are float32, whatever `dtype` says."""
    del dtype, engine
    stationary = require_on_chip("nisa.nc_matmul: stationary", to_operand_value(given.pop("stationary")))
    moving = require_on_chip("nisa.nc_matmul: moving", to_operand_value(given.pop("moving")))
    flags = {name: value for name, value in given.items() if value not in (None, ()) and name != "name"}
    if "perf_mode" in flags:
        flags["perf_mode"] = _perf_mode(flags["perf_mode"])
    boxes = None if mask is None else mask_boxes(mask, moving.shape)
    if boxes != []:
        stationary, moving = ensure_in_sbuf(stationary), ensure_in_sbuf(moving, boxes)
    result = matrix.matrix_product(stationary, moving, boxes, **flags)
    return (
        as_tile(result) if boxes is None else mask_result(result, product_boxes(result, boxes), result.shape)
    )


def _perf_mode(given: Any) -> matmul_perf_mode:
    """Parse the FP8 mode, whose name has its generation in this namespace: `double_row_gen3`."""
    name = str(getattr(given, "name", given)).removesuffix("_gen3")
    if name not in matmul_perf_mode.__members__:
        fail(
            "argument_value", f"nisa.nc_matmul: perf_mode cannot be {given!r}", "double_row_gen3, or nothing"
        )
    return matmul_perf_mode[name]


def _nc_transpose(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    data = require_on_chip("nisa.nc_transpose: data", to_operand_value(given["data"]))
    chosen = engine or engines.unknown
    if chosen is not engines.vector:
        legacy_recorder().bar_transpose()
    boxes = mask_boxes(mask, data.shape)
    result = matrix.emit_transpose(data, dtype, where=boxes, on=chosen)
    return mask_result(result, matrix.transpose_boxes(boxes), result.shape)


def _tensor_reduce(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    del engine
    data = require_on_chip("nisa.tensor_reduce: data", to_operand_value(given["data"]))
    boxes = mask_boxes(mask, data.shape)
    result = reductions.reduce_axes(
        function_name(given["op"]), data, given["axis"], dtype, bool(given.get("keepdims")),
        where=boxes, negate=bool(given.get("negate")),
    )  # fmt: skip
    return mask_result(result, boxes, data.shape)


def _box_pattern(coefficients: Sequence[int], constant: int, box: Box) -> tuple[list[list[int]], int, int]:
    """Pattern over the free axes of a box, step per partition, and the value at its first element."""
    pattern = [[step, stop - start] for step, (start, stop) in zip(coefficients[1:], box[1:], strict=True)]
    first = constant + sum(step * start for step, (start, _) in zip(coefficients, box, strict=True))
    return pattern, coefficients[0], first


def _boxes_or_whole(boxes: Sequence[Box] | None, shape: Sequence[int]) -> Sequence[Box]:
    """The boxes of a mask, or one box for the whole tile."""
    return [tuple((0, size) for size in shape)] if boxes is None else boxes


def _slice_box(view: Tensor, box: Box) -> Tensor:
    return view[tuple(slice(*span) for span in box)]


def _iota(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    """Write the values of an index expression to a tile."""
    del engine
    expr = given["expr"]
    if not isinstance(expr, Index):
        fail("argument_type", f"nisa.iota of {type(expr).__name__}", "an expression of nl.arange or nl.mgrid")
    result = declare_tile(expr.shape, dtype or given.get("dtype"))
    shape, boxes = result.shape, mask_boxes(mask, result.shape)
    for box in _boxes_or_whole(boxes, shape):
        pattern, step, first = _box_pattern(expr._linear.coefficients_over(shape), expr._constant, box)
        issue_instruction(
            "iota", dst=_slice_box(result, box), pattern=pattern, offset=first, channel_multiplier=step
        )
    return mask_result(result, boxes, shape)


def _affine_select(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    """Keep the elements of a tile where one comparison of an index expression holds."""
    del engine
    data = ensure_in_sbuf(
        require_on_chip("nisa.affine_select: on_true_tile", to_operand_value(given["on_true_tile"]))
    )
    pred = given["pred"]
    if not isinstance(pred, Condition):
        fail(
            "unsupported_expression_in_mask", f"pred is {type(pred).__name__}, not one comparison",
            "one comparison of index expressions, nothing joined with & or |; otherwise use nl.where",
        )  # fmt: skip
    result = declare_tile(data.shape, dtype or data.dtype)
    for item in (data, result):
        if item._storage.dtype in _WIDE:
            fail(
                "operand_invalid_type", f"nisa.affine_select: {item.name} is {item._storage.dtype}",
                "floats and integers of 8 or 16 bits go; copy the tile to nl.float32 first",
            )  # fmt: skip
    boxes = mask_boxes(mask, data.shape)
    for box in _boxes_or_whole(boxes, data.shape):
        pattern, step, first = _box_pattern(pred._linear.coefficients_over(data.shape), pred._constant, box)
        issue_instruction(
            "affine_select", dst=_slice_box(result, box), pattern=pattern, channel_multiplier=step,
            on_true_tile=_slice_box(data, box), on_false_value=to_operand_value(given["on_false_value"]),
            cmp_op=op_value(pred._op), offset=first,
        )  # fmt: skip
    return mask_result(result, boxes, data.shape)


def _dma_copy(given: Values, *, mask: Any, dtype: Any, engine: Any) -> None:
    """Handle dma_copy: both sides are given; `dst_rmw_op=np.add` adds to the old contents."""
    del dtype, engine
    dst, src = to_operand_value(given["dst"]), to_operand_value(given["src"])
    boxes, op = mask_boxes(mask, dst.shape), given.get("dst_rmw_op")
    if op is None:
        _require_moving_rows(dst, src)
        options = {} if given.get("oob_mode") is None else {"oob_mode": given["oob_mode"]}
        issue_instruction("dma_copy", boxes, dst=dst, src=src, **options)
        return
    if boxes is not None:
        fail("unsupported_argument", "not supported: nisa.dma_copy(dst_rmw_op=, mask=)")
    issue_instruction("dma_compute", dst=dst, srcs=[dst, src], reduce_op=op_value(function_name(op)))


def _require_moving_rows(dst: Any, src: Any) -> None:
    """Refuse a copy of one row of HBM to several partitions, at which the compiler fails."""
    if not (isinstance(src, Tensor) and isinstance(dst, Tensor)):
        return
    repeats = src._lookup is None and src._dims[0][0] == 0 and src._dims[0][1] > 1
    if repeats and dst._storage.on_chip and not src._storage.on_chip:
        fail(
            "dma_partition_index", f"nisa.dma_copy reads one row of {src.name} for all partitions of "
            f"{dst.name} (NCC_IBCG901)", "load the row, then nl.broadcast_to",
        )  # fmt: skip


_TURNED = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _dma_transpose(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    del engine
    src = to_operand_value(given["src"])
    if mask is not None:
        fail("unsupported_argument", "not supported: nisa.dma_transpose(mask=)", "transpose a part")
    axes = tuple(given.get("axes") or _TURNED.get(src.ndim, ()))
    if sorted(axes) != list(range(src.ndim)):
        fail("axis", f"axes={axes} of {src.name} {src.shape}", "(1, 0), (2, 1, 0) or (3, 1, 2, 0)")
    result = declare_tile([src.shape[axis] for axis in axes], dtype or src.dtype)
    issue_instruction("dma_transpose", dst=result, src=src, axes=axes)
    return as_tile(result)


SPECIAL: dict[str, Callable[..., Any]] = {
    "memset": _memset,
    "nc_matmul": _nc_matmul,
    "nc_transpose": _nc_transpose,
    "tensor_reduce": _tensor_reduce,
    "iota": _iota,
    "affine_select": _affine_select,
    "dma_copy": _dma_copy,
    "dma_transpose": _dma_transpose,
}
