"""Legacy instructions whose call is not that of the table: expressions, shapes, axes, products, copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index as to_int
from typing import Any

from nki_sim.frontend.legacy.calls import columns_of, function_name, masked, value_of
from nki_sim.frontend.legacy.index import Index
from nki_sim.frontend.legacy.masks import Box, Condition
from nki_sim.frontend.legacy.recorder import legacy
from nki_sim.frontend.legacy.tiles import Tile, as_tile, where
from nki_sim.frontend.lowering import matrix, reductions
from nki_sim.frontend.lowering.elementwise import op_value
from nki_sim.frontend.lowering.emit import in_sbuf, issue, on_chip, tile
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.frontend.values import engine as engines
from nki_sim.frontend.values import matmul_perf_mode

Values = dict[str, Any]

# Integers that the documents of this namespace leave out of affine_select.
_WIDE = frozenset({"int32", "uint32"})


def _memset(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    """The shape is that of the tile; `dtype` may also come by position."""
    shape = tuple(to_int(size) for size in given["shape"])
    result = tile(shape, dtype or given.get("dtype"))
    boxes = where(mask, result.shape)
    issue("memset", boxes, dst=result, value=value_of(given["value"]), engine=engine)
    return masked(result, boxes, result.shape)


def _nc_matmul(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    """The mask is over the moving operand; products are float32, whatever `dtype` says of the tile."""
    del dtype, engine
    stationary = on_chip("nisa.nc_matmul: stationary", value_of(given.pop("stationary")))
    moving = on_chip("nisa.nc_matmul: moving", value_of(given.pop("moving")))
    flags = {name: value for name, value in given.items() if value not in (None, ()) and name != "name"}
    if "perf_mode" in flags:
        flags["perf_mode"] = _perf_mode(flags["perf_mode"])
    boxes = None if mask is None else where(mask, moving.shape)
    if boxes != []:
        stationary, moving = in_sbuf(stationary), in_sbuf(moving, boxes)
    result = matrix.product(stationary, moving, boxes, **flags)
    return as_tile(result) if boxes is None else masked(result, columns_of(result, boxes), result.shape)


def _perf_mode(given: Any) -> matmul_perf_mode:
    """This namespace names the mode of FP8 with its generation: `double_row_gen3`."""
    name = str(getattr(given, "name", given)).removesuffix("_gen3")
    if name not in matmul_perf_mode.__members__:
        fail(
            "argument_value", f"nisa.nc_matmul: perf_mode cannot be {given!r}", "double_row_gen3, or nothing"
        )
    return matmul_perf_mode[name]


def _nc_transpose(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    data = on_chip("nisa.nc_transpose: data", value_of(given["data"]))
    chosen = engine or engines.unknown
    if chosen is not engines.vector:
        legacy().bar_transpose()
    boxes = where(mask, data.shape)
    result = matrix.transpose(data, dtype, where=boxes, on=chosen)
    return masked(result, matrix.turned(boxes), result.shape)


def _tensor_reduce(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    del engine
    data = on_chip("nisa.tensor_reduce: data", value_of(given["data"]))
    boxes = where(mask, data.shape)
    result = reductions.reduction(
        function_name(given["op"]), data, given["axis"], dtype, bool(given.get("keepdims")),
        where=boxes, negate=bool(given.get("negate")),
    )  # fmt: skip
    return masked(result, boxes, data.shape)


def _walk(coefficients: Sequence[int], constant: int, box: Box) -> tuple[list[list[int]], int, int]:
    """Pattern over the free axes of a box, step per partition, and the value at its first element."""
    pattern = [[step, stop - start] for step, (start, stop) in zip(coefficients[1:], box[1:], strict=True)]
    first = constant + sum(step * start for step, (start, _) in zip(coefficients, box, strict=True))
    return pattern, coefficients[0], first


def _whole(boxes: Sequence[Box] | None, shape: Sequence[int]) -> Sequence[Box]:
    """The boxes of a mask, or one that is all of the tile."""
    return [tuple((0, size) for size in shape)] if boxes is None else boxes


def _part(view: Tensor, box: Box) -> Tensor:
    return view[tuple(slice(*span) for span in box)]


def _iota(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    """The values of an index expression as a tile."""
    del engine
    expr = given["expr"]
    if not isinstance(expr, Index):
        fail("argument_type", f"nisa.iota of {type(expr).__name__}", "an expression of nl.arange or nl.mgrid")
    result = tile(expr.shape, dtype or given.get("dtype"))
    shape, boxes = result.shape, where(mask, result.shape)
    for box in _whole(boxes, shape):
        pattern, step, first = _walk(expr.linear.over(shape), expr.constant, box)
        issue("iota", dst=_part(result, box), pattern=pattern, offset=first, channel_multiplier=step)
    return masked(result, boxes, shape)


def _affine_select(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    """One comparison of an index expression decides which elements of the tile stay."""
    del engine
    data = in_sbuf(on_chip("nisa.affine_select: on_true_tile", value_of(given["on_true_tile"])))
    pred = given["pred"]
    if not isinstance(pred, Condition):
        fail(
            "unsupported_expression_in_mask", f"pred is {type(pred).__name__}, not one comparison",
            "one comparison of index expressions, nothing joined with & or |; otherwise use nl.where",
        )  # fmt: skip
    result = tile(data.shape, dtype or data.dtype)
    for item in (data, result):
        if item.storage.dtype in _WIDE:
            fail(
                "operand_invalid_type", f"nisa.affine_select: {item.name} is {item.storage.dtype}",
                "floats and integers of 8 or 16 bits go; copy the tile to nl.float32 first",
            )  # fmt: skip
    boxes = where(mask, data.shape)
    for box in _whole(boxes, data.shape):
        pattern, step, first = _walk(pred.linear.over(data.shape), pred.constant, box)
        issue(
            "affine_select", dst=_part(result, box), pattern=pattern, channel_multiplier=step,
            on_true_tile=_part(data, box), on_false_value=value_of(given["on_false_value"]),
            cmp_op=op_value(pred.op), offset=first,
        )  # fmt: skip
    return masked(result, boxes, data.shape)


def _dma_copy(given: Values, *, mask: Any, dtype: Any, engine: Any) -> None:
    """Both sides are given; `dst_rmw_op=np.add` adds to what is there."""
    del dtype, engine
    dst, src = value_of(given["dst"]), value_of(given["src"])
    boxes, op = where(mask, dst.shape), given.get("dst_rmw_op")
    if op is None:
        options = {} if given.get("oob_mode") is None else {"oob_mode": given["oob_mode"]}
        issue("dma_copy", boxes, dst=dst, src=src, **options)
        return
    if boxes is not None:
        fail("unsupported_argument", "not supported: nisa.dma_copy(dst_rmw_op=, mask=)")
    issue("dma_compute", dst=dst, srcs=[dst, src], reduce_op=op_value(function_name(op)))


_TURNED = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _dma_transpose(given: Values, *, mask: Any, dtype: Any, engine: Any) -> Tile:
    del engine
    src = value_of(given["src"])
    if mask is not None:
        fail("unsupported_argument", "not supported: nisa.dma_transpose(mask=)", "transpose a part")
    axes = tuple(given.get("axes") or _TURNED.get(src.ndim, ()))
    if sorted(axes) != list(range(src.ndim)):
        fail("axis", f"axes={axes} of {src.name} {src.shape}", "(1, 0), (2, 1, 0) or (3, 1, 2, 0)")
    result = tile([src.shape[axis] for axis in axes], dtype or src.dtype)
    issue("dma_transpose", dst=result, src=src, axes=axes)
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
