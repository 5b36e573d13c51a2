"""Sweeps of one knob: valid points that differ from a given one in that knob alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from targets.nki.knobs.ir import BLOCK, LOOP_ORDER, LTILES, SCOPES, TILE, KernelIR, Knob
from targets.nki.knobs.malformed import choices, scopes_of
from targets.nki.knobs.narrowing import laid_out

KNOBS = (LOOP_ORDER, LTILES, SCOPES)

LEAST, MOST = 5, 10
"""Points of a sweep; fewer where a knob has no more valid values within two turns."""

_LOOKED_AT = 400
"""Points that are looked at for a sweep, so that wide graphs end in time."""


def swept(ir: KernelIR, knob: str) -> list[KernelIR]:
    """All valid IRs that are one turn of `knob`, one of `KNOBS`, away from a valid one."""
    return list(_distinct(ir, turns(ir, knob)))


def neighbours(ir: KernelIR, knob: str) -> list[KernelIR]:
    """Five to ten valid IRs that differ from a valid one in `knob`, one of `KNOBS`; fewer where there are.

    One turn is a loop moved, one dimension's block, one buffer's scope of one dimension. Two are taken where
    single ones give fewer than five points.
    """
    once = swept(ir, knob)
    if len(once) >= LEAST:
        return _spread(once, MOST)
    twice = (two for one in turns(ir, knob) for two in turns(one, knob))
    return (once + [item for item in _distinct(ir, twice) if item not in once])[:LEAST]


def _distinct(ir: KernelIR, found: Iterator[KernelIR]) -> Iterator[KernelIR]:
    seen = {ir}
    for number, item in enumerate(found):
        if number == _LOOKED_AT:
            return
        if item not in seen and is_valid(item):
            yield item
        seen.add(item)


def is_valid(ir: KernelIR) -> bool:
    """Whether a well-formed IR is valid; quicker than its report."""
    layout = laid_out(ir)
    return layout is not None and not layout.excess


def turns(ir: KernelIR, knob: str) -> Iterator[KernelIR]:
    """All points that are one turn of `knob` away, valid or not."""
    if knob == LOOP_ORDER:
        yield from (ir.turned((LOOP_ORDER,), order) for order in _moves(ir.loop_order))
        return
    for place, values in _values(ir, knob):
        yield from (ir.turned(place, value) for value in values)


def _values(ir: KernelIR, knob: str) -> Iterator[tuple[Knob, Sequence[object]]]:
    if knob == LTILES:
        yield from (((LTILES, dim), choices(ir.graph, dim)) for dim in ir.ltiles)
        return
    for buffer in ir.plan.buffers:
        for dim in buffer.scoped:
            yield (SCOPES, buffer.name, dim), scopes_of(dim == buffer.partial)


def _moves(order: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Orders in which one loop stands elsewhere, blocks still outside of their tiles."""
    for source, target in product(range(len(order)), repeat=2):
        rest = [loop for loop in order if loop != order[source]]
        moved = (*rest[:target], order[source], *rest[target:])
        if moved != order and all(
            moved.index(f"{dim}.{BLOCK}") < moved.index(f"{dim}.{TILE}")
            for dim in {loop.split(".")[0] for loop in order}
        ):
            yield moved


def _spread(items: list[KernelIR], most: int) -> list[KernelIR]:
    """At most so many of them, evenly from first to last."""
    if len(items) <= most:
        return items
    return [items[number * (len(items) - 1) // (most - 1)] for number in range(most)]
