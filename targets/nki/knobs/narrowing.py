"""Makes an IR fit the chip: turns knobs one by one to values that take less room, without contradictions.

With any loop order, buffers that hold everything never contradict each other. With some orders, the same is
true if all buffers hold one tile or block of the output's rows or columns. A default starts there. If a
dimension is walked in rounds, this holds within one round, and only for some orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations, product

from nki_sim import targets
from targets.nki.knobs.capacity import MEMORIES, MemoryPeak, memory_capacity, memory_peaks, memory_taken
from targets.nki.knobs.cost import cost_ns
from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.instruction_limits import instruction_failures
from targets.nki.knobs.ir import BLOCK, LTILES, SCOPES, TILE, KernelIR, Knob, Scope, knob_signature
from targets.nki.knobs.knob_values import block_choices, scope_choices
from targets.nki.knobs.nest import LoopNest, build_nest
from targets.nki.knobs.placement import Placement, compute_placement, widest_scope
from targets.nki.knobs.placement_checks import find_contradictions, find_splits
from targets.nki.knobs.plan import Buffer

_SMALL_BLOCK = 4
"""Tiles of a block in plain configurations: enough to reuse what was loaded."""

_ROUND = 8
"""Tiles of a block that a round covers: the fixed work of a round costs as much as some of them."""

_AS_GOOD = 1.05
"""A configuration whose cost is within this factor of the cost if everything fitted is good enough."""

_FAR = 8.0
"""Overrun, in multiples of the room, beyond which narrowing takes long and seldom ends well."""


@dataclass(frozen=True)
class Layout:
    """An IR without contradictions, with its placement and its loop nest."""

    ir: KernelIR
    place: Placement
    nest: LoopNest

    @cached_property
    def peaks(self) -> dict[str, MemoryPeak]:
        """The peak of each memory."""
        return memory_peaks(self.ir, self.place, self.nest)

    @cached_property
    def cost_ns(self) -> float:
        """Its static cost estimate."""
        return cost_ns(self.ir, self.place)

    @cached_property
    def excess(self) -> float:
        """How far it is from valid: refused instructions, and relative overruns of memories."""
        target = targets.load(self.ir.graph.target)
        found = self.peaks
        over = (max(0.0, found[name].taken / memory_capacity(name, target) - 1) for name in MEMORIES)
        return sum(1 for _ in instruction_failures(self.ir, self.place)) + sum(over)

    @cached_property
    def load_key(self) -> tuple[float, float, int]:
        """The excess; the use of all buffers relative to their memories; how wide they are."""
        target = targets.load(self.ir.graph.target)
        taken = (
            memory_taken(self.ir, self.place, item, target) / memory_capacity(item.memory, target)
            for item in self.ir.plan.buffers
        )
        wide = sum(scope for item in self.ir.scopes.values() for scope in item.values())
        return self.excess, sum(taken), wide


def build_layout(ir: KernelIR) -> Layout | None:
    """The layout of a well-formed IR; None if it contradicts itself."""
    place = compute_placement(ir)
    if next(find_contradictions(ir, place), None) is not None:
        return None
    nest = build_nest(ir, place)
    return None if next(find_splits(ir, place, nest), None) is not None else Layout(ir, place, nest)


def narrow_to_fit(layout: Layout) -> Layout | None:
    """Narrow a layout until it is valid; None if that fails.

    Buffers that are live at the peaks are narrowed first; the others only when that no longer helps.
    """
    every = set(layout.ir.plan.buffer)
    while layout.excess:
        found = _best_narrowing(layout, _overrun_buffers(layout)) or _best_narrowing(layout, every)
        if found is None:
            return None
        layout = found
    return layout


def _overrun_buffers(layout: Layout) -> set[str]:
    """The buffers that are live where a memory is overrun."""
    target = targets.load(layout.ir.graph.target)
    over = (peak for name, peak in layout.peaks.items() if peak.taken > memory_capacity(name, target))
    return {name for peak in over for name in peak.buffers}


def _best_narrowing(layout: Layout, buffers: set[str]) -> Layout | None:
    """The layout with one knob of these buffers lowered that takes least; None if none takes less."""
    found = (
        build_layout(layout.ir.with_knob(knob, value)) for knob, value in _narrower_values(layout.ir, buffers)
    )
    less = [item for item in found if item is not None and item.load_key < layout.load_key]
    return min(less, key=lambda item: (item.load_key, knob_signature(item.ir)), default=None)


def _narrower_values(ir: KernelIR, buffers: set[str]) -> Iterator[tuple[Knob, int | Scope]]:
    """Lower values of the buffers' scopes and of the blocks that they hold."""
    chosen = [item for item in ir.plan.buffers if item.name in buffers]
    for dim, count in ir.ltiles.items():
        if any(ir.scopes[item.name].get(dim) is Scope.PER_BLOCK for item in chosen):
            yield from (((LTILES, dim), less) for less in block_choices(ir.graph, dim) if less < count)
    for buffer in chosen:
        for dim in buffer.scoped_dims:
            held = ir.scopes[buffer.name][dim]
            less = (scope for scope in scope_choices(dim == buffer.partial) if scope < held)
            yield from (((SCOPES, buffer.name, dim), scope) for scope in less)


def widest_ir(graph: Graph, order: tuple[str, ...], ltiles: dict[str, int] | None = None) -> KernelIR:
    """The IR in which every buffer holds everything it can; it seldom fits."""
    empty = KernelIR(graph, order, ltiles or {dim.name: 1 for dim in graph.dims}, {})
    return KernelIR(
        graph,
        order,
        empty.ltiles,
        {
            item.name: {dim: widest_scope(empty, item, dim) for dim in item.scoped_dims}
            for item in empty.plan.buffers
        },
    )


def widest_layout(
    graph: Graph, order: tuple[str, ...], ltiles: dict[str, int] | None = None
) -> Layout | None:
    """The layout in which every buffer holds everything, with one round if rounds contradict the order."""
    start = widest_ir(graph, order, ltiles)
    single = {dim: graph.dim[dim].tiles for dim in graph.rounds}
    return build_layout(start) or build_layout(widest_ir(graph, order, {**start.ltiles, **single}))


@lru_cache(maxsize=256)
def default_ir(graph: Graph) -> KernelIR:
    """The default configuration, chosen among some plain ones by the static estimate.

    The output is walked in an order of its dimensions, a batch outermost. Of each of these, all buffers hold
    everything, a small block, or a tile; of any other dimension they hold everything. What does not fit is
    narrowed. The first configuration that costs about as little as if everything fitted is taken, else the
    cheapest. If none fits, the other dimensions are walked in another order: a product that is read in PSUM
    is held there until it is summed up. Rounds, if there are any, are walked for some rows after others, in
    small blocks.

    Raises:
        KnobError: no narrowing of any of them fits on the chip.
    """
    for starts in _plain_starts(graph):
        best = _cheapest_layout(starts)
        if best is not None:
            return best.ir
    raise KnobError(f"{graph.name}: no configuration of its default loop orders fits on {graph.target}")


def _plain_starts(graph: Graph) -> Iterator[list[Layout]]:
    """Plain configurations, the preferred ones first, provided that any of them can be made to fit."""
    if graph.rounds:
        yield from _order_by_overrun([_round_irs(graph)])
    plain = _single_round_irs if graph.rounds else _plain_irs
    summed = [dim.name for dim in graph.dims if dim.name not in graph.value[graph.output].dims]
    yield from _order_by_overrun(plain(graph, order) for order in permutations(summed))


def _order_by_overrun(kinds: Iterable[Iterator[KernelIR]]) -> Iterator[list[Layout]]:
    """The layouts of each kind that do not overrun the chip by far, then those that do."""
    far = []
    for kind in kinds:
        starts = [found for item in dict.fromkeys(kind) if (found := build_layout(item)) is not None]
        yield [item for item in starts if item.excess <= _FAR]
        far.append([item for item in starts if item.excess > _FAR])
    yield from far


def _cheapest_layout(starts: list[Layout]) -> Layout | None:
    """The layout that costs least when narrowed, or the first that nearly reaches its cost if all fitted."""
    best: Layout | None = None
    for start in starts:
        found = narrow_to_fit(start)
        if found is None:
            continue
        if best is None or found.cost_ns < best.cost_ns:
            best = found
        ideal = widest_ir(start.ir.graph, start.ir.loop_order)
        if best.cost_ns <= _AS_GOOD * cost_ns(ideal, compute_placement(ideal)):
            break
    return best


def _plain_irs(graph: Graph, summed: Sequence[str]) -> Iterator[KernelIR]:
    """Plain configurations: blocks of columns outermost first, as a product can begin once one is there.

    `summed` are the dimensions that the output does not have, from the outside in.
    """
    output = graph.value[graph.output]
    outer, inner = (
        (Scope.PER_BLOCK, Scope.FULL, Scope.PER_TILE),
        (Scope.FULL, Scope.PER_BLOCK, Scope.PER_TILE),
    )
    for core in (output.core_dims[::-1], output.core_dims):
        batch = [f"{dim}.{level}" for dim in output.dims[: output.lead] for level in (BLOCK, TILE)]
        walked = [f"{dim}.{level}" for level in (BLOCK, TILE) for dim in core]
        last = [f"{dim}.{level}" for dim in summed for level in (BLOCK, TILE)]
        for held in product(outer, *[inner] * (len(core) - 1)):
            scopes = dict.fromkeys(output.dims, Scope.PER_TILE) | dict(zip(core, held, strict=True))
            yield _uniform_ir(graph, (*batch, *walked, *last), scopes)


def _round_irs(graph: Graph) -> Iterator[KernelIR]:
    """Plain configurations of a graph with rounds: a block or a tile of rows goes through all of them.

    What a round makes and reads is held only during that round.
    """
    sums = dict.fromkeys(dim for value in graph.values if value.running is not None for dim in value.dims)
    rounds = sorted(graph.rounds)
    rest = [dim.name for dim in graph.dims if dim.name not in {*sums, *rounds}]
    last = [f"{dim}.{level}" for dim in rest for level in (BLOCK, TILE)]
    blocks = ((BLOCK, sums), (BLOCK, rounds), (TILE, sums), (TILE, rounds))
    tiles = ((BLOCK, sums), (TILE, sums), (BLOCK, rounds), (TILE, rounds))
    for scope, walks in ((Scope.PER_BLOCK, blocks), (Scope.PER_TILE, tiles)):
        order = (*(f"{dim}.{level}" for level, dims in walks for dim in dims), *last)
        found = _uniform_ir(graph, order, dict.fromkeys(sums, scope))
        for dim in rounds:
            most = min(_ROUND, max(1, graph.dim[dim].tiles // 2))
            found = found.with_knob(
                (LTILES, dim), max(item for item in block_choices(graph, dim) if item <= most)
            )
        for name, dim in found.plan.round_dims.items():
            if dim in found.plan.buffer[name].dims:
                found = found.with_knob((SCOPES, name, dim), Scope.PER_BLOCK)
        yield found


def _single_round_irs(graph: Graph, summed: Sequence[str]) -> Iterator[KernelIR]:
    """Plain configurations of a graph with rounds that have a single round, as if there were none."""
    for plain in _plain_irs(graph, summed):
        found = plain
        for dim in sorted(graph.rounds):
            found = found.with_knob((LTILES, dim), graph.dim[dim].tiles)
        yield found


def _uniform_ir(graph: Graph, order: tuple[str, ...], scopes: Mapping[str, Scope]) -> KernelIR:
    """The IR in which all buffers hold the same share of a dimension: all, unless in `scopes`."""
    blocks = {dim for dim, scope in scopes.items() if scope is Scope.PER_BLOCK}
    ltiles = {dim.name: _small_block(graph, dim.name) if dim.name in blocks else 1 for dim in graph.dims}
    held = {
        item.name: {dim: _uniform_scope(item, dim, scopes) for dim in item.scoped_dims}
        for item in widest_ir(graph, order).plan.buffers
    }
    return KernelIR(graph, order, ltiles, held)


def _small_block(graph: Graph, dim: str) -> int:
    return max(count for count in block_choices(graph, dim) if count <= _SMALL_BLOCK)


def _uniform_scope(buffer: Buffer, dim: str, scopes: Mapping[str, Scope]) -> Scope:
    return max(scopes.get(dim, Scope.FULL), Scope.PER_BLOCK if dim == buffer.partial else Scope.PER_TILE)
