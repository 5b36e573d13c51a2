"""Products and transposes between partitions and free elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from nki_sim.frontend.lowering.emit import Box, Where, cast, in_sbuf, issue, on_chip, tile
from nki_sim.frontend.lowering.promotion import named, promote
from nki_sim.frontend.recorder import current
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.frontend.values import engine, matmul_perf_mode


def matmul(x: Any, y: Any, transpose_x: bool = False, *, where: Where = None) -> Tensor:
    """x @ y in a float32 PSUM tile, x.T @ y with `transpose_x`; otherwise x is transposed first.

    x is [M, K], or [K, M] with `transpose_x`; y is [K, N]. The boxes of `where` are over y.
    """
    left, right = on_chip("nl.matmul: x", x), in_sbuf(on_chip("nl.matmul: y", y), where)
    left = in_sbuf(left if transpose_x else transposed(left))
    wanted = promote(left, right)
    if "float32" in {str(left.dtype), str(right.dtype)}:
        left, right = cast(left, wanted), cast(right, wanted)
    return product(left, right, where)


def product(stationary: Tensor, moving: Tensor, where: Where = None, **flags: Any) -> Tensor:
    """stationary.T @ moving in a new PSUM tile; the boxes of `where` are over the moving operand.

    With `perf_mode` double_row each operand has two rows of the contraction in a partition: [K, 2, M].
    """
    first = 2 if flags.get("perf_mode") is matmul_perf_mode.double_row else 1
    result = tile((prod(stationary.shape[first:]), *moving.shape[first:]), "float32", "psum")
    if where is None:
        issue("nc_matmul", dst=result, stationary=stationary, moving=moving, accumulate=False, **flags)
        return result
    if first > 1:
        fail("unsupported_expression_in_mask", "double_row takes no mask", "pass a part of the moving tile")
    for left, right, dst in _clipped(stationary, moving, result, where):
        full, left_over = prod(moving.shape[1:]), prod(right.shape[1:])
        hints = () if left_over == full else (("moving", full),)
        issue("nc_matmul", dst=dst, stationary=left, moving=right, accumulate=False, hints=hints, **flags)
    return result


def _clipped(
    left: Tensor, right: Tensor, result: Tensor, where: Sequence[Box]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    parts = []
    for (first, last), *free in where:
        spans = tuple(slice(*span) for span in free)
        rows = slice(first, last)
        parts.append((left[rows], right[(rows, *spans)], result[(slice(None), *spans)]))
    return parts


_MATRIX = 2
"""Axes of a matrix."""


def transpose(x: Any, dtype: Any = None, *, where: Where = None, on: engine = engine.unknown) -> Tensor:
    """[F, P] from [P, F]: up to 32x32 on VectorE, else on the tensor engine, which writes PSUM.

    The free axes are one. A type other than that of `x` costs a copy. `where` is over the axes of `x`.
    """
    data = on_chip("nl.transpose: x", x)
    if where and data.ndim != _MATRIX:
        fail("unsupported_expression_in_mask", f"transposing {data.name}{list(data.shape)} takes no mask")
    sizes = (prod(data.shape[1:]), data.shape[0])
    small = max(sizes) <= current().target.vector_transpose_max
    runs = on if on is not engine.unknown else engine.vector if small else engine.tensor
    if runs is engine.tensor:
        data = in_sbuf(data)
    result = tile(sizes, data.dtype, "psum" if runs is engine.tensor else "sbuf")
    if where is None:
        issue("nc_transpose", dst=result, data=data, engine=runs)
    for box in where or ():
        rows, columns = (slice(*span) for span in box)
        issue("nc_transpose", dst=result[columns, rows], data=data[rows, columns], engine=runs)
    return result if dtype is None else cast(result, named(dtype), turned(where))


def transposed(x: Any, dtype: Any = None, *, where: Where = None) -> Tensor:
    """[F, P] from [P, F] of at most 128 each, as the language has it."""
    data, limit = on_chip("nl.transpose: x", x), current().target.partitions
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
    return transpose(data, dtype, where=where)


def turned(where: Where) -> Where:
    """Boxes of a matrix as boxes of its transpose."""
    return None if where is None else [tuple(reversed(box)) for box in where]


FUNCTIONS: dict[str, Callable[..., Tensor]] = {"matmul": matmul, "transpose": transposed}
