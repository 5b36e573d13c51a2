"""A kernel as a tree of loops: the result of the knobs, before it is run or written as source.

Positions along a dimension are counted in tiles. In HBM they refer to the whole array, in a buffer to what it
holds. A buffer on the chip is `rows` partitions high. For each tile of its first dimension it has, in every
partition, a row of `row` elements, or one element if it is a column. The tiles of a batch lie one after the
other.
"""

from __future__ import annotations

from dataclasses import dataclass

from targets.nki.knobs.operators import Operator, Settings


@dataclass(frozen=True, slots=True)
class Span:
    """`tiles` tiles of `tile` elements, starting at the sum of variables times factors."""

    terms: tuple[tuple[str, int], ...]
    tiles: int
    tile: int

    @property
    def size(self) -> int:
        """Elements."""
        return self.tiles * self.tile


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an array in HBM or of a buffer, dimension by dimension; `lead` is its place in a batch.

    With `rows` it is a row of a one-dimensional array, repeated that often.
    """

    tensor: str
    spans: tuple[Span, ...]
    lead: tuple[Span, ...] = ()
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile declared on the chip."""

    name: str
    memory: str
    rows: int
    tiles: int
    row: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Allocate:
    """Creates a buffer."""

    tile: Tile


@dataclass(frozen=True, slots=True)
class Fill:
    """Fills a buffer with one value, from which sums start."""

    tile: Tile
    value: float


@dataclass(frozen=True)
class Statement:
    """One iteration of a step. With `adds` the result is combined with what is there, by `combine`."""

    entry: Operator
    settings: Settings
    operands: tuple[tuple[str, Region], ...]
    result: Region
    adds: bool
    combine: str
    scratch: tuple[Tile, ...]


@dataclass(frozen=True)
class Loop:
    """A loop over the blocks of a dimension, or the tiles of a block."""

    variable: str
    trips: int
    body: tuple[Node, ...]


Node = Loop | Allocate | Fill | Statement


@dataclass(frozen=True)
class Array:
    """A tensor in HBM."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class KernelTree:
    """The whole kernel. Buffers are stored by name: their shapes do not change between loops."""

    name: str
    inputs: tuple[Array, ...]
    output: Array
    buffers: tuple[Tile, ...]
    body: tuple[Node, ...]
