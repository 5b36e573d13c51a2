"""How large the space of a graph is, and all of its points in turn where they are few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial, prod

from agent_core.knobs.graph import Graph
from agent_core.knobs.ir import BLOCK, TILE, KernelIR, loops_of
from agent_core.knobs.malformed import choices, scopes_of
from agent_core.knobs.plan import plan_of


@dataclass(frozen=True, slots=True)
class Size:
    """How many values each knob has. Every combination is a point; not every point is valid."""

    loop_orders: int
    block_sizes: int
    buffer_scopes: int

    @property
    def points(self) -> int:
        """How many combinations there are."""
        return self.loop_orders * self.block_sizes * self.buffer_scopes


def size_of(graph: Graph) -> Size:
    """The size of a graph's space: (2n)! / 2^n orders of n dimensions, divisors, scopes."""
    count = len(graph.dims)
    scopes = (len(item) for _, _, item in _scopes(graph))
    return Size(
        loop_orders=factorial(2 * count) // 2**count,
        block_sizes=prod(len(choices(graph, dim.name)) for dim in graph.dims),
        buffer_scopes=prod(scopes),
    )


def points(graph: Graph) -> Iterator[KernelIR]:
    """Every point of the space, valid or not, in a fixed order."""
    blocks = list(product(*(choices(graph, dim.name) for dim in graph.dims)))
    names = [(buffer, dim) for buffer, dim, _ in _scopes(graph)]
    for order in orders(graph):
        for counts, held in product(blocks, product(*(item for _, _, item in _scopes(graph)))):
            ltiles = {dim.name: count for dim, count in zip(graph.dims, counts, strict=True)}
            scopes: dict[str, dict[str, object]] = {}
            for (buffer, dim), scope in zip(names, held, strict=True):
                scopes.setdefault(buffer, {})[dim] = scope
            yield KernelIR(graph, order, ltiles, scopes)  # type: ignore[arg-type]


def orders(graph: Graph) -> Iterator[tuple[str, ...]]:
    """Every order of loops in which blocks are outside of their tiles."""
    for order in permutations(loops_of(graph)):
        if all(order.index(f"{dim.name}.{BLOCK}") < order.index(f"{dim.name}.{TILE}") for dim in graph.dims):
            yield order


def _scopes(graph: Graph) -> Iterator[tuple[str, str, tuple[object, ...]]]:
    for buffer in plan_of(graph).buffers:
        for dim in buffer.scoped:
            yield buffer.name, dim, scopes_of(dim == buffer.partial)
