"""Grids of tiles and blocks (NKI 0.7): views of a tensor that are indexed by tile, not by element.

`nl.tiles` and `nl.blocks` make grids of a tensor, `nl.alloc_tiles` and `nl.alloc_blocks` of a new one.
Making and indexing a grid moves no data; `grid.data` is the tensor that an instruction takes. The last tile
or block along a dimension ends where the tensor does. New grids in HBM are stored as their elements; in
SBUF and PSUM all tiles lie side by side in the free dimension, each with its full width.

Source: the generated API pages of SDK 2.33. They do not say which selections of tiles in SBUF one operand can
stand for: here those that lie side by side, in one row of tiles. They do not say either whether
`element_shape` keeps a dimension that an index consumed: here tiled ones, but not those before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

from nki_sim.frontend.declare import ndarray
from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.storage import MemoryRegion, fail
from nki_sim.frontend.tensor import Tensor

__all__ = ["NkiBlockGrid", "NkiGrid", "NkiTileGrid", "alloc_blocks", "alloc_tiles", "blocks", "tiles"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Extent:
    """One source dimension of a grid: its elements from `begin` to `end`, in cells of `step`.

    `tile` is 0 before the tiled dimensions. A `consumed` dimension was selected by an integer.
    """

    begin: int
    end: int
    step: int
    tile: int
    consumed: bool = False

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def cells(self) -> int:
        return -(-self.size // self.step)

    def select(self, first: int, last: int, *, consumed: bool) -> _Extent:
        end = min(self.end, self.begin + last * self.step)
        return replace(self, begin=self.begin + first * self.step, end=end, consumed=consumed)


@dataclass(frozen=True, slots=True)
class _Elements:
    """A tensor whose elements lie as its shape says."""

    tensor: Tensor

    def select(self, extents: tuple[_Extent, ...]) -> Tensor | None:
        key = tuple(
            one.begin if one.consumed and not one.tile else slice(one.begin, one.end) for one in extents
        )
        return self.tensor[key]


@dataclass(frozen=True, slots=True)
class _SideBySide:
    """A tile of `tile_shape` after the other in the free dimension, in the order of `counts`."""

    tensor: Tensor
    tile_shape: Shape
    counts: Shape

    def select(self, extents: tuple[_Extent, ...]) -> Tensor | None:
        """Return the selected tiles as one operand: one tile, or neighbours along the last dimension."""
        lengths = tuple(-(-one.size // one.tile) for one in extents)
        if any(length > 1 for length in lengths[:-1]):
            return None
        at = 0
        for one, count in zip(extents, self.counts, strict=True):
            at = at * count + one.begin // one.tile
        if len(extents) == 2:
            begin = at * self.tile_shape[1]
            return self.tensor[: extents[0].size, begin : begin + extents[1].size]
        if lengths[-1] > 1:
            return None
        width = prod(self.tile_shape[1:])
        tile = self.tensor[:, at * width : (at + 1) * width].reshape(self.tile_shape)
        return tile[tuple(slice(0, one.size) for one in extents)]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NkiGrid(KernelValue):
    """A region of a tensor as cells: tiles, or blocks of tiles."""

    _store: _Elements | _SideBySide
    _extents: tuple[_Extent, ...]

    def _describe(self) -> str:
        return f"<{type(self).__name__} {self.shape} of tiles {self.tile_shape} in {self.buffer}>"

    @property
    def shape(self) -> Shape:
        """The number of cells along each dimension that is left."""
        return tuple(one.cells for one in self._extents if not one.consumed)

    @property
    def tile_shape(self) -> Shape:
        """Elements of one whole tile."""
        return tuple(one.tile for one in self._extents if one.tile)

    @property
    def element_shape(self) -> Shape:
        """Elements that are selected along each dimension."""
        return tuple(one.size for one in self._extents if one.tile or not one.consumed)

    @property
    def index_step_elements(self) -> Shape:
        """Elements from one cell to the next along each dimension that is left."""
        return tuple(one.step for one in self._extents if not one.consumed)

    @property
    def is_remainder(self) -> bool:
        """Whether a cell of this selection ends before its full size."""
        return any(one.size % one.step for one in self._extents)

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self._store.tensor.dtype

    @property
    def buffer(self) -> MemoryRegion:
        """The memory that holds them."""
        return self._store.tensor.buffer

    @property
    def is_data_representable(self) -> bool:
        """Whether `data` can stand for this selection."""
        return self._store.select(self._extents) is not None

    @property
    def data(self) -> Tensor:
        """The selected elements as one tensor."""
        found = self._store.select(self._extents)
        if found is None:
            fail(
                "grid_selection", f"cells {self.shape} that lie apart in {self.buffer} are not one operand",
                "select one tile, or tiles of one row that lie side by side",
            )  # fmt: skip
        return found

    def _regroup(self, kind: type[Any], steps: Iterator[int]) -> Any:
        """This selection, with all its tiled dimensions, as cells of other sizes."""
        extents = (
            replace(one, step=next(steps), consumed=False) if one.tile else one for one in self._extents
        )
        return kind(self._store, tuple(extents))

    def __getitem__(self, key: Any) -> Self:
        keys = key if isinstance(key, tuple) else (key,)
        left = [at for at, one in enumerate(self._extents) if not one.consumed]
        if len(keys) > len(left):
            fail("too_many_indices", f"{len(keys)} indices for a grid of {len(left)} dimensions")
        extents = list(self._extents)
        for at, one in zip(left, keys, strict=False):
            extents[at] = _select(extents[at], one)
        return replace(self, _extents=tuple(extents))


class NkiTileGrid(NkiGrid):
    """A grid whose cells are tiles."""

    __slots__ = ()


class NkiBlockGrid(NkiGrid):
    """A grid whose cells are blocks of tiles."""

    __slots__ = ()

    @property
    def block_shape(self) -> Shape:
        """Tiles of one whole block."""
        return tuple(one.step // one.tile for one in self._extents if one.tile)


def _select(extent: _Extent, key: Any) -> _Extent:
    cells = extent.cells
    if isinstance(key, slice):
        first, last, step = key.indices(cells)
        if step != 1 or last <= first:
            fail("slice", f"a grid is sliced in steps of 1 and not to nothing, this is {key}")
        return extent.select(first, last, consumed=False)
    if type(key) is not int:
        fail("index_type", f"a grid is indexed by integers and slices, this is {type(key).__name__}")
    at = key + cells if key < 0 else key
    if not 0 <= at < cells:
        fail("index_range", f"index {key} is outside of the grid's {cells} cells")
    return extent.select(at, at + 1, consumed=True)


def _check_shape(name: str, value: Any, rank: int | None = None) -> Shape:
    if not isinstance(value, tuple) or any(type(one) is not int or one < 1 for one in value):
        fail("argument_type", f"{name} must be a tuple of positive integers, this is {value!r}")
    if rank is None and len(value) < 2:
        fail("shape", f"{name} has {len(value)} dimensions, it must have two or more")
    if rank is not None and len(value) != rank:
        fail("shape", f"{name} has {len(value)} dimensions, it must have {rank}")
    return value


def _extents_of(element_shape: Shape, tile_shape: Shape, block_shape: Shape) -> tuple[_Extent, ...]:
    before = len(element_shape) - len(tile_shape)
    if before < 0:
        fail("shape", f"tile_shape {tile_shape} has more dimensions than the tensor's {element_shape}")
    return (
        *(_Extent(0, size, 1, 0) for size in element_shape[:before]),
        *(
            _Extent(0, size, tile * block, tile)
            for size, tile, block in zip(element_shape[before:], tile_shape, block_shape, strict=True)
        ),
    )


def _make_grid(source: Any, tile_shape: Any, block_shape: Any, *, kind: type[Any]) -> Any:
    if isinstance(source, NkiGrid):
        wanted = source.tile_shape if tile_shape is None else _check_shape("tile_shape", tile_shape)
        blocks_of = (1,) * len(wanted) if block_shape is None else block_shape
        if wanted == source.tile_shape:
            per_block = _check_shape("block_shape", blocks_of, len(wanted))
            steps = iter([tile * block for tile, block in zip(wanted, per_block, strict=True)])
            return source._regroup(kind, steps)
        source = source.data
    if not isinstance(source, Tensor):
        fail("argument_type", f"a grid is made of a tensor or another grid, this is {type(source).__name__}")
    if tile_shape is None:
        fail("missing_argument", "tile_shape is missing: a tensor has none of its own")
    wanted = _check_shape("tile_shape", tile_shape)
    per_block = _check_shape(
        "block_shape", (1,) * len(wanted) if block_shape is None else block_shape, len(wanted)
    )
    return kind(_Elements(source), _extents_of(source.shape, wanted, per_block))


def tiles(source: Any, *, tile_shape: Shape | None = None) -> NkiTileGrid:
    """Return a tensor, or the inside of a grid's selection, as a grid of tiles."""
    found: NkiTileGrid = _make_grid(source, tile_shape, None, kind=NkiTileGrid)
    return found


def blocks(source: Any, *, tile_shape: Shape | None = None, block_shape: Shape) -> NkiBlockGrid:
    """Return a tensor, or the inside of a grid's selection, as a grid of blocks of tiles."""
    found: NkiBlockGrid = _make_grid(source, tile_shape, block_shape, kind=NkiBlockGrid)
    return found


def alloc_tiles(
    *, tile_shape: Shape, element_shape: Shape, buffer: MemoryRegion, dtype: Any,
    address: tuple[int, int] | None = None, name: str = "",
) -> NkiTileGrid:  # fmt: skip
    """Declare a tensor as a grid of tiles."""
    store = _allocate(
        tile_shape, element_shape, buffer=buffer, dtype=dtype, address=address, name=name or None
    )
    return NkiTileGrid(store, _extents_of(element_shape, tile_shape, (1,) * len(tile_shape)))


def alloc_blocks(
    *, tile_shape: Shape, block_shape: Shape, element_shape: Shape, buffer: MemoryRegion, dtype: Any,
    address: tuple[int, int] | None = None, name: str = "",
) -> NkiBlockGrid:  # fmt: skip
    """Declare a tensor as a grid of blocks of tiles; the blocks do not change how it is stored."""
    store = _allocate(
        tile_shape, element_shape, buffer=buffer, dtype=dtype, address=address, name=name or None
    )
    _check_shape("block_shape", block_shape, len(tile_shape))
    return NkiBlockGrid(store, _extents_of(element_shape, tile_shape, block_shape))


def _allocate(
    tile_shape: Shape, element_shape: Shape, *, buffer: MemoryRegion, **declared: Any
) -> _Elements | _SideBySide:
    _check_shape("tile_shape", tile_shape)
    _check_shape("element_shape", element_shape)
    if buffer not in (MemoryRegion.sbuf, MemoryRegion.psum):
        return _Elements(ndarray(element_shape, buffer=buffer, **declared))
    if len(tile_shape) != len(element_shape):
        fail("shape", f"on chip all dimensions are tiled: {tile_shape} of {element_shape} is not")
    counts = tuple(-(-size // tile) for size, tile in zip(element_shape, tile_shape, strict=True))
    shape = (tile_shape[0], prod(counts) * prod(tile_shape[1:]))
    return _SideBySide(ndarray(shape, buffer=buffer, **declared), tile_shape, counts)
