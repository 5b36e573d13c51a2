"""Checks an IR completely; each failure comes with the knobs to turn to fix it.

Knobs are *malformed* if their values are impossible (`loops`, `tile_outside_block`, `block_size`, `scope`);
then nothing else is checked. A buffer's place is contradictory if the buffer is made again in a loop that it
must outlive: because it holds more than one iteration of the loop (`scope_interval`), because its step sums
over the loop (`reduction_interval`), because a step reads it in no or in other iterations of that loop
(`reader_interval`), or because other steps come in between (`split_loop`). The fix for each is to hold more,
so that the buffer is made outside the loop. If a dimension is walked in rounds, a running sum must be read in
the loop that makes it (`split_rounds`), or there must be a single round. If the places are consistent, types
(`matmul_dtype`), banks (`psum_bank`) and room (`sbuf_capacity`, `psum_capacity`) are checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from nki_sim import targets
from targets.nki.knobs.capacity import MEMORIES, UNITS, memory_capacity
from targets.nki.knobs.errors import KnobError
from targets.nki.knobs.instruction_limits import instruction_failures
from targets.nki.knobs.ir import LOOP_ORDER, LTILES, SCOPES, KernelIR
from targets.nki.knobs.knob_values import find_malformed_values
from targets.nki.knobs.narrowing import Layout, build_layout, default_ir, narrow_to_fit
from targets.nki.knobs.nest import build_nest
from targets.nki.knobs.placement import compute_placement
from targets.nki.knobs.placement_checks import find_contradictions, find_splits
from targets.nki.knobs.report import CheckFailure, KnobFix


def validity_report(ir: KernelIR) -> list[CheckFailure]:
    """Return every failed check of an IR; empty for a valid one."""
    found = find_malformed_values(ir)
    if found:
        return found
    place = compute_placement(ir)
    found = list(find_contradictions(ir, place))
    if found:
        return found
    nest = build_nest(ir, place)
    found = list(find_splits(ir, place, nest))
    if found:
        return found
    layout = Layout(ir, place, nest)
    return [*instruction_failures(ir, place), *_capacity_failures(layout)]


def require_layout(ir: KernelIR) -> Layout:
    """The layout of a valid IR.

    Raises:
        KnobError: it is not valid; the message has the whole report.
    """
    found = validity_report(ir)
    if found:
        raise KnobError("; ".join(str(failure) for failure in found))
    layout = build_layout(ir)
    assert layout is not None
    return layout


def _capacity_failures(layout: Layout) -> Iterator[CheckFailure]:
    target = targets.load(layout.ir.graph.target)
    found = layout.peaks
    for memory in MEMORIES:
        limit = memory_capacity(memory, target)
        if found[memory].taken > limit:
            unit = UNITS[memory]
            detail = (
                f"{found[memory].taken} {unit} of {memory.upper()} are in use at once, "
                f"{target.name} has {limit}: {', '.join(found[memory].buffers)}"
            )
            yield CheckFailure(f"{memory}_capacity", "", memory, detail, _narrowing_fix(layout))


def _narrowing_fix(layout: Layout) -> KnobFix:
    """The knobs in which the nearest fitting configuration differs."""
    found = narrow_to_fit(layout)
    if found is not None:
        return knob_difference(layout.ir, found.ir)
    try:
        return knob_difference(layout.ir, default_ir(layout.ir.graph))
    except KnobError:
        return ()


def knob_difference(one: KernelIR, other: KernelIR) -> KnobFix:
    """Return the knobs to turn to get from one IR of a graph to another."""
    order: KnobFix = () if one.loop_order == other.loop_order else (((LOOP_ORDER,), other.loop_order),)
    ltiles = (((LTILES, dim), count) for dim, count in other.ltiles.items() if one.ltiles[dim] != count)
    scopes = (
        ((SCOPES, name, dim), scope)
        for name, item in other.scopes.items()
        for dim, scope in item.items()
        if one.scopes[name][dim] is not scope
    )
    return (*order, *ltiles, *scopes)
