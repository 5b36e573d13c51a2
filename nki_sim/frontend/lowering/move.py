"""Moves between HBM and chip, and views: load, store, gather, broadcast_to, expand_dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nki_sim.frontend.argument_values import engine
from nki_sim.frontend.lowering.emit import (
    MaskBoxes,
    broadcast_tiles,
    broadcast_to_shape,
    cast_tile,
    declare_tile,
    ensure_in_sbuf,
    issue_instruction,
    require_on_chip,
)
from nki_sim.frontend.lowering.matrix import emit_transpose
from nki_sim.frontend.lowering.promotion import as_number, type_name
from nki_sim.frontend.recorder import current_recorder
from nki_sim.frontend.tensor import Tensor, fail


def load(src: Any, dtype: Any = None, *, where: MaskBoxes = None) -> Tensor:
    """Load an HBM view into an SBUF tile of its shape; the first dimension becomes the partitions."""
    source = _require_in_hbm("nl.load: src", src)
    result = declare_tile(source.shape, dtype or source.dtype)
    issue_instruction("dma_copy", where, dst=result, src=source)
    return result


def load_transpose2d(src: Any, dtype: Any = None, *, where: MaskBoxes = None) -> Tensor:
    """Load an HBM view [N, M] as a tile [M, N]: 2-byte types by DMA transpose, others by elements.

    The legacy compiler loads float32 as it lies and transposes it on the tensor engine: counters of a kernel
    that asks for this equal those of one that does so itself [M].
    """
    source = _require_in_hbm("nl.load_transpose2d: src", src)
    if source.ndim != 2:
        fail("shape_mismatch", f"src ({source.name}) has shape {source.shape}, it must be two-dimensional")
    result = declare_tile((source.shape[1], source.shape[0]), dtype or source.dtype)
    if source.dtype.itemsize == 2 and where is None and result.dtype == source.dtype:
        issue_instruction("dma_transpose", dst=result, src=source, axes=(1, 0))
        return result
    legacy = current_recorder().dialect == "neuronxcc"
    if legacy and where is None and source.dtype == result.dtype and source.dtype.name == "float32":
        _load_and_transpose(result, source)
        return result
    boxes = None if where is None else [(columns, rows) for rows, columns in where]
    issue_instruction("dma_copy", boxes, dst=result, src=source._permute((1, 0)))
    return result


def _load_and_transpose(result: Tensor, source: Tensor) -> None:
    """Load rows, turn them on the tensor engine, and copy them from PSUM."""
    rows = current_recorder().target.partitions
    for first in range(0, source.shape[0], rows):
        part = slice(first, min(first + rows, source.shape[0]))
        turned = emit_transpose(load(source[part]), on=engine.tensor)
        issue_instruction("tensor_copy", dst=result[:, part], src=turned)


def store(dst: Any, value: Any, *, where: MaskBoxes = None) -> None:
    """Store a tile to an HBM view of its shape, or fill the view with a number.

    PSUM tiles are copied to SBUF first; rows may repeat.
    """
    goal = _require_in_hbm("nl.store: dst", dst)
    number = as_number(value)
    if number is not None:
        value = declare_tile(goal.shape, goal.dtype)
        issue_instruction("memset", dst=value, value=number)
    source = ensure_in_sbuf(require_on_chip("nl.store: value", value), where)
    if source.shape != goal.shape:
        source = _broadcast_to_goal(goal, source)
    issue_instruction("dma_copy", where, dst=goal, src=source)


def _broadcast_to_goal(goal: Tensor, source: Tensor) -> Tensor:
    shape, (_, source) = broadcast_tiles(goal, source)
    if shape != goal.shape:
        fail(
            "store_dst_shape_smaller",
            f"dst ({goal.name}) of shape {goal.shape} is smaller than the value's {source.shape}",
            "the destination has the shape of what is stored, or one it broadcasts to",
        )  # fmt: skip
    return broadcast_to_shape(source, shape)


def _require_in_hbm(what: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        fail("argument_type", f"{what} is {type(value).__name__}, it must be a tensor in HBM")
    if value._storage.on_chip:
        fail(
            "unsupported_memory", f"{what} ({value.name}) is in {value.buffer}, it must be in HBM",
            "on chip, copy with nl.copy or nisa.tensor_copy",
        )  # fmt: skip
    return value


def gather_flattened(
    data: Any, indices: Any, axis: int = 0, dtype: Any = None, *, where: MaskBoxes = None
) -> Tensor:
    """data[p, indices[p, ...]] in each partition, over the free elements of `data` as one row."""
    if axis != 0:
        fail("unsupported_argument", f"not supported yet: nl.gather_flattened(axis={axis!r})")
    source, chosen = (
        require_on_chip("nl.gather_flattened: data", data),
        require_on_chip("nl.gather_flattened: indices", indices),
    )
    if where is not None:
        fail("unsupported_expression_in_mask", "nl.gather_flattened takes no mask yet", "gather a part")
    result = declare_tile(chosen.shape, source.dtype)
    issue_instruction("nc_n_gather", dst=result, data=source, indices=chosen)
    return result if dtype is None else cast_tile(result, type_name(dtype))


def broadcast_to(x: Any, shape: Sequence[int], dtype: Any = None) -> Tensor:
    """Return the tile in a larger shape: free axes repeat by the access pattern, partitions are filled."""
    data = require_on_chip("nl.broadcast_to: x", x)
    if len(shape) < data.ndim:
        fail("broadcast", f"{data.name} of shape {data.shape} to {tuple(shape)}: ranks differ")
    while data.ndim < len(shape):
        data = data._expand_dim(1)
    data = broadcast_to_shape(data, shape)
    return data if dtype is None else cast_tile(data, type_name(dtype))


def expand_dims(x: Any, axis: Any) -> Tensor:
    """Return a view with axes of size 1 inserted."""
    if not isinstance(x, Tensor):
        fail("argument_type", f"nl.expand_dims of {type(x).__name__}, it must be a tile")
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    rank, view = x.ndim + len(axes), x
    for item in sorted(item + rank if item < 0 else item for item in axes):
        view = view._expand_dim(item)
    return view


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "load": load,
    "load_transpose2d": load_transpose2d,
    "store": store,
    "gather_flattened": gather_flattened,
    "broadcast_to": broadcast_to,
    "expand_dims": expand_dims,
}
