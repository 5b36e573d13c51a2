"""Sweeps one knob: finds valid points that differ from a given one in that knob alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from targets.nki.knobs.ir import BLOCK, LOOP_ORDER, LTILES, SCOPES, TILE, KernelIR, Knob
from targets.nki.knobs.knob_values import block_choices, scope_choices
from targets.nki.knobs.narrowing import build_layout

KNOBS = (LOOP_ORDER, LTILES, SCOPES)

LEAST, MOST = 5, 10
"""Points in a sweep; fewer if a knob has no more valid values within two turns."""

_LOOKED_AT = 400
"""Points that are examined for a sweep, so that it ends in time for wide graphs."""


def sweep_knob(ir: KernelIR, knob: str) -> list[KernelIR]:
    """All valid IRs that are one turn of `knob`, one of `KNOBS`, away from a valid one."""
    return list(_distinct_valid(ir, knob_turns(ir, knob)))


def neighbour_irs(ir: KernelIR, knob: str) -> list[KernelIR]:
    """Five to ten valid IRs that differ from a valid one in `knob`, one of `KNOBS`; fewer if there are fewer.

    One turn moves one loop, changes one dimension's block, or one buffer's scope of one dimension. Two turns
    are used where single ones give fewer than five points.
    """
    once = sweep_knob(ir, knob)
    if len(once) >= LEAST:
        return _pick_evenly(once, MOST)
    twice = (two for one in knob_turns(ir, knob) for two in knob_turns(one, knob))
    return (once + [item for item in _distinct_valid(ir, twice) if item not in once])[:LEAST]


def _distinct_valid(ir: KernelIR, found: Iterator[KernelIR]) -> Iterator[KernelIR]:
    seen = {ir}
    for number, item in enumerate(found):
        if number == _LOOKED_AT:
            return
        if item not in seen and is_valid(item):
            yield item
        seen.add(item)


def is_valid(ir: KernelIR) -> bool:
    """Whether a well-formed IR is valid; faster than its report."""
    layout = build_layout(ir)
    return layout is not None and not layout.excess


def knob_turns(ir: KernelIR, knob: str) -> Iterator[KernelIR]:
    """All points that are one turn of `knob` away, valid or not."""
    if knob == LOOP_ORDER:
        yield from (ir.with_knob((LOOP_ORDER,), order) for order in _loop_moves(ir.loop_order))
        return
    for place, values in _knob_values(ir, knob):
        yield from (ir.with_knob(place, value) for value in values)


def _knob_values(ir: KernelIR, knob: str) -> Iterator[tuple[Knob, Sequence[object]]]:
    if knob == LTILES:
        yield from (((LTILES, dim), block_choices(ir.graph, dim)) for dim in ir.ltiles)
        return
    for buffer in ir.plan.buffers:
        for dim in buffer.scoped_dims:
            yield (SCOPES, buffer.name, dim), scope_choices(dim == buffer.partial)


def _loop_moves(order: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Orders in which one loop is elsewhere, with blocks still outside their tiles."""
    for source, target in product(range(len(order)), repeat=2):
        rest = [loop for loop in order if loop != order[source]]
        moved = (*rest[:target], order[source], *rest[target:])
        if moved != order and all(
            moved.index(f"{dim}.{BLOCK}") < moved.index(f"{dim}.{TILE}")
            for dim in {loop.split(".")[0] for loop in order}
        ):
            yield moved


def _pick_evenly(items: list[KernelIR], most: int) -> list[KernelIR]:
    """At most `most` of the items, evenly spaced from first to last."""
    if len(items) <= most:
        return items
    return [items[number * (len(items) - 1) // (most - 1)] for number in range(most)]
