"""How large the space of a graph is, and all of its points, or all valid ones, in turn where they are few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import factorial, prod

from agent_core.knobs.graph import Graph
from agent_core.knobs.ir import BLOCK, TILE, KernelIR, loops_of
from agent_core.knobs.malformed import choices, scopes_of
from agent_core.knobs.narrowing import widest
from agent_core.knobs.neighbours import is_valid
from agent_core.knobs.placement import Place, placed
from agent_core.knobs.plan import Buffer, plan_of
from agent_core.knobs.structure import contradictions


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


def valid_points(graph: Graph, order: tuple[str, ...], ltiles: Mapping[str, int]) -> Iterator[KernelIR]:
    """Every valid point of an order and block sizes, but for those that place and hold the same as another.

    Scopes are chosen from the last buffer to the first, since contexts are found from the output backwards.
    What contradicts itself among steps of which all is chosen is given up at once.
    """
    start = widest(graph, order, dict(ltiles))
    yield from _chosen(start, list(start.plan.buffers))


def _chosen(ir: KernelIR, left: list[Buffer]) -> Iterator[KernelIR]:
    if not left:
        if is_valid(ir):
            yield ir
        return
    buffer, rest = left[-1], left[:-1]
    open_ = {item.name for item in rest}
    seen = set()
    for option in product(*(scopes_of(dim == buffer.partial) for dim in buffer.scoped)):
        chosen = dict(zip(buffer.scoped, option, strict=True))
        made = replace(ir, buffer_scopes={**ir.scopes, buffer.name: chosen})
        place = placed(made)
        key = _placing(made, place, buffer)
        if key in seen:
            continue
        seen.add(key)
        if not any(_is_final(made, item.buffer, open_) for item in contradictions(made, place)):
            yield from _chosen(made, rest)


def _placing(ir: KernelIR, place: Place, buffer: Buffer) -> object:
    """What a buffer's scopes come to: how much it holds, how deep it is, and what its users take at once."""
    users = [step.number for step in ir.plan.steps if buffer.name in step.tensors]
    held = tuple(ir.tiles(dim, ir.scopes[buffer.name][dim]) for dim in buffer.scoped)
    spans = tuple(scope for (number, _), scope in place.spans.items() if number in users)
    return held, place.depths[buffer.name], spans


def _is_final(ir: KernelIR, buffer: str, open_: AbstractSet[str]) -> bool:
    """Whether nothing that is still to be chosen places the users of a buffer, or those of their results."""
    todo, seen = [step for step in ir.plan.steps if buffer in step.tensors], set()
    while todo:
        step = todo.pop()
        if step.number in seen:
            continue
        seen.add(step.number)
        if not open_.isdisjoint(step.tensors):
            return False
        todo.extend(ir.plan.consumers.get(step.result, ()))
    return True
