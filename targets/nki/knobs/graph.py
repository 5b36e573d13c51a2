"""A workload as a graph: named dimensions, values over them, calls of operators. Immutable, and its own name.

Dimensions are named `d0`, `d1`, ... in the order in which the inputs have them. A dimension is walked in
tiles of one size, the largest that divides it and that every use of it allows: partitions where it lies on
them anywhere, a bank of PSUM elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

PARTITIONS_PREFIX = "*"
"""Before a dimension's name: the partitions of its tiles, in each of which a row is the same."""

SettingValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension: its size and that of a tile, in elements."""

    name: str
    size: int
    tile: int

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        return self.size // self.tile


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the workload; the first dimension lies on the partitions, a value of one is a column.

    The first `lead` dimensions are those of a batch, which are walked one by one. A value that is `spread`
    over a dimension is a row instead of a column: on the chip the same in every partition of its tiles.
    `memory` is where the calls that read it find it; in PSUM only what the tensor engine computes.

    A dimension may be gone through in *rounds*, a block in each. A value of a `round` is made anew in each of
    that dimension's: of a sum over it, the block's part. One that is `running` is a sum over that dimension
    which is read in every round, as far as it has come.
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    memory: str = "sbuf"
    lead: int = 0
    spread: str | None = None
    round: str | None = None
    running: str | None = None

    @property
    def chip_dims(self) -> tuple[str, ...]:
        """The dimensions of a buffer of it."""
        return self.dims if self.spread is None else (PARTITIONS_PREFIX + self.spread, *self.dims)

    @property
    def core_dims(self) -> tuple[str, ...]:
        """The dimensions that instructions see: those after the batch's."""
        return self.dims[self.lead :]


@dataclass(frozen=True, slots=True)
class Call:
    """An operator on values by slot, with its settings, and the name of its result."""

    operator: str
    operands: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, SettingValue], ...]
    result: str


@dataclass(frozen=True)
class Graph:
    """What a workload computes, on which target. `values` are the inputs and the calls' results, in order."""

    name: str
    target: str
    dims: tuple[Dim, ...]
    inputs: tuple[str, ...]
    values: tuple[Value, ...]
    calls: tuple[Call, ...]
    output: str

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """A graph is looked up with every point of its space: it is hashed once."""
        return hash((self.name, self.target, self.dims, self.values, self.calls))

    @cached_property
    def dim(self) -> Mapping[str, Dim]:
        """Dimensions by name."""
        return {item.name: item for item in self.dims}

    @cached_property
    def rounds(self) -> frozenset[str]:
        """The dimensions that are gone through in rounds."""
        found = (dim for item in self.values for dim in (item.round, item.running))
        return frozenset(dim for dim in found if dim is not None)

    @cached_property
    def value(self) -> Mapping[str, Value]:
        """Values by name."""
        return {item.name: item for item in self.values}

    def core_shape(self, name: str) -> tuple[int, ...]:
        """A value's shape in elements, without the dimensions of a batch."""
        return self.shape(name)[self.value[name].lead :]

    def shape(self, name: str) -> tuple[int, ...]:
        """A value's shape in elements."""
        return tuple(self.dim[dim].size for dim in self.value[name].dims)
