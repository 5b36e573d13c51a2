"""`nki.compiler`: placement of tiles by the kernel, and directives to the vendor's compiler.

An allocation is passed as `buffer=`. It places each logical block of a tensor: `alloc` by a function of the
kernel, `mod_alloc` by the documented formula, block index modulo the number of physical tiles. Directives
change neither results nor placement here, except `force_auto_alloc`, which drops the kernel's placements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from operator import index as to_int
from typing import Any, TypeVar

from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.recorder import current_recorder
from nki_sim.frontend.tensor import MemoryRegion, fail

__all__ = [
    "allocation_scope", "enable_stack_allocator", "force_auto_alloc", "multi_buffer", "no_reorder", "psum",
    "sbuf", "skip_middle_end_transformations",
]  # fmt: skip

Address = tuple[int, int]
"""First partition, and byte in each partition."""

PlacementFunction = Callable[..., Any]
"""`idx` (block index), `pdim_size` (partitions), `fdim_size` (bytes per partition) -> the tile's place."""

Decorated = TypeVar("Decorated")


class Allocation(KernelValue):
    """A memory and where each block goes in it; `_place` returns the address that tiles are declared with."""

    __slots__ = ("_function", "_locate", "_memory")

    def __init__(
        self, memory: str, function: PlacementFunction, locate: Callable[[Any, int], Address]
    ) -> None:
        self._memory = memory
        self._function = function
        self._locate = locate

    def _describe(self) -> str:
        return f"<allocation in {self._memory}>"

    def _place(self, block: Sequence[int], partitions: int, nbytes: int) -> Address | None:
        """Return (first partition, byte) of a block's tile; None if placements are dropped."""
        if current_recorder().auto_alloc:
            return None
        current_recorder().placed = True
        # By keyword, because functions may have more parameters, bound beforehand.
        found = self._function(idx=tuple(block), pdim_size=partitions, fdim_size=nbytes)
        return self._locate(found, nbytes)


def _require_integers(what: str, found: Any, names: str) -> list[int]:
    try:
        numbers = [to_int(item) for item in found]
    except TypeError:
        numbers = []
    if len(numbers) != names.count(",") + 1 or any(item < 0 for item in numbers):
        fail("allocation", f"{what} returned {found!r}", f"return ({names}), integers from 0 on")
    return numbers


def _sbuf_address(found: Any, nbytes: int) -> Address:
    del nbytes
    partition, byte = _require_integers("the function of sbuf.alloc", found, "start_partition, byte_addr")
    return partition, byte


def _psum_address(found: Any, nbytes: int) -> Address:
    names = "bank_id, start_partition, byte_addr"
    bank, partition, byte = _require_integers("the function of psum.alloc", found, names)
    size = current_recorder().target.psum_bank_bytes
    if nbytes > size:
        fail(
            "psum_bank", f"a tile of {nbytes} bytes per partition is placed in PSUM, a bank has {size}",
            "a placed PSUM tile lies in one bank: at most 512 float32 per partition",
        )  # fmt: skip
    if partition or byte:
        fail(
            "allocation", f"a PSUM tile is placed at partition {partition}, byte {byte} of its bank",
            "start_partition and byte_addr must be 0 in PSUM",
        )  # fmt: skip
    return 0, bank * size


def _modulo_formula(base: int, tiles: Sequence[int], scale: int) -> Callable[[Sequence[int]], int]:
    """base + scale * (the block index modulo `tiles`, as one row-major number); empty `tiles` mean one tile.

    The documented formula pairs indices with tiles; a tensor without block dimensions lies at the base.
    """
    counts = tuple(tiles)

    def number(block: Sequence[int]) -> int:
        if counts and block and len(counts) != len(block):
            fail(
                "allocation", f"{counts} tiles for {len(block)} block dimensions",
                "give one number of tiles for each block dimension, or none",
            )  # fmt: skip
        steps = [prod(counts[axis + 1 :]) for axis in range(len(counts))]
        found = sum(at % size * step for at, size, step in zip(block, counts, steps, strict=False))
        return base + scale * found

    return number


class _MemorySpace(KernelValue):
    """`ncc.sbuf`, `ncc.psum`: a buffer, and the ways to place tiles in it."""

    __slots__ = ("_region",)

    def __init__(self, name: MemoryRegion) -> None:
        self._region = name

    def _describe(self) -> str:
        return f"nki.compiler.{self._region.value}"

    def auto_alloc(self) -> MemoryRegion:
        """Let the compiler place the tile, as the plain buffer does."""
        return self._region


class _Sbuf(_MemorySpace):
    __slots__ = ()

    def alloc(self, func: PlacementFunction) -> Allocation:
        """Place blocks by `func(block, partitions, bytes)`, which returns (start_partition, byte_addr)."""
        return Allocation("sbuf", func, _sbuf_address)

    def mod_alloc(
        self,
        *,
        base_addr: int,
        base_partition: int = 0,
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
    ) -> Allocation:
        """Place tiles in turn along the partitions and the bytes of each partition, from a base."""

        def place(idx: tuple[int, ...], pdim_size: int, fdim_size: int) -> Address:
            first = _modulo_formula(base_partition, num_par_tiles, pdim_size)(idx)
            return first, _modulo_formula(base_addr, num_free_tiles, fdim_size)(idx)

        return self.alloc(place)


class _Psum(_MemorySpace):
    __slots__ = ()

    def alloc(self, func: PlacementFunction) -> Allocation:
        """Place blocks by `func(block, partitions, bytes)`, which returns (bank_id, start_partition,
        byte_addr).
        """
        return Allocation("psum", func, _psum_address)

    def mod_alloc(
        self,
        *,
        base_bank: int,
        base_addr: int = 0,
        base_partition: int = 0,
        num_bank_tiles: Sequence[int] = (),
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
    ) -> Allocation:
        """Place tiles in turn over banks, partitions and the bytes of a bank, from a base."""

        def place(idx: tuple[int, ...], pdim_size: int, fdim_size: int) -> tuple[int, int, int]:
            bank = _modulo_formula(base_bank, num_bank_tiles, 1)(idx)
            first = _modulo_formula(base_partition, num_par_tiles, pdim_size)(idx)
            return bank, first, _modulo_formula(base_addr, num_free_tiles, fdim_size)(idx)

        return self.alloc(place)


sbuf, psum = _Sbuf(MemoryRegion.sbuf), _Psum(MemoryRegion.psum)


# -- directives ----------------------------------------------------------------------------------


def skip_middle_end_transformations(func: Decorated) -> Decorated:
    """Keep the kernel's instructions as they are, which this simulator always does."""
    return func


def enable_stack_allocator(func: Any = None, log_level: int = 50) -> Any:
    """Accept the kernel; the vendor's compiler allocates tiles by scope, which does not change results."""
    del log_level
    return func if func is not None else lambda kernel: kernel


def force_auto_alloc(func: Any = None) -> Any:
    """Ignore direct allocation in the kernel."""
    if func is None:
        return force_auto_alloc
    getattr(func, "_function", func).auto_alloc = True
    return func


@contextmanager
def _ignored_directive() -> Iterator[None]:
    yield


def allocation_scope() -> Any:
    """Return a scope of tensors for the compiler's allocator, which does not change results."""
    return _ignored_directive()


def no_reorder() -> Any:
    """Return a guard in which the compiler keeps the order of instructions."""
    return _ignored_directive()


def multi_buffer(factor: int = 2) -> Any:
    """Set how many buffers the compiler's allocator rotates; a hint here."""
    if type(factor) is not int or factor < 1:
        fail("argument_value", f"multi_buffer(factor={factor!r})", "a number of buffers from 1 on")
    return _ignored_directive()
