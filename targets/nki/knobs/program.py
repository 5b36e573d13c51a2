"""Identifies points that lower to the same program, without lowering them.

Many points of a space mean the same instructions. A point is characterised by its loop nest without the loops
that run once, the tiles that each step takes at once, and for each buffer the loop in which it is made, its
size, and where it is filled first. A loop over blocks that contains only a loop over their tiles counts as
one loop over all tiles. Two valid points of a graph are the same program exactly if these are equal: then
their kernels, unrolled, are the same instructions on the same buffers in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256

from targets.nki.knobs.capacity import buffer_dtype, is_accumulated, is_initialized
from targets.nki.knobs.ir import TILE, KernelIR
from targets.nki.knobs.narrowing import Layout
from targets.nki.knobs.nest import LoopNest, buffer_lifetimes
from targets.nki.knobs.plan import PlanStep
from targets.nki.knobs.validity import require_layout

ProgramItem = tuple[object, ...]
"""A loop, `("loop", dim, step in tiles, trips, buffers made in it, items)`, or what runs there."""


@lru_cache(maxsize=65536)
def program_digest(ir: KernelIR) -> str:
    """Return the digest of what a valid IR lowers to; comparable only between points of one graph.

    Raises:
        KnobError: it is not valid; the message has the whole report.
    """
    return layout_digest(require_layout(ir))


def layout_digest(layout: Layout) -> str:
    """The same for a layout that is already built, and valid."""
    ir, place = layout.ir, layout.place
    walk = _ProgramWalk(layout)
    buffers = tuple(
        (
            name,
            buffer_dtype(ir, place, name),
            *(ir.held_tiles(name, dim) for dim in ir.plan.buffer[name].dims),
        )
        for name in walk.homes.loops
    )
    made, body = walk.homes.buffers_made_in(layout.nest), tuple(walk.walk_items(layout.nest))
    return sha256(repr((buffers, made, body)).encode()).hexdigest()


class _ProgramWalk:
    def __init__(self, layout: Layout) -> None:
        self._ir, self._place = layout.ir, layout.place
        self.homes = buffer_lifetimes(layout.ir, layout.place, layout.nest)
        self._filled = [name for name in self.homes.loops if is_initialized(layout.ir, layout.place, name)]

    def walk_items(self, nest: LoopNest) -> Iterator[ProgramItem]:
        """The contents of a loop, in order. The position within it where a buffer is made does not count."""
        for number, item in enumerate(nest.items):
            for name in self._filled:
                if self.homes.loops[name] is nest and self.homes.used[name][0] == number:
                    yield "fill", name
            yield (
                self._loop_item(item)
                if isinstance(item, LoopNest)
                else self._step_item(self._ir.plan.steps[item])
            )

    def _loop_item(self, nest: LoopNest) -> ProgramItem:
        assert nest.level is not None
        dim, level = nest.level[0].split(".")
        trips, inner = self._ir.trip_count(nest.level[0]), self.homes.merged_tile_loop(nest)
        if inner is not None and inner.level is not None:
            trips, nest, level = trips * self._ir.trip_count(inner.level[0]), inner, TILE
        step = 1 if level == TILE else self._ir.ltiles[dim]
        return "loop", dim, step, trips, self.homes.buffers_made_in(nest), tuple(self.walk_items(nest))

    def _step_item(self, step: PlanStep) -> ProgramItem:
        spans = tuple(
            (dim, self._ir.tiles_in_scope(dim, self._place.spans[step.number, dim])) for _, dim in step.axes
        )
        return "step", step.number, is_accumulated(self._ir, self._place, step), spans
