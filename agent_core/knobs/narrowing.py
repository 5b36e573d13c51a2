"""Making an IR fit: knobs turned one by one to what takes less room, without contradictions.

From any order of loops, buffers that hold everything contradict nothing. So that is where a default starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from agent_core.knobs.capacity import MEMORIES, Peak, available, peaks, taken_by
from agent_core.knobs.errors import KnobError
from agent_core.knobs.graph import Graph
from agent_core.knobs.instructions import refused
from agent_core.knobs.ir import BLOCK, LTILES, SCOPES, TILE, KernelIR, Knob, Scope, knob_signature
from agent_core.knobs.malformed import choices, scopes_of
from agent_core.knobs.nest import Nest, nested
from agent_core.knobs.placement import Place, placed
from agent_core.knobs.structure import contradictions, splits
from nki_sim import targets


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
    """The IR in which every buffer holds everything; it contradicts nothing and seldom fits."""
    empty = KernelIR(graph, order, ltiles or {dim.name: 1 for dim in graph.dims}, {})
    return KernelIR(
        graph,
        order,
        empty.ltiles,
        {item.name: dict.fromkeys(item.scoped, Scope.FULL) for item in empty.plan.buffers},
    )


def default(graph: Graph) -> KernelIR:
    """The plain configuration of a graph: output tile by tile, blocks of one tile, all held that fits.

    Raises:
        KnobError: no narrowing of it fits on the chip.
    """
    dims = list(graph.value[graph.output].dims)
    dims += [dim.name for dim in graph.dims if dim.name not in dims]
    order = tuple(f"{dim}.{level}" for dim in dims for level in (BLOCK, TILE))
    start = laid_out(widest(graph, order))
    found = fitting(start) if start is not None else None
    if found is None:
        raise KnobError(f"{graph.name}: no configuration of its default loop order fits on {graph.target}")
    return found.ir
