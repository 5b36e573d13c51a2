"""Points of the space drawn by chance, all three knobs at once, valid by construction.

An order of loops and sizes of blocks are drawn; any of them has the point in which every buffer holds all
it can. From there, buffer by buffer in a drawn order, scopes are drawn among those that contradict nothing
and do not overrun the chip more than before. Where that does not fit in the end, it is narrowed until it
does.
"""

from __future__ import annotations

from itertools import product
from random import Random

from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import SCOPES, KernelIR, Scope, loops_of
from targets.nki.knobs.malformed import blocks_first, choices, scopes_of
from targets.nki.knobs.narrowing import Layout, default, fitting, laid_out, roomy, widest
from targets.nki.knobs.plan import Buffer

_ROUNDS = 2
"""How often each buffer's scopes are drawn: once when the others still hold everything, once after."""

_TRIES = 8
"""Orders that are drawn until one can be made to fit; the default is the answer after that."""


def sample(ir: KernelIR, rng: Random) -> KernelIR:
    """A valid IR of the same graph, whose knobs owe nothing to those given.

    Raises:
        KnobError: the graph has no valid configuration that can be found.
    """
    for _ in range(_TRIES):
        layout = _drawn(ir.graph, rng)
        if layout is not None:
            return layout.ir
    return default(ir.graph)


def anywhere(graph: Graph, rng: Random) -> KernelIR:
    """A point of the whole space, valid or not, each as likely as any other."""
    start = widest(graph, _order(graph, rng), _ltiles(graph, rng))
    scopes = {item.name: rng.choice(_options(item)) for item in start.plan.buffers}
    return KernelIR(graph, start.loop_order, start.ltiles, scopes)


def _order(graph: Graph, rng: Random) -> tuple[str, ...]:
    loops = list(loops_of(graph))
    rng.shuffle(loops)
    return blocks_first(tuple(loops))


def _ltiles(graph: Graph, rng: Random) -> dict[str, int]:
    return {dim.name: rng.choice(choices(graph, dim.name)) for dim in graph.dims}


def _options(buffer: Buffer) -> list[dict[str, Scope]]:
    """All that a buffer can hold of its dimensions."""
    allowed = [scopes_of(dim == buffer.partial) for dim in buffer.scoped]
    return [dict(zip(buffer.scoped, item, strict=True)) for item in product(*allowed)]


def _drawn(graph: Graph, rng: Random) -> Layout | None:
    layout = roomy(graph, _order(graph, rng), _ltiles(graph, rng))
    assert layout is not None, "buffers that hold everything are made outside of all loops"
    for _ in range(_ROUNDS):
        buffers = list(layout.ir.plan.buffers)
        rng.shuffle(buffers)
        for buffer in buffers:
            layout = _scoped(layout, buffer, rng)
    return fitting(layout)


def _scoped(layout: Layout, buffer: Buffer, rng: Random) -> Layout:
    """The layout with one buffer's scopes drawn anew."""
    options = _options(buffer)
    rng.shuffle(options)
    for option in options:
        if option == layout.ir.scopes[buffer.name]:
            return layout
        ir = layout.ir
        for dim, scope in option.items():
            ir = ir.turned((SCOPES, buffer.name, dim), scope)
        found = laid_out(ir)
        if found is not None and found.excess <= layout.excess:
            return found
    return layout
