"""Counts the points of a graph's space, and enumerates its points or programs where they are few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import factorial, prod

from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import BLOCK, TILE, KernelIR, loops_of
from targets.nki.knobs.knob_values import block_choices, put_blocks_first, scope_choices
from targets.nki.knobs.narrowing import Layout, build_layout, widest_ir
from targets.nki.knobs.placement import Placement, compute_placement
from targets.nki.knobs.placement_checks import find_contradictions
from targets.nki.knobs.plan import Buffer, plan_graph
from targets.nki.knobs.program import layout_digest


@dataclass(frozen=True, slots=True)
class SpaceSize:
    """The number of values of each knob. Every combination is a point; not every point is valid."""

    loop_orders: int
    block_sizes: int
    buffer_scopes: int

    @property
    def points(self) -> int:
        """The number of combinations."""
        return self.loop_orders * self.block_sizes * self.buffer_scopes


def space_size(graph: Graph) -> SpaceSize:
    """The size of a graph's space: (2n)! / 2^n orders of n dimensions, divisors, scopes."""
    count = len(graph.dims)
    scopes = (len(item) for _, _, item in _scope_knobs(graph))
    return SpaceSize(
        loop_orders=factorial(2 * count) // 2**count,
        block_sizes=prod(len(block_choices(graph, dim.name)) for dim in graph.dims),
        buffer_scopes=prod(scopes),
    )


def iter_points(graph: Graph) -> Iterator[KernelIR]:
    """Every point of the space, valid or not, in a fixed order."""
    blocks = list(product(*(block_choices(graph, dim.name) for dim in graph.dims)))
    names = [(buffer, dim) for buffer, dim, _ in _scope_knobs(graph)]
    for order in iter_loop_orders(graph):
        for counts, held in product(blocks, product(*(item for _, _, item in _scope_knobs(graph)))):
            ltiles = {dim.name: count for dim, count in zip(graph.dims, counts, strict=True)}
            scopes: dict[str, dict[str, object]] = {}
            for (buffer, dim), scope in zip(names, held, strict=True):
                scopes.setdefault(buffer, {})[dim] = scope
            yield KernelIR(graph, order, ltiles, scopes)  # type: ignore[arg-type]


def iter_loop_orders(graph: Graph) -> Iterator[tuple[str, ...]]:
    """Every loop order in which blocks are outside their tiles."""
    for order in permutations(loops_of(graph)):
        if all(order.index(f"{dim.name}.{BLOCK}") < order.index(f"{dim.name}.{TILE}") for dim in graph.dims):
            yield order


def _scope_knobs(graph: Graph) -> Iterator[tuple[str, str, tuple[object, ...]]]:
    for buffer in plan_graph(graph).buffers:
        for dim in buffer.scoped_dims:
            yield buffer.name, dim, scope_choices(dim == buffer.partial)


def iter_programs(graph: Graph) -> Iterator[KernelIR]:
    """A valid point for every program in a graph's space, in a fixed order.

    Loops that run once count as none, so only the orders of the others are enumerated.
    """
    seen: set[str] = set()
    for counts in product(*(block_choices(graph, dim.name) for dim in graph.dims)):
        ltiles = {dim.name: count for dim, count in zip(graph.dims, counts, strict=True)}
        for order in _distinct_orders(graph, ltiles):
            for layout in _valid_layouts(graph, order, ltiles):
                digest = layout_digest(layout)
                if digest not in seen:
                    seen.add(digest)
                    yield layout.ir


def _distinct_orders(graph: Graph, ltiles: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """One order for each order of the loops that run more than once; the others have no effect."""
    start = widest_ir(graph, loops_of(graph), dict(ltiles))
    single = [loop for loop in start.loop_order if start.trip_count(loop) == 1]
    several = [loop for loop in start.loop_order if start.trip_count(loop) > 1]
    for inner in permutations(several):
        order = (*(loop for loop in single if loop.endswith(BLOCK)), *inner)
        order += tuple(loop for loop in single if loop.endswith(TILE))
        if put_blocks_first(order) == order:
            yield order


def _valid_layouts(graph: Graph, order: tuple[str, ...], ltiles: Mapping[str, int]) -> Iterator[Layout]:
    """Every valid layout of an order and block sizes, except those that place and hold the same as another.

    Scopes are chosen from the last buffer to the first, because contexts are found from the output backward.
    A branch is dropped as soon as steps whose scopes are all chosen contradict each other.
    """
    start = widest_ir(graph, order, dict(ltiles))
    yield from _choose_scopes(start, list(start.plan.buffers))


def _choose_scopes(ir: KernelIR, left: list[Buffer]) -> Iterator[Layout]:
    if not left:
        layout = build_layout(ir)
        if layout is not None and not layout.excess:
            yield layout
        return
    buffer, rest = left[-1], left[:-1]
    open_ = {item.name for item in rest}
    seen = set()
    for option in product(*(scope_choices(dim == buffer.partial) for dim in buffer.scoped_dims)):
        chosen = dict(zip(buffer.scoped_dims, option, strict=True))
        made = replace(ir, buffer_scopes={**ir.scopes, buffer.name: chosen})
        place = compute_placement(made)
        key = _scope_effect(made, place, buffer)
        if key in seen:
            continue
        seen.add(key)
        if not any(_is_final(made, item.buffer, open_) for item in find_contradictions(made, place)):
            yield from _choose_scopes(made, rest)


def _scope_effect(ir: KernelIR, place: Placement, buffer: Buffer) -> object:
    """The effect of a buffer's scopes: how much it holds, how deep it is, and what its users take at once."""
    users = {step.number for step in ir.plan.steps if buffer.name in step.tensors}
    held = tuple(ir.held_tiles(buffer.name, dim) for dim in buffer.scoped_dims)
    taken = tuple(
        ir.tiles_in_scope(dim, scope) for (step, dim), scope in place.spans.items() if step in users
    )
    return held, place.depths[buffer.name], taken


def _is_final(ir: KernelIR, buffer: str, open_: AbstractSet[str]) -> bool:
    """Whether no open choice affects the placement of the buffer's users, or of their results' users."""
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
