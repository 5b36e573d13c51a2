"""Making an IR fit: knobs turned one by one to what takes less room, without contradictions.

From any order of loops, buffers that hold everything contradict nothing; from some, neither do those that all
hold a tile or a block of the rows or columns of the output. A default starts there. Where a dimension is gone
through in rounds, that holds of one round, and of some orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations, product

from nki_sim import targets
from targets.nki.knobs.capacity import MEMORIES, Peak, available, peaks, taken_by
from targets.nki.knobs.cost import cost_ns
from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.graph import Graph
from targets.nki.knobs.instructions import refused
from targets.nki.knobs.ir import BLOCK, LTILES, SCOPES, TILE, KernelIR, Knob, Scope, knob_signature
from targets.nki.knobs.malformed import choices, scopes_of
from targets.nki.knobs.nest import Nest, nested
from targets.nki.knobs.placement import Place, placed, widest_scope
from targets.nki.knobs.plan import Buffer
from targets.nki.knobs.structure import contradictions, splits

_SMALL_BLOCK = 4
"""Tiles of a block in plain configurations: enough to use what is loaded more than once."""

_ROUND = 8
"""Tiles of a block that a round goes through: what it does once for each costs as much as some of them."""

_AS_GOOD = 1.05
"""A configuration within this of what it would cost if everything fitted is not improved on."""

_FAR = 8.0
"""Times the room there is: what overruns it by more takes long to narrow, and seldom ends well."""


@dataclass(frozen=True)
class Layout:
    """An IR without contradictions, with its places and the nest of its loops."""

    ir: KernelIR
    place: Place
    nest: Nest

    @cached_property
    def peaks(self) -> dict[str, Peak]:
        """The peak of each memory."""
        return peaks(self.ir, self.place, self.nest)

    @cached_property
    def cost_ns(self) -> float:
        """The static estimate of it."""
        return cost_ns(self.ir, self.place)

    @cached_property
    def excess(self) -> float:
        """How far it is from valid: instructions refused, and memories overrun as shares of them."""
        target = targets.load(self.ir.graph.target)
        found = self.peaks
        over = (max(0.0, found[name].taken / available(name, target) - 1) for name in MEMORIES)
        return sum(1 for _ in refused(self.ir, self.place)) + sum(over)

    @cached_property
    def load(self) -> tuple[float, float, int]:
        """The excess; what all buffers take, as shares of their memories; how wide they are."""
        target = targets.load(self.ir.graph.target)
        taken = (
            taken_by(self.ir, self.place, item, target) / available(item.memory, target)
            for item in self.ir.plan.buffers
        )
        wide = sum(scope for item in self.ir.scopes.values() for scope in item.values())
        return self.excess, sum(taken), wide


def laid_out(ir: KernelIR) -> Layout | None:
    """The layout of a well-formed IR; None of one that contradicts itself."""
    place = placed(ir)
    if next(contradictions(ir, place), None) is not None:
        return None
    nest = nested(ir, place)
    return None if next(splits(ir, place, nest), None) is not None else Layout(ir, place, nest)


def fitting(layout: Layout) -> Layout | None:
    """What a layout becomes when it is narrowed until it is valid; None where that does not end so.

    What is in use at the peaks is narrowed first; all else where that helps no more.
    """
    every = set(layout.ir.plan.buffer)
    while layout.excess:
        found = _best(layout, _in_use(layout)) or _best(layout, every)
        if found is None:
            return None
        layout = found
    return layout


def _in_use(layout: Layout) -> set[str]:
    """The buffers that are in use where a memory is overrun."""
    target = targets.load(layout.ir.graph.target)
    over = (peak for name, peak in layout.peaks.items() if peak.taken > available(name, target))
    return {name for peak in over for name in peak.buffers}


def _best(layout: Layout, buffers: set[str]) -> Layout | None:
    """The layout with one knob of these buffers turned to less that takes least; None if none takes less."""
    found = (laid_out(layout.ir.turned(knob, value)) for knob, value in _less(layout.ir, buffers))
    less = [item for item in found if item is not None and item.load < layout.load]
    return min(less, key=lambda item: (item.load, knob_signature(item.ir)), default=None)


def _less(ir: KernelIR, buffers: set[str]) -> Iterator[tuple[Knob, int | Scope]]:
    """Turns to less of the scopes of buffers and of the blocks that they hold."""
    chosen = [item for item in ir.plan.buffers if item.name in buffers]
    for dim, count in ir.ltiles.items():
        if any(ir.scopes[item.name].get(dim) is Scope.PER_BLOCK for item in chosen):
            yield from (((LTILES, dim), less) for less in choices(ir.graph, dim) if less < count)
    for buffer in chosen:
        for dim in buffer.scoped:
            held = ir.scopes[buffer.name][dim]
            less = (scope for scope in scopes_of(dim == buffer.partial) if scope < held)
            yield from (((SCOPES, buffer.name, dim), scope) for scope in less)


def widest(graph: Graph, order: tuple[str, ...], ltiles: dict[str, int] | None = None) -> KernelIR:
    """The IR in which every buffer holds everything it can; it seldom fits."""
    empty = KernelIR(graph, order, ltiles or {dim.name: 1 for dim in graph.dims}, {})
    return KernelIR(
        graph,
        order,
        empty.ltiles,
        {
            item.name: {dim: widest_scope(empty, item, dim) for dim in item.scoped}
            for item in empty.plan.buffers
        },
    )


def roomy(graph: Graph, order: tuple[str, ...], ltiles: dict[str, int] | None = None) -> Layout | None:
    """The layout in which every buffer holds everything; where rounds contradict the order, there is one."""
    start = widest(graph, order, ltiles)
    single = {dim: graph.dim[dim].tiles for dim in graph.rounds}
    return laid_out(start) or laid_out(widest(graph, order, {**start.ltiles, **single}))


@lru_cache(maxsize=256)
def default(graph: Graph) -> KernelIR:
    """The configuration that one would start from, by the static estimate of some plain ones.

    The output is walked in an order of its dimensions, a batch outermost. All buffers hold, of each of these,
    all, a small block, or a tile, and all of any other dimension; what does not fit so is narrowed. The first
    is taken that costs about as little as if everything fitted, or else the one that costs least. Where none
    fits, the other dimensions are walked in another order: a product that is read in PSUM is held there until
    it is summed up. Rounds, if there are any, are gone through for some rows after others, in small blocks.

    Raises:
        KnobError: no narrowing of any fits on the chip.
    """
    for starts in _starts(graph):
        best = _cheapest(starts)
        if best is not None:
            return best.ir
    raise KnobError(f"{graph.name}: no configuration of its default loop orders fits on {graph.target}")


def _starts(graph: Graph) -> Iterator[list[Layout]]:
    """Plain configurations, those first that are to be preferred if any of them can be made to fit."""
    if graph.rounds:
        yield from _near_first([_rounds(graph)])
    plain = _one_round if graph.rounds else _plain
    summed = [dim.name for dim in graph.dims if dim.name not in graph.value[graph.output].dims]
    yield from _near_first(plain(graph, order) for order in permutations(summed))


def _near_first(kinds: Iterable[Iterator[KernelIR]]) -> Iterator[list[Layout]]:
    """The layouts of each kind without those that overrun the chip by far, then these of each."""
    far = []
    for kind in kinds:
        starts = [found for item in dict.fromkeys(kind) if (found := laid_out(item)) is not None]
        yield [item for item in starts if item.excess <= _FAR]
        far.append([item for item in starts if item.excess > _FAR])
    yield from far


def _cheapest(starts: list[Layout]) -> Layout | None:
    """The one that costs least when narrowed, or the first that nearly costs what it would if all fitted."""
    best: Layout | None = None
    for start in starts:
        found = fitting(start)
        if found is None:
            continue
        if best is None or found.cost_ns < best.cost_ns:
            best = found
        ideal = widest(start.ir.graph, start.ir.loop_order)
        if best.cost_ns <= _AS_GOOD * cost_ns(ideal, placed(ideal)):
            break
    return best


def _plain(graph: Graph, summed: Sequence[str]) -> Iterator[KernelIR]:
    """Plain configurations: blocks of columns outermost first, as a product can begin when one is there.

    `summed` are the dimensions that the output does not have, from the outside in.
    """
    output = graph.value[graph.output]
    outer, inner = (
        (Scope.PER_BLOCK, Scope.FULL, Scope.PER_TILE),
        (Scope.FULL, Scope.PER_BLOCK, Scope.PER_TILE),
    )
    for core in (output.core[::-1], output.core):
        batch = [f"{dim}.{level}" for dim in output.dims[: output.lead] for level in (BLOCK, TILE)]
        walked = [f"{dim}.{level}" for level in (BLOCK, TILE) for dim in core]
        last = [f"{dim}.{level}" for dim in summed for level in (BLOCK, TILE)]
        for held in product(outer, *[inner] * (len(core) - 1)):
            scopes = dict.fromkeys(output.dims, Scope.PER_TILE) | dict(zip(core, held, strict=True))
            yield _uniform(graph, (*batch, *walked, *last), scopes)


def _rounds(graph: Graph) -> Iterator[KernelIR]:
    """Plain configurations of a graph with rounds: a block or a tile of rows goes through them all.

    What a round makes and reads is held for it alone.
    """
    sums = dict.fromkeys(dim for value in graph.values if value.running is not None for dim in value.dims)
    rounds = sorted(graph.rounds)
    rest = [dim.name for dim in graph.dims if dim.name not in {*sums, *rounds}]
    last = [f"{dim}.{level}" for dim in rest for level in (BLOCK, TILE)]
    blocks = ((BLOCK, sums), (BLOCK, rounds), (TILE, sums), (TILE, rounds))
    tiles = ((BLOCK, sums), (TILE, sums), (BLOCK, rounds), (TILE, rounds))
    for scope, walks in ((Scope.PER_BLOCK, blocks), (Scope.PER_TILE, tiles)):
        order = (*(f"{dim}.{level}" for level, dims in walks for dim in dims), *last)
        found = _uniform(graph, order, dict.fromkeys(sums, scope))
        for dim in rounds:
            most = min(_ROUND, max(1, graph.dim[dim].tiles // 2))
            found = found.turned((LTILES, dim), max(item for item in choices(graph, dim) if item <= most))
        for name, dim in found.plan.in_rounds.items():
            if dim in found.plan.buffer[name].dims:
                found = found.turned((SCOPES, name, dim), Scope.PER_BLOCK)
        yield found


def _one_round(graph: Graph, summed: Sequence[str]) -> Iterator[KernelIR]:
    """Plain configurations of a graph with rounds in which there is one, as if there were none."""
    for plain in _plain(graph, summed):
        found = plain
        for dim in sorted(graph.rounds):
            found = found.turned((LTILES, dim), graph.dim[dim].tiles)
        yield found


def _uniform(graph: Graph, order: tuple[str, ...], scopes: Mapping[str, Scope]) -> KernelIR:
    """The IR in which all buffers hold as much of a dimension: all of what is not among the scopes."""
    blocks = {dim for dim, scope in scopes.items() if scope is Scope.PER_BLOCK}
    ltiles = {dim.name: _block(graph, dim.name) if dim.name in blocks else 1 for dim in graph.dims}
    held = {
        item.name: {dim: _at_most(item, dim, scopes) for dim in item.scoped}
        for item in widest(graph, order).plan.buffers
    }
    return KernelIR(graph, order, ltiles, held)


def _block(graph: Graph, dim: str) -> int:
    return max(count for count in choices(graph, dim) if count <= _SMALL_BLOCK)


def _at_most(buffer: Buffer, dim: str, scopes: Mapping[str, Scope]) -> Scope:
    return max(scopes.get(dim, Scope.FULL), Scope.PER_BLOCK if dim == buffer.partial else Scope.PER_TILE)
