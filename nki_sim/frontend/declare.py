"""Declarations: `nl.ndarray` and related functions, which make tensors, empty or filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nki_sim.frontend.context import current_recorder
from nki_sim.frontend.operands import dtype_name
from nki_sim.frontend.storage import MemoryRegion, fail
from nki_sim.frontend.tensor import Tensor
from nki_sim.operators import OPERATORS

_SBUF = MemoryRegion.sbuf

_TRANSPOSES = ((1, 0), (2, 1, 0), (3, 1, 2, 0))
"""The orders of axes that `empty_like` takes, by the documents those of `dma_transpose`."""

# Size of the tile that fills tensors in HBM: its rows, and bytes per row.
_FILL_ROWS = 128
_FILL_BYTES = 8192


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: MemoryRegion = _SBUF,
    name: str | None = None,
    address: tuple[int, int] | None = None,
) -> Tensor:
    """Declare a tensor; `address` is (first partition, byte in each partition) of a tile placed by hand.

    Inside a loop each iteration declares a new tensor, so iterations can overlap.
    """
    return current_recorder().declare(shape, dtype, _region_name(buffer), name or None, address)


def _region_name(buffer: Any) -> str:
    if not isinstance(buffer, MemoryRegion) or buffer is MemoryRegion.register:
        fail("unsupported_memory", f"buffer={buffer!r} is not a buffer", "nl.sbuf, nl.psum, nl.shared_hbm...")
    return buffer.value


def full(
    shape: Sequence[int], fill_value: float, dtype: Any, buffer: MemoryRegion = _SBUF, name: str | None = None
) -> Tensor:
    """Declare a tensor that holds one value everywhere."""
    result = ndarray(shape, dtype, buffer, name)
    fill_tensor(result, fill_value)
    return result


def fill_tensor(goal: Tensor, value: float) -> None:
    """Write one value everywhere: on chip by memset, in HBM by DMA from a tile."""
    memset = OPERATORS["memset"]
    if goal._storage.on_chip:
        current_recorder().emit(memset, {"dst": goal, "value": value})
        return
    flat = goal.reshape((goal._size,))
    width = min(goal._size, _FILL_BYTES // goal._storage.itemsize)
    rows = min(_FILL_ROWS, goal._size // width)
    source = ndarray((rows, width), goal._storage.dtype, _SBUF)
    current_recorder().emit(memset, {"dst": source, "value": value})
    at = 0
    while at < goal._size:
        count = min(rows, (goal._size - at) // width)
        size = count * width or goal._size - at
        tile = source[:count] if count else source[:1, :size]
        part = flat[at : at + size].reshape((count or 1, size // (count or 1)))
        current_recorder().emit(OPERATORS["dma_copy"], {"dst": part, "src": tile})
        at += size


def zeros(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = _SBUF, name: str | None = None) -> Tensor:
    """Declare a tensor of zeros."""
    return full(shape, 0.0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = _SBUF, name: str | None = None) -> Tensor:
    """Declare a tensor of ones."""
    return full(shape, 1.0, dtype, buffer, name)


def empty_like(
    x: Tensor,
    dtype: Any = None,
    buffer: MemoryRegion | None = None,
    name: str | None = None,
    *,
    transpose_axes: tuple[int, ...] | None = None,
    address: tuple[int, int] | None = None,
) -> Tensor:
    """Declare a tensor of the same shape; type and buffer default to those of `x`.

    `transpose_axes` gives it the shape that a `dma_transpose` of `x` has.
    """
    shape = x.shape if transpose_axes is None else _transpose_shape(x.shape, transpose_axes)
    return ndarray(shape, dtype or x.dtype, buffer or x.buffer, name, address)


def _transpose_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    if axes not in _TRANSPOSES or len(axes) != len(shape):
        known = ", ".join(map(str, _TRANSPOSES))
        fail("argument_value", f"transpose_axes={axes!r} of a tensor of {len(shape)} axes", f"one of {known}")
    return tuple(shape[axis] for axis in axes)


def zeros_like(
    x: Tensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str | None = None
) -> Tensor:
    """Declare zeros of the same shape; type and buffer default to those of `x`."""
    return zeros(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def shared_constant(constant: Any) -> Tensor:
    """Declare a tensor in HBM that holds an array (or the array of a .npy file) from the start."""
    import numpy as np

    array = np.ascontiguousarray(np.load(constant) if isinstance(constant, str) else constant)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return current_recorder().declare_constant(
        "constant", array.shape, dtype_name(array.dtype), little.tobytes()
    )


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: Tensor | None = None) -> Tensor:
    """Make the n x n identity as a tile in SBUF, in `dst` if it is given."""
    import numpy as np

    from nki_sim.semantics.arrays import NUMPY

    name = dtype_name(dtype)
    identity = current_recorder().declare_constant(
        "identity", (n, n), name, np.eye(n).astype(NUMPY[name]).tobytes()
    )
    result = ndarray((n, n), name, _SBUF) if dst is None else dst
    current_recorder().emit(OPERATORS["dma_copy"], {"dst": result, "src": identity})
    return result
