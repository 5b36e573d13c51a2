"""Values that are no values of the knobs: loops that are not there, blocks that do not divide, scopes left
out."""

from __future__ import annotations

from collections.abc import Iterator

from targets.nki.knobs.graph import Graph
from targets.nki.knobs.ir import BLOCK, LOOP_ORDER, LTILES, SCOPES, TILE, KernelIR, Scope, loops_of
from targets.nki.knobs.report import Failure


def malformed(ir: KernelIR) -> list[Failure]:
    """Every value that a knob cannot have."""
    return [*_order(ir), *_blocks(ir), *_scopes(ir)]


def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    return tuple(count for count in range(1, number + 1) if number % count == 0)


def choices(graph: Graph, dim: str) -> tuple[int, ...]:
    """What `ltiles_per_block` of a dimension can be."""
    return divisors(graph.dim[dim].tiles)


def scopes_of(partial: bool) -> tuple[Scope, ...]:
    """What a scope can be; PSUM is not drained within a block."""
    return (Scope.PER_BLOCK, Scope.FULL) if partial else tuple(Scope)


def _order(ir: KernelIR) -> Iterator[Failure]:
    wanted = loops_of(ir.graph)
    if sorted(ir.loop_order) != sorted(wanted):
        known = [loop for loop in dict.fromkeys(ir.loop_order) if loop in wanted]
        order = blocks_first((*known, *(loop for loop in wanted if loop not in known)))
        detail = f"the order is of {' '.join(ir.loop_order) or 'no loops'}; the loops are {' '.join(wanted)}"
        yield Failure("loops", "", LOOP_ORDER, detail, (((LOOP_ORDER,), order),))
        return
    for dim in ir.graph.dims:
        if ir.position[f"{dim.name}.{TILE}"] < ir.position[f"{dim.name}.{BLOCK}"]:
            swapped = {
                f"{dim.name}.{BLOCK}": f"{dim.name}.{TILE}",
                f"{dim.name}.{TILE}": f"{dim.name}.{BLOCK}",
            }
            order = tuple(swapped.get(loop, loop) for loop in ir.loop_order)
            detail = f"the tiles of {dim.name} are walked outside of its blocks"
            yield Failure("tile_outside_block", "", dim.name, detail, (((LOOP_ORDER,), order),))


def blocks_first(order: tuple[str, ...]) -> tuple[str, ...]:
    """An order in which every block loop precedes the tile loop of its dimension."""
    first = {dim: min(order.index(f"{dim}.{level}") for level in (BLOCK, TILE)) for dim in _dims(order)}
    seen: set[str] = set()
    found = []
    for number, loop in enumerate(order):
        dim = loop.split(".")[0]
        found.append(f"{dim}.{BLOCK if number == first[dim] else TILE}")
        seen.add(dim)
    return tuple(found)


def _dims(order: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(loop.split(".")[0] for loop in order))


def _blocks(ir: KernelIR) -> Iterator[Failure]:
    for name in sorted({*ir.ltiles, *ir.graph.dim}):
        count = ir.ltiles.get(name)
        if name not in ir.graph.dim:
            detail = f"there is no dimension {name}; there are {', '.join(ir.graph.dim)}"
            yield Failure("block_size", "", name, detail, (((LTILES, name), None),))
            continue
        allowed = choices(ir.graph, name)
        if count not in allowed:
            nearest = min(allowed, key=lambda item: abs(item - (count or 1)))
            detail = f"{count} tiles of {name} in a block do not divide its {ir.graph.dim[name].tiles} tiles"
            yield Failure("block_size", "", name, detail, (((LTILES, name), nearest),))


def _scopes(ir: KernelIR) -> Iterator[Failure]:
    wanted = {(item.name, dim): dim == item.partial for item in ir.plan.buffers for dim in item.scoped}
    given = {(name, dim): scope for name, item in ir.scopes.items() for dim, scope in item.items()}
    for name, dim in sorted({*wanted, *given}):
        knob = (SCOPES, name, dim)
        if (name, dim) not in wanted:
            yield Failure("scope", name, dim, f"{name} has no dimension {dim}", ((knob, None),))
            continue
        allowed = scopes_of(wanted[name, dim])
        scope = given.get((name, dim))
        if scope not in allowed:
            words = ", ".join(item.name for item in allowed)
            detail = f"{name} holds {scope!r} of {dim}; it can hold {words}"
            yield Failure("scope", name, dim, detail, ((knob, allowed[0]),))
