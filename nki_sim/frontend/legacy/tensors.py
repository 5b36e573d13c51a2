"""Declarations: `nl.ndarray` and related functions, tensors with block dimensions, `par_dim`.

Dimensions before the partition dimension are blocks. Each block is a tile of its own that exists from its
first use on. The tensor itself is not a tile and takes no room.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from operator import index as to_int
from operator import lt
from typing import Any, NoReturn

from nki_sim.forms import HBM_BUFFERS
from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.legacy.access_patterns import expand_keys
from nki_sim.frontend.legacy.index import INTEGERS, Index
from nki_sim.frontend.legacy.recorder import legacy_recorder
from nki_sim.frontend.legacy.tiles import ASSIGNED, Tile, as_tile, assign_value
from nki_sim.frontend.storage import Declaration
from nki_sim.frontend.tensor import fail


class par_dim(int):  # noqa: N801  the documented spelling
    """The size of the dimension that is laid across partitions."""

    __slots__ = ()


class BlockTensor(KernelValue):
    """A tensor with block dimensions, or some of its blocks: those whose leading indices are `prefix`."""

    __slots__ = ("_made", "_maker", "_prefix", "shape")

    def __init__(
        self, maker: _BlockMaker, made: dict[tuple[int, ...], Tile], prefix: tuple[int, ...]
    ) -> None:
        self._maker = maker
        self._made = made
        self._prefix = prefix
        self.shape = maker.shape[len(prefix) :]

    @property
    def dtype(self) -> Any:
        return self._maker.dtype

    @property
    def buffer(self) -> Any:
        return self._maker.buffer

    @property
    def name(self) -> str:
        return self._maker.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def _describe(self) -> str:
        return f"<tensor {self.name} {self.shape} in blocks>"

    def __getitem__(self, key: Any) -> Tile | BlockTensor:
        keys = key if isinstance(key, tuple) else (key,)
        at = self._maker.rank - len(self._prefix)
        number = self._prefix + keys[:at]
        tile = self._made.get(number) if INTEGERS.issuperset(map(type, number)) else None
        if tile is None:
            if len(number) != self._maker.rank or not self._maker.has_block(number):
                return self._index_blocks(keys)
            tile = self._made[number] = self._maker.make_tile(number)
        rest = keys[at:]
        return tile[rest] if rest else tile

    def __setitem__(self, key: Any, value: Any) -> None:
        unshared = sys.getrefcount(value) <= ASSIGNED
        goal = self[key]
        if isinstance(goal, BlockTensor):
            goal._fill_all(value)
        else:
            assign_value(goal, value, unshared=unshared)

    def __iadd__(self, value: Any) -> NoReturn:
        del value
        self._tile()

    def _index_blocks(self, keys: tuple[Any, ...]) -> Tile | BlockTensor:
        keys = expand_keys(keys, len(self.shape), self.name)
        at = self._maker.rank - len(self._prefix)
        given: list[int] = []
        for item in keys[:at]:
            if all(isinstance(other, slice) and other == slice(None) for other in keys[len(given) :]):
                return BlockTensor(self._maker, self._made, (*self._prefix, *given))
            given.append(self._block_index(item, len(self._prefix) + len(given)))
        tile = self[tuple(given)]
        assert isinstance(tile, Tile)
        rest = keys[at:]
        return tile[rest] if rest else tile

    def _block_index(self, item: Any, axis: int) -> int:
        size = self._maker.shape[axis]
        if isinstance(item, slice) and len(range(*item.indices(size))) == 1:
            item = item.start or 0
        if isinstance(item, Index | slice):
            fail(
                "failed_to_infer_tile_from_local_tensor",
                f"dimension {axis} of {self.name} is a block dimension, one access touches one block",
                "index it with an integer or a loop variable",
            )  # fmt: skip
        try:
            number = to_int(item)
        except TypeError:
            fail("index_type", f"block dimension {axis} of {self.name} indexed with {type(item).__name__}")
        if not -size <= number < size:
            fail(
                "tensor_access_out_of_bound",
                f"index {number} is outside dimension {axis} of {self.name}, which has {size}",
                "check the loop bounds",
            )  # fmt: skip
        return number % size

    def _fill_all(self, value: Any) -> None:
        """Assign a number to every block, as `t[...] = number` does."""
        if not isinstance(value, int | float):
            self._tile()
        left = self._maker.shape[len(self._prefix) : self._maker.rank]
        for number in product(*(range(size) for size in left)):
            goal = self[number]
            assert isinstance(goal, Tile)
            assign_value(goal, value, unshared=False)

    def _tile(self) -> NoReturn:
        """Refuse a tensor in blocks as an operand."""
        fail(
            "failed_to_infer_tile_from_local_tensor",
            f"{self.name} of shape {self.shape} is no tile: its partition dimension is not the first",
            "index the dimensions before it, for example t[i]",
        )  # fmt: skip


def _is_plain(block: tuple[Any, ...]) -> bool:
    return INTEGERS.issuperset(map(type, block))


class _BlockMaker:
    """Makes the tiles of a tensor's blocks."""

    __slots__ = ("_declaration", "_fill", "_iteration", "_patterns", "_place", "_site", "rank", "shape")

    def __init__(
        self, declaration: Declaration, blocks: tuple[int, ...], fill: float | None, place: Any
    ) -> None:
        self._declaration = declaration
        self._site = site = declaration.site
        self.shape = (*blocks, *site.shape)
        self.rank = len(blocks)
        self._fill = fill
        self._place = place
        self._iteration = legacy_recorder().current_iteration
        self._patterns: dict[Any, Any] = {}

    @property
    def dtype(self) -> Any:
        from nki_sim.dtypes import DTYPES

        return DTYPES[self._site.dtype]

    @property
    def buffer(self) -> Any:
        from nki_sim.frontend.storage import MemoryRegion

        return MemoryRegion(self._site.buffer)

    @property
    def name(self) -> str:
        return self._site.name

    def has_block(self, number: tuple[Any, ...]) -> bool:
        """Whether these are plain indices of a block."""
        return _is_plain(number) and min(number) >= 0 and all(map(lt, number, self.shape))

    def make_tile(self, number: tuple[int, ...]) -> Tile:
        recorder = legacy_recorder()
        declaration, site = self._declaration, self._site
        if self._place is not None:
            address = self._place(number, site.shape[0], site.partition_bytes)
            declaration = recorder.declaration_of(replace(site, address=address))
        storage = recorder.allocate_storage(declaration)
        if self._fill is not None:
            recorder.fill_lazily(storage, self._fill, site.line, self._iteration)
        return Tile(storage, 0, declaration.dims, None, self._patterns)


def ndarray(
    shape: Any,
    dtype: Any,
    *,
    buffer: Any = None,
    name: str | None = None,
    init_value: float | None = None,
    **_: Any,
) -> Any:
    """Declare a tensor, by default in SBUF. `par_dim` marks the partition dimension, by default the first.

    `buffer` may be an allocation of `nki.compiler`, which places every block.
    """
    region, place = _parse_buffer(buffer)
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    plain = tuple(to_int(size) if hasattr(size, "__index__") else size for size in sizes)
    if region in HBM_BUFFERS:
        if init_value is not None:
            fail(
                "hbm_tensor_with_init_value", "creating an HBM tensor with an initial value is not supported",
                "declare it with nl.ndarray and fill it with nl.store",
            )  # fmt: skip
        if region == "shared_hbm" and legacy_recorder().is_nested():
            fail(
                "shared_hbm_must_in_kernel_level",
                f"a tensor of shape {plain} in shared HBM is declared in a block or in a function",
                "declare it in the kernel itself, before loops, conditions and calls",
            )  # fmt: skip
        return as_tile(legacy_recorder().declare(plain, dtype, region, name))
    marked = [axis for axis, size in enumerate(sizes) if isinstance(size, par_dim)]
    if len(marked) > 1:
        fail("par_dim", f"shape {plain} has {len(marked)} partition dimensions", "mark one with nl.par_dim")
    axis = marked[0] if marked else 0
    tile = plain[axis:] if len(plain) - axis > 1 else (*plain[axis:], 1)
    if place is not None and init_value is not None:
        legacy_recorder().bar_where_placed(
            "tensor_creation_on_scratchpad_with_init_value_not_allowed",
            f"a tensor of shape {plain} is placed by the kernel and filled with {init_value}",
            "declare it with nl.ndarray, then assign: t[...] = value",
        )  # fmt: skip
    maker = _BlockMaker(
        legacy_recorder().prepare_declaration(tile, dtype, region, name), plain[:axis], init_value, place
    )
    return BlockTensor(maker, {}, ()) if axis else maker.make_tile(())


def _parse_buffer(buffer: Any) -> tuple[str, Any]:
    """The memory's name and, for an allocation, the object that places each block."""
    if buffer is None:
        return "sbuf", None
    place = getattr(buffer, "_place", None)
    if place is not None:
        return str(buffer._memory), place
    name = getattr(buffer, "_region", buffer)
    if not isinstance(name, str):
        fail("unsupported_memory", f"buffer={buffer!r} is not a buffer", "nl.sbuf, nl.psum, nl.shared_hbm...")
    return str(name), None


def full(shape: Any, fill_value: Any, dtype: Any, **options: Any) -> Any:
    """Declare a tensor of one value; all fills are lazy here, with or without `lazy_initialization`."""
    return ndarray(shape, dtype, init_value=float(fill_value), **options)


def zeros(shape: Any, dtype: Any, **options: Any) -> Any:
    """Declare a tensor of zeros."""
    return full(shape, 0.0, dtype, **options)


def ones(shape: Any, dtype: Any, **options: Any) -> Any:
    """Declare a tensor of ones."""
    return full(shape, 1.0, dtype, **options)


def zeros_like(x: Any, *, dtype: Any = None, buffer: Any = None, **options: Any) -> Any:
    """Declare zeros in the shape of `x`; type and buffer default to those of `x`."""
    return zeros(x.shape, dtype or x.dtype, buffer=buffer or x.buffer, **options)


def empty_like(x: Any, *, dtype: Any = None, buffer: Any = None, **options: Any) -> Any:
    """Declare a tensor in the shape of `x`; type and buffer default to those of `x`."""
    return ndarray(x.shape, dtype or x.dtype, buffer=buffer or x.buffer, **options)
