"""A kernel as a graph and three knobs; everything else follows from them.

- `loop_order`: the loops from the outside in. Each dimension has a loop over blocks and, inside it, one over
  the tiles of a block: `d0.block`, `d0.tile`.
- `ltiles_per_block`: the number of tiles in a block of a dimension, a divisor of its tiles.
- `buffer_scopes`: how much of each of its dimensions a buffer holds: one tile, one block, or all of it. For
  the dimension in which a PSUM buffer is partial: whether it is drained after each block, and added up in
  SBUF, or only at the end.

The `repr` of a `KernelIR` is canonical: equal knobs of equal graphs have the same, in whatever form they were
given. Results are cached by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

from targets.nki.knobs.graph import PARTITIONS_PREFIX, Graph
from targets.nki.knobs.plan import BufferPlan, plan_graph

BLOCK, TILE = "block", "tile"

LOOP_ORDER, LTILES, SCOPES = "loop_order", "ltiles_per_block", "buffer_scopes"

Knob = tuple[str, ...]
"""The name of a knob: `("loop_order",)`, `("ltiles_per_block", dim)`, `("buffer_scopes", buffer, dim)`."""


class Scope(IntEnum):
    """How much of a dimension a buffer holds, the least first."""

    PER_TILE = 0
    PER_BLOCK = 1
    FULL = 2

    def __repr__(self) -> str:
        return self.name


Scopes = Mapping[str, Mapping[str, Scope]]


@dataclass(frozen=True)
class KernelIR:
    """A graph and its knobs. Any mapping is accepted; it is stored sorted and immutable."""

    graph: Graph
    loop_order: tuple[str, ...]
    ltiles_per_block: tuple[tuple[str, int], ...] | Mapping[str, int]
    buffer_scopes: tuple[tuple[str, tuple[tuple[str, Scope], ...]], ...] | Scopes

    def __post_init__(self) -> None:
        scopes = {name: tuple(sorted(dict(item).items())) for name, item in dict(self.buffer_scopes).items()}
        object.__setattr__(self, LOOP_ORDER, tuple(self.loop_order))
        object.__setattr__(self, LTILES, tuple(sorted(dict(self.ltiles_per_block).items())))
        object.__setattr__(self, SCOPES, tuple(sorted(scopes.items())))

    @cached_property
    def plan(self) -> BufferPlan:
        """The buffers and steps of its graph."""
        return plan_graph(self.graph)

    @cached_property
    def ltiles(self) -> Mapping[str, int]:
        """Tiles per block by dimension."""
        return dict(self.ltiles_per_block)

    @cached_property
    def scopes(self) -> Scopes:
        """Scopes by buffer and dimension."""
        return {name: dict(item) for name, item in dict(self.buffer_scopes).items()}

    @cached_property
    def loop_position(self) -> Mapping[str, int]:
        """The position of each loop in the order; 0 is the outermost."""
        return {loop: number for number, loop in enumerate(self.loop_order)}

    def tiles_in_scope(self, dim: str, scope: Scope) -> int:
        """The number of tiles of a dimension in a scope."""
        if dim.startswith(PARTITIONS_PREFIX):
            return 1
        return (1, self.ltiles[dim], self.graph.dim[dim].tiles)[scope]

    def held_tiles(self, buffer: str, dim: str) -> int:
        """The number of tiles of one of its dimensions that a buffer holds."""
        return self.tiles_in_scope(dim, self.scopes[buffer].get(dim, Scope.PER_TILE))

    def trip_count(self, loop: str) -> int:
        """The number of iterations of a loop."""
        dim, level = loop.split(".")
        tiles = self.ltiles[dim]
        return self.graph.dim[dim].tiles // tiles if level == BLOCK else tiles

    def with_knob(self, knob: Knob, value: Any) -> KernelIR:
        """The same IR with one knob set to another value; None removes an entry that should not exist."""
        if knob == (LOOP_ORDER,):
            return replace(self, loop_order=value)
        if knob[0] == LTILES:
            return replace(self, ltiles_per_block=_with_item(self.ltiles, knob[1], value))
        _, buffer, dim = knob
        held = _with_item(self.scopes.get(buffer, {}), dim, value)
        return replace(self, buffer_scopes=_with_item(self.scopes, buffer, held or None))


def _with_item(items: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    return {name: item for name, item in {**items, key: value}.items() if item is not None}


def loops_of(graph: Graph) -> tuple[str, ...]:
    """All loops of a graph's dimensions."""
    return tuple(f"{dim.name}.{level}" for dim in graph.dims for level in (BLOCK, TILE))


def knob_signature(ir: KernelIR) -> str:
    """The three knobs of an IR in one line, without its graph."""
    ltiles = ",".join(f"{dim}={count}" for dim, count in ir.ltiles.items())
    scopes = ";".join(
        f"{name}:{','.join(f'{dim}={scope.name}' for dim, scope in item.items())}"
        for name, item in ir.scopes.items()
    )
    return f"{'>'.join(ir.loop_order)} {ltiles} {scopes}"
