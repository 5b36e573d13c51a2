"""A workload as a graph: named dimensions, values over them, calls of operators; immutable and hashable.

Dimensions are named `d0`, `d1`, ... in the order in which the inputs have them. A dimension is walked in
tiles of one size, the largest that divides it and that all its uses allow: the partitions if it lies on them
anywhere, else a bank of PSUM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

PARTITIONS_PREFIX = "*"
"""Prefix of a dimension's name: the partitions of its tiles, where every partition holds the same row."""

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
    """A tensor of the workload; the first dimension lies on the partitions, one dimension is a column.

    The first `lead` dimensions are those of a batch, which are walked one by one. A value that is `spread`
    over a dimension is a row instead of a column: the chip holds it identically in every partition of its
    tiles. `memory` is where its readers find it; only results of the tensor engine can be in PSUM.

    A dimension may be walked in *rounds*, one block per round. A value with a `round` is made again in each
    round of that dimension: for a sum over it, only the block's part. A `running` value is a sum over that
    dimension which is read in every round, as far as it has come.
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
        """The dimensions that instructions see: those after the batch."""
        return self.dims[self.lead :]


@dataclass(frozen=True, slots=True)
class Call:
    """An operator applied to values by slot, with its settings, and the name of its result."""

    operator: str
    operands: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, SettingValue], ...]
    result: str


@dataclass(frozen=True)
class Graph:
    """What a workload computes on a target. `values` are the inputs and the calls' results, in order."""

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
        """Computed once: a graph is looked up with every point of its space."""
        return hash((self.name, self.target, self.dims, self.values, self.calls))

    @cached_property
    def dim(self) -> Mapping[str, Dim]:
        """Dimensions by name."""
        return {item.name: item for item in self.dims}

    @cached_property
    def rounds(self) -> frozenset[str]:
        """The dimensions that are walked in rounds."""
        found = (dim for item in self.values for dim in (item.round, item.running))
        return frozenset(dim for dim in found if dim is not None)

    @cached_property
    def value(self) -> Mapping[str, Value]:
        """Values by name."""
        return {item.name: item for item in self.values}

    def core_shape(self, name: str) -> tuple[int, ...]:
        """A value's shape in elements, without batch dimensions."""
        return self.shape(name)[self.value[name].lead :]

    def shape(self, name: str) -> tuple[int, ...]:
        """A value's shape in elements."""
        return tuple(self.dim[dim].size for dim in self.value[name].dims)
