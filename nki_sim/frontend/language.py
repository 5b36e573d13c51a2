"""`nki.language`: memories, types, loops, declarations, and functions that compute or serve as `op=`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from nki_sim.dtypes import DTYPES, DType
from nki_sim.frontend import context, loops, right_forms
from nki_sim.frontend.argument_values import LanguageFunction
from nki_sim.frontend.declare import (
    empty_like,
    full,
    ndarray,
    ones,
    shared_constant,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from nki_sim.frontend.grids import (
    NkiBlockGrid,
    NkiGrid,
    NkiTileGrid,
    alloc_blocks,
    alloc_tiles,
    blocks,
    tiles,
)
from nki_sim.frontend.loops import (
    affine_range,
    fori_loop,
    no_reorder,
    sequential_range,
    static_range,
    while_loop,
)
from nki_sim.frontend.lowering import FUNCTIONS as COMPUTE
from nki_sim.frontend.namespace import Namespace
from nki_sim.frontend.nki_tensor import NkiTensor
from nki_sim.frontend.program_ids import num_programs, program_id, program_ndim
from nki_sim.frontend.registers import NkiScalar, VirtualRegister
from nki_sim.frontend.storage import MemoryRegion, fail
from nki_sim.frontend.tensor import DynamicSlice, Tensor
from nki_sim.frontend.tile_size import tile_size
from nki_sim.frontend.types import NKIObject
from nki_sim.functions import ALIASES, FUNCTIONS

__all__ = [
    "DType", "MemoryRegion", "NKIObject", "NkiBlockGrid", "NkiGrid", "NkiTensor", "NkiTileGrid",
    "affine_range", "alloc_blocks", "alloc_tiles", "blocks", "broadcast_to", "device_print", "ds",
    "empty_like", "expand_dims", "fori_loop", "full", "hbm", "is_hbm", "is_on_chip", "is_psum",
    "is_sbuf", "ndarray", "no_reorder", "num_programs", "ones", "private_hbm", "program_id", "program_ndim",
    "psum", "sbuf",
    "sequential_range", "shared_constant", "shared_hbm", "shared_identity_matrix", "static_range", "tensor",
    "tile_size", "tiles",
    "while_loop", "zeros", "zeros_like",
]  # fmt: skip

sbuf, psum, hbm = MemoryRegion.sbuf, MemoryRegion.psum, MemoryRegion.hbm
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
tensor = NkiTensor


def ds(start: Any, size: int) -> Any:
    """`size` elements from `start`, which may be a register."""
    if type(start) is int or (
        hasattr(start, "__index__") and not isinstance(start, VirtualRegister | NkiScalar)
    ):
        return slice(int(start), int(start) + size)
    return DynamicSlice(start, size)


def broadcast_to(x: Tensor, shape: Sequence[int], dtype: Any = None) -> Tensor:
    """Return the tile in a larger shape: dimensions of size 1 repeat."""
    found: Tensor = COMPUTE["broadcast_to"](x, shape, dtype)
    return found


def expand_dims(x: Tensor, axis: int) -> Tensor:
    """Return a view with a new dimension of size 1."""
    return x._expand_dim(axis)


def device_print(print_prefix: str, tensor: Tensor) -> None:
    """Print a tensor if the kernel runs eagerly; programs leave it out because no result depends on it."""
    if not isinstance(print_prefix, str) or not isinstance(tensor, Tensor):
        fail("argument_type", "nl.device_print takes a text and a tensor")
    context.device_print(print_prefix, tensor)


def _memory_of(x: Any) -> Any:
    """Return the memory of a tensor, or the memory itself."""
    return getattr(x, "buffer", x)


def is_sbuf(buffer: Any) -> bool:
    """Whether a memory, or a tensor's memory, is SBUF."""
    return bool(_memory_of(buffer) == sbuf)


def is_psum(buffer: Any) -> bool:
    """Whether a memory, or a tensor's memory, is PSUM."""
    return bool(_memory_of(buffer) == psum)


def is_on_chip(buffer: Any) -> bool:
    """Whether a memory, or a tensor's memory, is on chip."""
    return _memory_of(buffer) in {sbuf, psum}


def is_hbm(buffer: Any) -> bool:
    """Whether a memory, or a tensor's memory, is in HBM."""
    return _memory_of(buffer) in {hbm, private_hbm, shared_hbm}


# Documented values that nothing here takes; the instructions that get them report it.
_VALUES = {"bypass", "uint64"}
_FUNCTIONS = {
    name: LanguageFunction(name)
    for name in sorted(FUNCTIONS | ALIASES.keys() | COMPUTE.keys() | _VALUES)
    if name not in __all__
}
globals().update(_FUNCTIONS)
globals().update(DTYPES)
__all__ += list({**_FUNCTIONS, **DTYPES})

FRONT_END = "NKI_COMPILER_FRONTEND"
"""The environment variable that keeps the front end of releases before 0.7, where it is `custom`."""

_namespace = Namespace(
    "nl",
    __all__,
    {"dynamic_range": f"NKI 0.7 removed it: use nl.fori_loop, or set {FRONT_END}=custom while you migrate"},
    right_forms=right_forms.LANGUAGE,
)


def __getattr__(name: str) -> Any:
    if name == "dynamic_range" and os.environ.get(FRONT_END) == "custom":
        return loops.dynamic_range
    return _namespace.refuse_name(name)
