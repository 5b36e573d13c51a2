"""Products and transposes between partitions and free elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from nki_sim.frontend.argument_values import engine, matmul_perf_mode
from nki_sim.frontend.lowering.emit import (
    Box,
    MaskBoxes,
    cast_tile,
    declare_tile,
    ensure_in_sbuf,
    issue_instruction,
    require_on_chip,
)
from nki_sim.frontend.lowering.promotion import promote_types, type_name
from nki_sim.frontend.recorder import current_recorder
from nki_sim.frontend.tensor import Tensor, fail


def matmul(x: Any, y: Any, transpose_x: bool = False, *, where: MaskBoxes = None) -> Tensor:
    """x @ y in a float32 PSUM tile, x.T @ y with `transpose_x`; otherwise x is transposed first.

    x is [M, K], or [K, M] with `transpose_x`; y is [K, N]. The boxes of `where` are over y.
    """
    left, right = (
        require_on_chip("nl.matmul: x", x),
        ensure_in_sbuf(require_on_chip("nl.matmul: y", y), where),
    )
    left = ensure_in_sbuf(left if transpose_x else transpose_matrix(left))
    wanted = promote_types(left, right)
    if "float32" in {str(left.dtype), str(right.dtype)}:
        left, right = cast_tile(left, wanted), cast_tile(right, wanted)
    return matrix_product(left, right, where)


def matrix_product(stationary: Tensor, moving: Tensor, where: MaskBoxes = None, **flags: Any) -> Tensor:
    """stationary.T @ moving in a new PSUM tile; the boxes of `where` are over the moving operand.

    With `perf_mode` double_row each operand has two rows of the contraction in a partition: [K, 2, M].
    """
    first = 2 if flags.get("perf_mode") is matmul_perf_mode.double_row else 1
    result = declare_tile((prod(stationary.shape[first:]), *moving.shape[first:]), "float32", "psum")
    if where is None:
        issue_instruction(
            "nc_matmul", dst=result, stationary=stationary, moving=moving, accumulate=False, **flags
        )
        return result
    if first > 1:
        fail("unsupported_expression_in_mask", "double_row takes no mask", "pass a part of the moving tile")
    for left, right, dst in _clip_operands(stationary, moving, result, where=where):
        full, left_over = prod(moving.shape[1:]), prod(right.shape[1:])
        hints = () if left_over == full else (("moving", full),)
        issue_instruction(
            "nc_matmul", dst=dst, stationary=left, moving=right, accumulate=False, hints=hints, **flags
        )
    return result


def _clip_operands(
    left: Tensor, right: Tensor, result: Tensor, *, where: Sequence[Box]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    parts = []
    for (first, last), *free in where:
        spans = tuple(slice(*span) for span in free)
        rows = slice(first, last)
        parts.append((left[rows], right[(rows, *spans)], result[(slice(None), *spans)]))
    return parts


_MATRIX = 2
"""Axes of a matrix."""


def emit_transpose(
    x: Any, dtype: Any = None, *, where: MaskBoxes = None, on: engine = engine.unknown
) -> Tensor:
    """[F, P] from [P, F]: up to 32x32 on VectorE, else on the tensor engine, which writes PSUM.

    The free axes count as one. A type other than that of `x` costs a copy. `where` is over the axes of `x`.
    """
    data = require_on_chip("nl.transpose: x", x)
    if where and data.ndim != _MATRIX:
        fail("unsupported_expression_in_mask", f"transposing {data.name}{list(data.shape)} takes no mask")
    sizes = (prod(data.shape[1:]), data.shape[0])
    small = max(sizes) <= current_recorder().target.vector_transpose_max
    runs = on if on is not engine.unknown else engine.vector if small else engine.tensor
    if runs is engine.tensor:
        data = ensure_in_sbuf(data)
    result = declare_tile(sizes, data.dtype, "psum" if runs is engine.tensor else "sbuf")
    if where is None and (runs is engine.tensor or small):
        issue_instruction("nc_transpose", dst=result, data=data, engine=runs)
    elif where is None:
        _transpose_in_blocks(result, data)
    for box in where or ():
        rows, columns = (slice(*span) for span in box)
        issue_instruction("nc_transpose", dst=result[columns, rows], data=data[rows, columns], engine=runs)
    return result if dtype is None else cast_tile(result, type_name(dtype), transpose_boxes(where))


def _transpose_in_blocks(result: Tensor, data: Tensor) -> None:
    """Transpose a larger tile on VectorE in the blocks that it takes, as the older compiler does."""
    edge = current_recorder().target.vector_transpose_max
    matrix = data if data.ndim == _MATRIX else data._flatten_dims(1, data.ndim - 1)
    for row in range(0, matrix.shape[0], edge):
        for column in range(0, matrix.shape[1], edge):
            rows = slice(row, min(row + edge, matrix.shape[0]))
            columns = slice(column, min(column + edge, matrix.shape[1]))
            issue_instruction(
                "nc_transpose", dst=result[columns, rows], data=matrix[rows, columns], engine=engine.vector
            )


def transpose_matrix(x: Any, dtype: Any = None, *, where: MaskBoxes = None) -> Tensor:
    """[F, P] from [P, F] of at most 128 each, as in the language."""
    data, limit = require_on_chip("nl.transpose: x", x), current_recorder().target.partitions
    if data.ndim > _MATRIX:
        fail(
            "exceed_max_supported_dimension",
            f"nl.transpose: x ({data.name}) of shape {data.shape} has more than {_MATRIX} dimensions",
            "transpose one matrix at a time: nl.transpose(x[:, i])",
        )  # fmt: skip
    if data.shape[1] > limit:
        fail(
            "size_of_dimension_exceed_arch_limit",
            f"nl.transpose: dimension 1 of x ({data.name}), {data.shape[1]}, exceeds the limit of {limit}",
            "transpose parts of at most 128 columns: nl.transpose(x[:, nl.ds(i * 128, 128)])",
        )  # fmt: skip
    return emit_transpose(data, dtype, where=where)


def transpose_boxes(where: MaskBoxes) -> MaskBoxes:
    """Transpose the boxes of a matrix."""
    return None if where is None else [tuple(reversed(box)) for box in where]


FUNCTIONS: dict[str, Callable[..., Tensor]] = {"matmul": matmul, "transpose": transpose_matrix}
