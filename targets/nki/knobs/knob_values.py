"""Checks for malformed knob values: unknown loops, blocks that do not divide, missing scopes."""

from __future__ import annotations

from collections.abc import Iterator

from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import BLOCK, LOOP_ORDER, LTILES, SCOPES, TILE, KernelIR, Scope, loops_of
from targets.nki.knobs.report import CheckFailure


def find_malformed_values(ir: KernelIR) -> list[CheckFailure]:
    """Return every value that a knob cannot have."""
    return [*_order_failures(ir), *_block_failures(ir), *_scope_failures(ir)]


def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    return tuple(count for count in range(1, number + 1) if number % count == 0)


def block_choices(graph: Graph, dim: str) -> tuple[int, ...]:
    """The possible `ltiles_per_block` of a dimension."""
    return divisors(graph.dim[dim].tiles)


def scope_choices(partial: bool) -> tuple[Scope, ...]:
    """The possible scopes; PSUM is not drained within a block."""
    return (Scope.PER_BLOCK, Scope.FULL) if partial else tuple(Scope)


def _order_failures(ir: KernelIR) -> Iterator[CheckFailure]:
    wanted = loops_of(ir.graph)
    if sorted(ir.loop_order) != sorted(wanted):
        known = [loop for loop in dict.fromkeys(ir.loop_order) if loop in wanted]
        order = put_blocks_first((*known, *(loop for loop in wanted if loop not in known)))
        detail = f"the order is of {' '.join(ir.loop_order) or 'no loops'}; the loops are {' '.join(wanted)}"
        yield CheckFailure("loops", "", LOOP_ORDER, detail, (((LOOP_ORDER,), order),))
        return
    for dim in ir.graph.dims:
        if ir.loop_position[f"{dim.name}.{TILE}"] < ir.loop_position[f"{dim.name}.{BLOCK}"]:
            swapped = {
                f"{dim.name}.{BLOCK}": f"{dim.name}.{TILE}",
                f"{dim.name}.{TILE}": f"{dim.name}.{BLOCK}",
            }
            order = tuple(swapped.get(loop, loop) for loop in ir.loop_order)
            detail = f"the tiles of {dim.name} are walked outside of its blocks"
            yield CheckFailure("tile_outside_block", "", dim.name, detail, (((LOOP_ORDER,), order),))


def put_blocks_first(order: tuple[str, ...]) -> tuple[str, ...]:
    """An order in which every block loop precedes the tile loop of its dimension."""
    first = {dim: min(order.index(f"{dim}.{level}") for level in (BLOCK, TILE)) for dim in _loop_dims(order)}
    seen: set[str] = set()
    found = []
    for number, loop in enumerate(order):
        dim = loop.split(".")[0]
        found.append(f"{dim}.{BLOCK if number == first[dim] else TILE}")
        seen.add(dim)
    return tuple(found)


def _loop_dims(order: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(loop.split(".")[0] for loop in order))


def _block_failures(ir: KernelIR) -> Iterator[CheckFailure]:
    for name in sorted({*ir.ltiles, *ir.graph.dim}):
        count = ir.ltiles.get(name)
        if name not in ir.graph.dim:
            detail = f"there is no dimension {name}; there are {', '.join(ir.graph.dim)}"
            yield CheckFailure("block_size", "", name, detail, (((LTILES, name), None),))
            continue
        allowed = block_choices(ir.graph, name)
        if count not in allowed:
            nearest = min(allowed, key=lambda item: abs(item - (count or 1)))
            detail = f"{count} tiles of {name} in a block do not divide its {ir.graph.dim[name].tiles} tiles"
            yield CheckFailure("block_size", "", name, detail, (((LTILES, name), nearest),))


def _scope_failures(ir: KernelIR) -> Iterator[CheckFailure]:
    wanted = {(item.name, dim): dim == item.partial for item in ir.plan.buffers for dim in item.scoped_dims}
    given = {(name, dim): scope for name, item in ir.scopes.items() for dim, scope in item.items()}
    for name, dim in sorted({*wanted, *given}):
        knob = (SCOPES, name, dim)
        if (name, dim) not in wanted:
            yield CheckFailure("scope", name, dim, f"{name} has no dimension {dim}", ((knob, None),))
            continue
        allowed = scope_choices(wanted[name, dim])
        scope = given.get((name, dim))
        if scope not in allowed:
            words = ", ".join(item.name for item in allowed)
            detail = f"{name} holds {scope!r} of {dim}; it can hold {words}"
            yield CheckFailure("scope", name, dim, detail, ((knob, allowed[0]),))
