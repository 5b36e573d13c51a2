"""Emits one call as one instruction: declares result tiles, clips to mask boxes, matches shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nki_sim.frontend.recorder import current_recorder
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.operators import OPERATORS
from nki_sim.operators.rules.shapes import start_step

Box = tuple[tuple[int, int], ...]
"""First and one past the last element along each axis of a tile."""

MaskBoxes = Sequence[Box] | None
"""The parts of a tile that a mask leaves; None for the whole tile."""


def declare_tile(shape: Sequence[int], dtype: Any, buffer: str = "sbuf") -> Tensor:
    """A new tile; on chip it has at least a partition and a free dimension."""
    sizes = tuple(shape)
    return current_recorder().declare(sizes if len(sizes) > 1 else (*sizes, 1), dtype, buffer)


def issue_instruction(
    name: str, where: MaskBoxes = None, *, rows: frozenset[str] = frozenset(), **given: Any
) -> None:
    """Emit an instruction, once for each box of `where`.

    The boxes are over the axes of the largest operand. An operand is clipped along the axes in which it has
    that size; operands in the roles `rows` are clipped along the partitions only. Boxes that differ only
    where every operand has size 1 are merged.
    """
    operator = OPERATORS.get(name)
    if operator is None:
        fail("unsupported", f"not supported yet: nisa.{name}, which this function needs")
    if where is None:
        current_recorder().emit(operator, given)
        return
    sizes, tiles = broadcast_tiles(
        *(item for item in given.values() if isinstance(item, Tensor)), strict=False
    )
    places = dict(zip([key for key, item in given.items() if isinstance(item, Tensor)], tiles, strict=True))
    boxes = list(dict.fromkeys(_normalise_box(box, sizes) for box in where))
    if len(boxes) > 1 and "dma" not in operator.engines:
        _check_starts(name, boxes)
    for box in boxes:
        parts = {key: _clip_to_box(item, box, sizes, rows_only=key in rows) for key, item in places.items()}
        current_recorder().emit(operator, {**given, **parts})


def _check_starts(name: str, boxes: Sequence[Box]) -> None:
    """Check that the steps of a mask over two axes begin at partitions where engines can begin."""
    for (first, last), *_ in boxes:
        if first % start_step(last - first):
            fail(
                "unsupported_expression_in_mask",
                f"nisa.{name}: a mask over two axes leaves steps of which one has partitions {first} to "
                f"{last - 1}, engines begin at partition 0, 32, 64 or 96",
                "compute the whole tile and choose with nisa.affine_select",
            )  # fmt: skip


def _normalise_box(box: Box, sizes: Sequence[int]) -> Box:
    """The box with axes of size 1 made whole."""
    return tuple(span if size > 1 else (0, 1) for span, size in zip(box, sizes, strict=True))


def _clip_to_box(value: Tensor, box: Box, sizes: Sequence[int], *, rows_only: bool) -> Tensor:
    keys = [
        slice(*span) if count == size > 1 else slice(None)
        for span, count, size in zip(box, value.shape, sizes, strict=True)
    ]
    return value[tuple(keys[:1] if rows_only else keys)]


def require_on_chip(what: str, value: Any) -> Tensor:
    """Return the value if it is a tile in SBUF or PSUM; else refuse it."""
    if not isinstance(value, Tensor):
        fail("argument_type", f"{what} is {type(value).__name__}, it must be a tile")
    if not value._storage.on_chip:
        fail(
            "unsupported_memory", f"{what} ({value.name}) is in {value.buffer}, functions compute on chip",
            "load it first: nl.load(...), or nisa.dma_copy into a tile",
        )  # fmt: skip
    return value


def ensure_in_sbuf(value: Tensor, where: MaskBoxes = None) -> Tensor:
    """Return the tile, copied to SBUF if it is in PSUM."""
    return value if value.buffer == "sbuf" else copy_tile(value, value.dtype, where)


def copy_tile(value: Tensor, dtype: Any, where: MaskBoxes = None) -> Tensor:
    """Copy and convert a tile to a new SBUF tile."""
    result = declare_tile(value.shape, dtype)
    issue_instruction("tensor_copy", where, dst=result, src=value)
    return result


def cast_tile(value: Tensor, dtype: str, where: MaskBoxes = None) -> Tensor:
    """Return the tile itself if it has that type, else a converted copy."""
    return value if value._storage.dtype == dtype else copy_tile(value, dtype, where)


def is_column(value: Tensor) -> bool:
    """Whether a tile has one element per partition."""
    return all(count == 1 for _, count in value._dims[1:])


def broadcast_tiles(*values: Tensor, strict: bool = True) -> tuple[tuple[int, ...], list[Tensor]]:
    """Return the shape that tiles broadcast to, and the tiles with its rank.

    Partitions are matched with partitions, and free axes from the last one backwards. Sizes are equal or 1,
    as in NumPy; without `strict` the shape takes the largest sizes.
    """
    rank = max(value.ndim for value in values)
    tiles = [_expand_rank(value, rank) for value in values]
    shape = tuple(max(sizes) for sizes in zip(*(value.shape for value in tiles), strict=True))
    for value in tiles:
        for axis, size in enumerate(value.shape):
            if strict and size not in {1, shape[axis]}:
                fail(
                    "shape_mismatch", f"{value.name} has {size} elements in axis {axis}, another operand "
                    f"has {shape[axis]}", "axes are equal, or one of them is 1",
                )  # fmt: skip
    return shape, tiles


def _expand_rank(value: Tensor, rank: int) -> Tensor:
    while value.ndim < rank:
        value = value._expand_dim(1)
    return value


def broadcast_to_shape(value: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the tile in a larger shape of its rank: free axes repeat by pattern, partitions are filled."""
    view = value if value.shape[0] == shape[0] else fill_partitions(value, shape[0])
    for axis, size in enumerate(shape):
        if view.shape[axis] != size:
            view = view._broadcast(axis, size)
    return view


def fill_partitions(value: Tensor, count: int) -> Tensor:
    """Copy the single row of a tile to `count` partitions, by shuffles in each quadrant of 32."""
    if value.shape[0] != 1:
        fail(
            "broadcast", f"{value.name} {value.shape} cannot fill {count} partitions, it has {value.shape[0]}"
        )
    result = declare_tile((count, *value.shape[1:]), value.dtype)
    for first in range(0, count, 32):
        last = min(first + 32, count)
        issue_instruction("nc_stream_shuffle", dst=result[first:last], src=value, shuffle_mask=(0,) * 32)
    return result
