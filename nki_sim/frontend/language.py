"""`nki.language`: buffers, types, loops, tensor declarations and the functions that serve as `op=` values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nki_sim.dtypes import DTYPES
from nki_sim.frontend.recorder import current
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.frontend.values import Function
from nki_sim.functions import ALIASES, FUNCTIONS


class Buffer:
    """A memory in which tensors live."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"nl.{self.name}"


sbuf, psum, hbm = Buffer("sbuf"), Buffer("psum"), Buffer("hbm")
private_hbm, shared_hbm = Buffer("private_hbm"), Buffer("shared_hbm")


class _TileSize:
    """Limits of the target being traced; elements unless the name says bytes."""

    @property
    def pmax(self) -> int:
        return current().target.partitions

    @property
    def gemm_stationary_fmax(self) -> int:
        return current().target.matmul_stationary_max

    @property
    def gemm_moving_fmax(self) -> int:
        return current().target.matmul_moving_max

    @property
    def psum_fmax(self) -> int:
        return current().target.psum_bank_bytes // 4

    psum_bank_fmax = psum_fmax

    @property
    def psum_bank_fmax_bytes(self) -> int:
        return current().target.psum_bank_bytes

    @property
    def psum_num_banks(self) -> int:
        return current().target.psum_banks

    @property
    def sbuf_size_bytes(self) -> int:
        return current().target.partitions * current().target.sbuf_usable_bytes

    @property
    def sbuf_fmax_bytes(self) -> int:
        return current().target.sbuf_usable_bytes

    total_available_sbuf_size = sbuf_fmax_bytes


tile_size = _TileSize()


def ndarray(
    shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str | None = None, **unknown: object
) -> Tensor:
    """Declare a tensor. Inside a loop each iteration declares a fresh one, which lets iterations overlap."""
    for key, value in unknown.items():
        if value is not None:
            fail("unsupported_argument", f"not supported yet: nl.ndarray({key}=)")
    if not isinstance(buffer, Buffer):
        fail("unsupported_memory", f"buffer={buffer!r} is not a buffer", "nl.sbuf, nl.psum, nl.shared_hbm...")
    return current().declare(shape, dtype, buffer.name, name)


def empty_like(x: Tensor, dtype: Any = None, buffer: Any = None, name: str | None = None) -> Tensor:
    """A tensor of the same shape; type and buffer as given or as `x`."""
    return current().declare(x.shape, dtype or x.dtype, buffer.name if buffer else x.buffer, name)


def ds(start: int, size: int) -> slice:
    """`size` elements from `start`."""
    return slice(start, start + size)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Plain `range`; iterations are unrolled."""
    return range(start) if stop is None else range(start, stop, step)


sequential_range = static_range = affine_range


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Dimensions of size 1 repeated."""
    return x.broadcast_to(shape)


def expand_dims(x: Tensor, axis: int) -> Tensor:
    """A new dimension of size 1."""
    return x.expand_dim(axis)


def program_id(axis: int) -> int:
    """One program: always 0."""
    del axis
    return 0


def num_programs(axis: int = 0) -> int:
    """One program: always 1."""
    del axis
    return 1


def is_sbuf(x: Tensor) -> bool:
    return x.buffer == "sbuf"


def is_psum(x: Tensor) -> bool:
    return x.buffer == "psum"


def is_hbm(x: Tensor) -> bool:
    return not x.storage.on_chip


_FUNCTIONS = {name: Function(name) for name in sorted(FUNCTIONS | ALIASES.keys())}
globals().update(_FUNCTIONS)
globals().update(DTYPES)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Function(name)
