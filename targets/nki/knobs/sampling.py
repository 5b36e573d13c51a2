"""Draws random points of the space, all three knobs at once, valid by construction.

A loop order and block sizes are drawn; for any of them there is a point in which every buffer holds all it
can. From there, buffer by buffer in a random order, scopes are drawn among those that contradict nothing and
do not overrun the chip more than before. If the result does not fit, it is narrowed until it does.
"""

from __future__ import annotations

from itertools import product
from random import Random

from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import SCOPES, KernelIR, Scope, loops_of
from targets.nki.knobs.knob_values import block_choices, put_blocks_first, scope_choices
from targets.nki.knobs.narrowing import (
    Layout,
    build_layout,
    default_ir,
    narrow_to_fit,
    widest_ir,
    widest_layout,
)
from targets.nki.knobs.plan import Buffer

_ROUNDS = 2
"""How often each buffer's scopes are drawn: once while the others still hold everything, once after."""

_TRIES = 8
"""Number of orders to try until one can be made to fit; after that the default is returned."""


def sample_ir(ir: KernelIR, rng: Random) -> KernelIR:
    """Return a random valid IR of the same graph, independent of the given knobs.

    Raises:
        KnobError: no valid configuration of the graph can be found.
    """
    for _ in range(_TRIES):
        layout = _draw_layout(ir.graph, rng)
        if layout is not None:
            return layout.ir
    return default_ir(ir.graph)


def sample_any_point(graph: Graph, rng: Random) -> KernelIR:
    """A point of the whole space, valid or not, drawn uniformly."""
    start = widest_ir(graph, _draw_order(graph, rng), _draw_block_sizes(graph, rng))
    scopes = {item.name: rng.choice(_scope_options(item)) for item in start.plan.buffers}
    return KernelIR(graph, start.loop_order, start.ltiles, scopes)


def _draw_order(graph: Graph, rng: Random) -> tuple[str, ...]:
    loops = list(loops_of(graph))
    rng.shuffle(loops)
    return put_blocks_first(tuple(loops))


def _draw_block_sizes(graph: Graph, rng: Random) -> dict[str, int]:
    return {dim.name: rng.choice(block_choices(graph, dim.name)) for dim in graph.dims}


def _scope_options(buffer: Buffer) -> list[dict[str, Scope]]:
    """All combinations of scopes that a buffer can have."""
    allowed = [scope_choices(dim == buffer.partial) for dim in buffer.scoped_dims]
    return [dict(zip(buffer.scoped_dims, item, strict=True)) for item in product(*allowed)]


def _draw_layout(graph: Graph, rng: Random) -> Layout | None:
    layout = widest_layout(graph, _draw_order(graph, rng), _draw_block_sizes(graph, rng))
    assert layout is not None, "buffers that hold everything are made outside of all loops"
    for _ in range(_ROUNDS):
        buffers = list(layout.ir.plan.buffers)
        rng.shuffle(buffers)
        for buffer in buffers:
            layout = _draw_scopes(layout, buffer, rng)
    return narrow_to_fit(layout)


def _draw_scopes(layout: Layout, buffer: Buffer, rng: Random) -> Layout:
    """The layout with one buffer's scopes drawn again."""
    options = _scope_options(buffer)
    rng.shuffle(options)
    for option in options:
        if option == layout.ir.scopes[buffer.name]:
            return layout
        ir = layout.ir
        for dim, scope in option.items():
            ir = ir.with_knob((SCOPES, buffer.name, dim), scope)
        found = build_layout(ir)
        if found is not None and found.excess <= layout.excess:
            return found
    return layout
