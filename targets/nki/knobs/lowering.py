"""Lowers knobs to the loop tree, mechanically; nothing is chosen here.

Loops that run once are left out. A loop over blocks that contains only the loop over their tiles becomes one
loop, so that points that are the same program (`program.py`) give the same text. A buffer is declared in the
innermost loop of its context, before its first use. If a step adds to its result over loops, the result is
first filled with the sum's start value.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from targets.nki.knobs.capacity import (
    buffer_dtype,
    buffer_extent,
    is_accumulated,
    is_initialized,
    row_elements,
    scratch_tiles,
)
from targets.nki.knobs.functions import REDUCTIONS
from targets.nki.knobs.graph import PARTITIONS_PREFIX
from targets.nki.knobs.ir import BLOCK, TILE, KernelIR
from targets.nki.knobs.loop_tree import (
    Allocate,
    Array,
    Fill,
    KernelTree,
    Loop,
    Node,
    Region,
    Span,
    Statement,
    Tile,
)
from targets.nki.knobs.narrowing import Layout
from targets.nki.knobs.nest import BufferLifetimes, LoopNest, buffer_lifetimes
from targets.nki.knobs.operators import SCRATCH, SPREAD, STATE_SLOT
from targets.nki.knobs.plan import PlanStep
from targets.nki.knobs.validity import require_layout


def lower_kernel(ir: KernelIR) -> KernelTree:
    """Return the loop tree of a valid IR.

    Raises:
        KnobError: it is not valid; the message has the whole report.
    """
    return _Lowering(require_layout(ir)).build_kernel()


WHOLE = "whole"
"""Used instead of a level: the loop over all tiles of a dimension, block after block."""


class _Lowering:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ir = layout.ir
        self._homes: BufferLifetimes = buffer_lifetimes(layout.ir, layout.place, layout.nest)
        self._tiles = {name: self._buffer_tile(name) for name in self._ir.plan.buffer}

    def build_kernel(self) -> KernelTree:
        graph = self._ir.graph
        used = [Array(name, graph.shape(name), graph.value[name].dtype) for name in graph.inputs]
        output = Array(graph.output, graph.shape(graph.output), graph.value[graph.output].dtype)
        body = tuple(self._lower_body(self._layout.nest, ()))
        return KernelTree(graph.name, tuple(used), output, tuple(self._tiles.values()), body)

    def _lower_body(self, nest: LoopNest, path: tuple[str, ...]) -> Iterator[Node]:
        homes = self._homes
        for number, item in enumerate(nest.items):
            for name in homes.buffers_made_in(nest):
                if homes.used[name][0] == number:
                    yield from self._declare_buffer(name)
            if isinstance(item, LoopNest):
                yield from self._lower_loop(item, path)
            else:
                yield self._lower_statement(self._ir.plan.steps[item], path)

    def _lower_loop(self, nest: LoopNest, path: tuple[str, ...]) -> Iterator[Node]:
        assert nest.level is not None
        loop, trips = nest.level[0], self._ir.trip_count(nest.level[0])
        inner = self._homes.merged_tile_loop(nest)
        if inner is not None and inner.level is not None:
            loop, trips, nest = _whole_loop(loop), trips * self._ir.trip_count(inner.level[0]), inner
        body = tuple(self._lower_body(nest, (*path, loop)))
        yield Loop(self._loop_variable(loop), trips, body)

    def _declare_buffer(self, name: str) -> Iterator[Node]:
        yield Allocate(self._tiles[name])
        step = self._ir.plan.producer[name]
        if not is_initialized(self._ir, self._layout.place, name):
            return
        if name == step.state and step.entry.carries is not None:
            yield Fill(self._tiles[name], step.entry.carries)
        else:
            combine = step.entry.combining_function(dict(step.settings))
            yield Fill(self._tiles[name], REDUCTIONS[combine].identity)

    def _buffer_tile(self, name: str) -> Tile:
        buffer = self._ir.plan.buffer[name]
        tiles, row = buffer_extent(self._ir, buffer)
        rows = self._ir.plan.rows_of(name)
        return Tile(name, buffer.memory, rows, tiles, row, buffer_dtype(self._ir, self._layout.place, name))

    def _lower_statement(self, step: PlanStep, path: tuple[str, ...]) -> Statement:
        place, settings = self._layout.place, dict(step.settings)
        is_added = is_accumulated(self._ir, place, step)
        used = [(slot, name) for slot, name in step.operands if is_added or slot != step.entry.fades]
        used += [(STATE_SLOT, step.state)] if step.state else []
        return Statement(
            entry=step.entry,
            settings=settings,
            operands=tuple((slot, self._tensor_region(step, name, path)) for slot, name in used),
            result=self._tensor_region(step, step.result, path),
            adds=is_added,
            combine=step.entry.combining_function(settings),
            scratch=tuple(self._scratch_tile(step, name) for name in scratch_tiles(self._ir, place, step)),
        )

    def _scratch_tile(self, step: PlanStep, name: str) -> Tile:
        rows = self._ir.graph.dim[self._ir.plan.core_of(step.operands[0][1])[0]].tile
        row = row_elements(self._ir, self._layout.place, step) if name == SCRATCH else 1
        return Tile(name, "sbuf", rows, 1, row, "float32")

    def _tensor_region(self, step: PlanStep, tensor: str, path: tuple[str, ...]) -> Region:
        """The part of a tensor that a step takes in an iteration of the loops of its path."""
        outside = {loop for loop, _ in self._layout.place.contexts.get(tensor, ())}
        inside = [loop for loop in path if loop.replace(WHOLE, BLOCK) not in outside]
        spans = [self._dim_span(step, dim, inside) for dim in self._ir.plan.dims_of(tensor)]
        lead, core = spans[: self._ir.plan.lead_of(tensor)], spans[self._ir.plan.lead_of(tensor) :]
        if tensor not in self._ir.plan.buffer:
            rows = self._ir.plan.rows_of(step.result) if step.entry is SPREAD else 0
            return Region(tensor, tuple(core), tuple(lead), rows)
        return Region(tensor, (self._partition_span(tensor, lead, core[0]), *core[1:]))

    def _partition_span(self, tensor: str, lead: list[Span], first: Span) -> Span:
        """The position of a partition tile in a buffer that holds those of a batch one after the other."""
        buffer = self._ir.plan.buffer[tensor]
        held = [self._ir.held_tiles(tensor, dim) for dim in buffer.dims]
        terms = [
            (variable, factor * prod(held[number + 1 : buffer.lead + 1]))
            for number, span in enumerate(lead)
            for variable, factor in span.terms
        ]
        return Span((*terms, *first.terms), first.tiles, first.tile)

    def _dim_span(self, step: PlanStep, dim: str, loops: list[str]) -> Span:
        if dim.startswith(PARTITIONS_PREFIX):
            return Span((), 1, self._ir.graph.dim[dim.removeprefix(PARTITIONS_PREFIX)].tile)
        factors = {f"{dim}.{BLOCK}": self._ir.ltiles[dim], f"{dim}.{TILE}": 1, f"{dim}.{WHOLE}": 1}
        terms = tuple((self._loop_variable(loop), factors[loop]) for loop in loops if loop in factors)
        tiles = self._ir.tiles_in_scope(dim, self._layout.place.spans[step.number, dim])
        return Span(terms, tiles, self._ir.graph.dim[dim].tile)

    def _loop_variable(self, loop: str) -> str:
        """A loop's name: only its dimension if no other loop of that dimension runs more than once."""
        dim, level = loop.split(".")
        several = all(self._ir.trip_count(f"{dim}.{each}") > 1 for each in (BLOCK, TILE))
        return f"i_{level}_{dim}" if several and level != WHOLE else f"i_{dim}"


def _whole_loop(loop: str) -> str:
    return f"{loop.split('.', maxsplit=1)[0]}.{WHOLE}"
