"""A kernel as a tree of loops: what the knobs come to, before it is run or written down.

Places along a dimension are counted in tiles. In HBM they are those of the whole array; in a buffer those
of what it holds. A buffer on the chip is `rows` partitions high; for each tile of its first dimension it
has a row of `row` elements in every partition, or of one element if it is a column. The tiles of a batch lie
one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from targets.nki.knobs.operators import Operator, Settings


@dataclass(frozen=True, slots=True)
class Span:
    """`tiles` tiles of `tile` elements, from the sum of variables times factors on."""

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

    With `rows` it is a row of an array of one dimension, the same that often.
    """

    tensor: str
    spans: tuple[Span, ...]
    lead: tuple[Span, ...] = ()
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Tile:
    """What is declared on the chip."""

    name: str
    memory: str
    rows: int
    tiles: int
    row: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Allocate:
    """Makes a buffer anew."""

    tile: Tile


@dataclass(frozen=True, slots=True)
class Fill:
    """Gives all of a buffer one value, that sums start from."""

    tile: Tile
    value: float


@dataclass(frozen=True)
class Statement:
    """One round of a step. With `adds` the result is combined with what is there, by `combine`."""

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
    """The whole kernel. Buffers are by name: their shapes do not change from one loop to another."""

    name: str
    inputs: tuple[Array, ...]
    output: Array
    buffers: tuple[Tile, ...]
    body: tuple[Node, ...]
