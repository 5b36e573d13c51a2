"""Normalises what kernels pass for recording: signatures, operands, shapes, names and data types."""

from __future__ import annotations

import sys
from array import array
from typing import Any

from nki_sim.dtypes import DTYPES, TRN3_DTYPES, V4, nki_dtype_name
from nki_sim.errors import escape_surrogates
from nki_sim.forms import BUFFERS, HBM_BUFFERS, MAX_NAME, Operand, Site, index_role
from nki_sim.frontend.argument_values import LanguageFunction
from nki_sim.frontend.storage import fail
from nki_sim.frontend.tensor import Tensor
from nki_sim.frontend.views import View
from nki_sim.operators import Argument, Operator
from nki_sim.targets import Target

MAX_ELEMENTS = 1 << 40


# Constants that can be signature keys, together with their type.
PLAIN = frozenset({bool, int, LanguageFunction})


def as_signature_key(value: Any) -> Any:
    """Return a constant as a signature key that distinguishes 1, 1.0 and True, and 0.0 and -0.0."""
    if value is None or type(value) is str:
        return value
    if type(value) is float:
        return repr(value)
    return tuple(map(as_signature_key, value)) if type(value) in {list, tuple} else (type(value), value)


def normalise_axes(axes: tuple[int, ...], data: Any) -> tuple[int, ...]:
    """Count axes from the front; if the operand is not a tensor, leave them for the checks to refuse."""
    rank = data.ndim if isinstance(data, Tensor) else 0
    return tuple(axis + rank if axis < 0 else axis for axis in axes)


def to_little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def validate_shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    total = 1
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            fail("shape", f"shape {sizes} is not made of positive integers")
        total *= size
    if not sizes or total > MAX_ELEMENTS:
        fail("shape", f"shape {sizes} has {total} elements, the limit is {MAX_ELEMENTS}")
    return sizes


def check_site(site: Site, target: Target) -> None:
    """Refuse unknown memories, types that the target lacks, and tiles that do not fit any memory on chip."""
    check_dtype(site.dtype, target)
    if site.buffer not in BUFFERS:
        fail(
            "unsupported_memory",
            f"{site.name} in {site.buffer!r}",
            f"one of {', '.join(sorted(BUFFERS))}",
        )
    if site.buffer in HBM_BUFFERS:
        return
    if len(site.shape) < 2:
        fail(
            "tile_rank", f"{site.name} of shape {site.shape} is one-dimensional on chip",
            "tiles have a partition dimension and a free dimension: (128, n)",
        )  # fmt: skip
    if site.shape[0] > target.partitions:
        fail(
            "num_partition_exceed_arch_limit",
            f"number of partitions {site.shape[0]} of {site.name} exceeds the limit of "
            f"{target.partitions}", "tile the first dimension by 128",
        )  # fmt: skip


def check_dtype(name: str, target: Target) -> None:
    """Refuse a data type that the target lacks."""
    if name in TRN3_DTYPES and target.generation < V4:
        fail("dtype", f"nl.{name} is for NeuronCore-v4 (trn3), not for {target.name}")


def validate_name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > MAX_NAME or name != escape_surrogates(name):
        fail("name", f"the name {str(name)[:40]!r}... is not a text of at most {MAX_NAME} characters")
    return name


def validate_address(address: Any, name: str, buffer: str) -> tuple[int, int]:
    """Return the address that a kernel chose for a tile: first partition, byte in each partition."""
    pair = tuple(address) if isinstance(address, tuple | list) else ()
    if len(pair) != 2 or any(type(part) is not int or part < 0 for part in pair):
        fail("address", f"address={address!r} of {name}", "give (first partition, byte in each partition)")
    if buffer in HBM_BUFFERS:
        fail(
            "address", f"{name} in {buffer} has an address", "only tiles in SBUF and PSUM are placed by hand"
        )
    return pair[0], pair[1]


def dtype_name(dtype: Any) -> str:
    """Return the name of a data type of `nl`, NumPy, ml_dtypes or torch, or given as text."""
    name = nki_dtype_name(dtype)
    if name not in DTYPES:
        fail("dtype", f"{dtype!r} is not a supported data type", f"one of {', '.join(DTYPES)}")
    return name


def build_operands(operator: Operator, argument: Argument, view: Tensor) -> list[Operand]:
    """Return the operand in the argument's role, followed by the one that holds its indices."""
    if view.buffer not in argument.buffers:
        fail(
            "unsupported_memory",
            f"nisa.{operator.name}: {argument.name} ({view.name}) is in {view.buffer}, it must be in "
            f"{' or '.join(sorted(argument.buffers))}", _memory_hint(view.buffer),
        )  # fmt: skip
    if view._lookup is None:
        return [_build_operand(argument.name, view)]
    source = view._lookup.source
    return [
        _build_operand(argument.name, view, view._lookup.step),
        _build_operand(index_role(argument.name), source),
    ]


def _build_operand(role: str, view: View, index_step: int = 0) -> Operand:
    storage = view._storage
    start, column = view._start_position
    buffer = storage.site.buffer
    return Operand(role, view._dims, storage.dtype, buffer, storage.row, start, column, index_step)


def _memory_hint(buffer: str) -> str:
    if buffer == "psum":
        return "copy PSUM to SBUF first, for example with nisa.tensor_copy"
    return "move it with nisa.dma_copy or nisa.tensor_copy first"
