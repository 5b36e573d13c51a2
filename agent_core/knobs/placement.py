"""Where everything is, mechanically: which loops a step runs in, and in which of them a buffer is made anew.

Along a dimension, a step takes the most that its operator reaches and its buffers hold at once: all, a
block, or a tile. It runs in the loops that this leaves (its *own*), and in those that its result is made
anew in (the result's *context*), no others: so nothing is computed again without need. A buffer's context
are the loops that its readers run in, from the outside in, as deep as its scopes say: inside `d.tile` for
PER_TILE, inside `d.block` for PER_BLOCK. Contexts are found from the output backwards.

After a sum over a dimension the loops of that dimension begin again, for who reads the sum. The *stage* of a
step says how many sums over a dimension precede it; a loop is shared only within a stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent_core.knobs.ir import BLOCK, TILE, KernelIR, Scope
from agent_core.knobs.plan import Buffer, Step
from nki_sim import targets

Level = tuple[str, int]
"""A loop and the stage in which it runs."""


@dataclass(frozen=True)
class Place:
    """Where the steps of an IR run and its buffers live.

    `own` and `paths` are by step, `contexts` and `depths` by buffer. A depth is the number of loops of the
    whole order that a buffer's scopes put it inside of.
    """

    own: Mapping[int, frozenset[str]]
    reduced: Mapping[int, frozenset[str]]
    stages: Mapping[int, Mapping[str, int]]
    depths: Mapping[str, int]
    contexts: Mapping[str, tuple[Level, ...]]
    paths: Mapping[int, tuple[Level, ...]]


def placed(ir: KernelIR) -> Place:
    """Where everything is; also of knobs that contradict each other, which `validity` finds out."""
    steps = ir.plan.steps
    reduced = {step.number: _reduced(ir, step) for step in steps}
    own = {step.number: _own(ir, step) | reduced[step.number] for step in steps}
    stages = _stages(ir, reduced)
    depths = {item.name: _depth(ir, item) for item in ir.plan.buffers}
    contexts: dict[str, tuple[Level, ...]] = {}
    paths: dict[int, tuple[Level, ...]] = {}
    for step in reversed(steps):
        loops = {(loop, stages[step.number][loop.split(".")[0]]) for loop in own[step.number]}
        if step.result in ir.plan.buffer:
            readers = ir.plan.consumers[step.result]
            context = {
                level
                for reader in readers
                for level in paths[reader.number]
                if ir.position[level[0]] < depths[step.result]
            }
            contexts[step.result] = _sorted(ir, context)
            loops |= context
        paths[step.number] = _sorted(ir, loops)
    return Place(own, reduced, stages, depths, contexts, paths)


def _sorted(ir: KernelIR, levels: set[Level]) -> tuple[Level, ...]:
    return tuple(sorted(levels, key=lambda level: (ir.position[level[0]], level[1])))


def _depth(ir: KernelIR, buffer: Buffer) -> int:
    """The least number of loops that a buffer's scopes put it inside of."""
    return max((inside(ir, dim, ir.scopes[buffer.name][dim]) for dim in buffer.scoped), default=0)


def inside(ir: KernelIR, dim: str, scope: Scope) -> int:
    """How many loops a scope puts a buffer inside of, at least."""
    if scope is Scope.FULL:
        return 0
    return ir.position[f"{dim}.{TILE if scope is Scope.PER_TILE else BLOCK}"] + 1


def _reduced(ir: KernelIR, step: Step) -> frozenset[str]:
    """The loops in which a step adds up: a matmul within what PSUM holds, its drain over the rest."""
    source = ir.plan.buffer.get(step.operands[0][1])
    if source is not None and source.partial is not None:
        whole = ir.scopes[source.name][source.partial] is Scope.FULL
        return frozenset() if whole else frozenset({f"{source.partial}.{BLOCK}"})
    if step.reduces is None:
        return frozenset()
    found = _loops(step.reduces, span(ir, step, step.reduces))
    result = ir.plan.buffer[step.result]
    drained = result.partial is not None and ir.scopes[result.name][result.partial] is not Scope.FULL
    return found - {f"{step.reduces}.{BLOCK}"} if drained else found


def _own(ir: KernelIR, step: Step) -> frozenset[str]:
    return frozenset().union(*(_loops(dim, span(ir, step, dim)) for _, dim in step.axes))


def _loops(dim: str, scope: Scope) -> frozenset[str]:
    """The loops that are left when a step takes so much of a dimension at once."""
    names = (f"{dim}.{BLOCK}", f"{dim}.{TILE}")
    return frozenset(names[: 2 - scope])


def span(ir: KernelIR, step: Step, dim: str) -> Scope:
    """How much of a dimension an instruction of a step takes at once."""
    if dim in step.single:
        return Scope.PER_TILE
    held = [ir.scopes[name][dim] for name in step.tensors if dim in _held(ir, name)]
    most = min(held, default=Scope.FULL)
    limit = reach(ir, step, dim)
    fits = [scope for scope in Scope if ir.tiles(dim, scope) * ir.graph.dim[dim].tile <= limit]
    return max((scope for scope in fits if scope <= most), default=Scope.PER_TILE)


def _held(ir: KernelIR, tensor: str) -> tuple[str, ...]:
    buffer = ir.plan.buffer.get(tensor)
    return () if buffer is None else buffer.dims


def reach(ir: KernelIR, step: Step, dim: str) -> int:
    """How many elements of a dimension an instruction takes at most."""
    limits = targets.load(ir.graph.target)
    letters = [letter for letter, name in step.axes if name == dim]
    found = [getattr(limits, step.entry.limits[letter]) for letter in letters if letter in step.entry.limits]
    return int(min(found, default=limits.sbuf_access_elements_max))


def _stages(ir: KernelIR, reduced: Mapping[int, frozenset[str]]) -> dict[int, dict[str, int]]:
    """How many sums over each dimension precede a step, as late as its readers allow."""
    dims = [dim.name for dim in ir.graph.dims]
    sums = {step.number: _summed(ir, step) for step in ir.plan.steps}
    last = ir.plan.steps[-1]
    early: dict[int, dict[str, int]] = {}
    for step in ir.plan.steps:
        made = [ir.plan.producer[name].number for _, name in step.operands if name in ir.plan.buffer]
        early[step.number] = {d: max((early[n][d] + (sums[n] == d) for n in made), default=0) for d in dims}
    late = {last.number: early[last.number]}
    for step in reversed(ir.plan.steps[:-1]):
        readers = [late[item.number] for item in ir.plan.consumers[step.result]]
        late[step.number] = {d: min(item[d] for item in readers) - (sums[step.number] == d) for d in dims}
    return late


def _summed(ir: KernelIR, step: Step) -> str | None:
    """The dimension that is summed up once a step has run in all its loops."""
    source = ir.plan.buffer.get(step.operands[0][1])
    if source is not None and source.partial is not None:
        return None if ir.scopes[source.name][source.partial] is Scope.FULL else source.partial
    result = ir.plan.buffer.get(step.result)
    if result is not None and result.partial is not None:
        return result.partial if ir.scopes[result.name][result.partial] is Scope.FULL else None
    return step.reduces
