"""Derives where everything is: the loops that a step runs in, and the loop in which a buffer is made.

Along a dimension, a step takes as much at once as its operator reaches and its buffers hold: all, a block, or
a tile. It runs in the remaining loops (its *own*), and in those in which its result is made again (the
result's *context*), and in no others: so nothing is computed twice without need. A buffer's context are the
loops that its readers run in, from the outside in, as deep as its scopes say: inside `d.tile` for PER_TILE,
inside `d.block` for PER_BLOCK. Contexts are found from the output backward. A loop that runs once counts as
no loop: nothing runs in it, and no scope puts a buffer inside it.

After a sum over a dimension, the loops of that dimension start again for the readers of the sum. The *stage*
of a step in a loop is the number of sums over that loop that precede the step; a loop is shared only within a
stage. A running sum, or the sum of one round, is read within the same round: only the loop over the tiles of
its block starts again. In a dimension that is walked in rounds a step takes at most a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeGuard

from targets.nki.knobs.ir import BLOCK, TILE, KernelIR, Scope
from targets.nki.knobs.plan import ROUND_AXIS, Buffer, BufferPlan, PlanStep

_WIDEST = tuple(reversed(Scope))

LoopStage = tuple[str, int]
"""A loop and the stage in which it runs."""


@dataclass(frozen=True)
class Placement:
    """Where the steps of an IR run and its buffers live.

    `spans` is how much of a dimension a step takes at once, by step and dimension. `own` and `paths` are by
    step, `contexts` and `depths` by buffer. A depth is the number of loops, in the whole order, that a
    buffer's scopes put it inside of.
    """

    spans: Mapping[tuple[int, str], Scope]
    own: Mapping[int, frozenset[str]]
    reduced: Mapping[int, frozenset[str]]
    stages: Mapping[int, Mapping[str, int]]
    depths: Mapping[str, int]
    contexts: Mapping[str, tuple[LoopStage, ...]]
    paths: Mapping[int, tuple[LoopStage, ...]]


def compute_placement(ir: KernelIR) -> Placement:
    """Compute the placement; also for contradictory knobs, which `validity` reports."""
    steps = ir.plan.steps
    spans = {key: _step_span(ir, key[1], *of) for key, of in ir.plan.step_reach.items()}
    reduced = {step.number: _reduced_loops(ir, step, spans) for step in steps}
    single = {loop for loop in ir.loop_order if ir.trip_count(loop) == 1}
    walked = {step.number: reduced[step.number].union(*_walked_loops(step, spans)) for step in steps}
    own = {number: loops - single for number, loops in walked.items()}
    whole = (item.name for item in ir.plan.buffers if _is_whole(ir, item))
    stages = _step_stages(ir.plan, frozenset(whole))
    depths = {item.name: _buffer_depth(ir, item) for item in ir.plan.buffers}
    contexts: dict[str, tuple[LoopStage, ...]] = {}
    paths: dict[int, tuple[LoopStage, ...]] = {}
    for step in reversed(steps):
        loops = {(loop, stages[step.number][loop]) for loop in own[step.number]}
        if step.result in ir.plan.buffer:
            depth = depths[step.result]
            read = (paths[reader.number] for reader in ir.plan.consumers[step.result])
            context = {level for path in read for level in path if ir.loop_position[level[0]] < depth}
            contexts[step.result] = _sort_stages(ir, context)
            loops |= context
        paths[step.number] = _sort_stages(ir, loops)
        if step.state:
            outer = {level for level in loops if ir.loop_position[level[0]] < depths[step.state]}
            contexts[step.state] = _sort_stages(ir, outer)
    return Placement(spans, own, reduced, stages, depths, contexts, paths)


def _sort_stages(ir: KernelIR, levels: set[LoopStage]) -> tuple[LoopStage, ...]:
    return tuple(sorted(levels, key=lambda level: (ir.loop_position[level[0]], level[1])))


def _buffer_depth(ir: KernelIR, buffer: Buffer) -> int:
    """The least number of loops that a buffer's scopes put it inside of."""
    scoped = (scope_depth(ir, dim, ir.scopes[buffer.name][dim]) for dim in buffer.scoped_dims)
    return max(
        (*scoped, scope_depth(ir, buffer.round, Scope.PER_BLOCK) if has_rounds(buffer.round, ir) else 0)
    )


def widest_scope(ir: KernelIR, buffer: Buffer, dim: str) -> Scope:
    """The most that a buffer should hold: for a dimension walked outside its rounds, what one round sees."""
    round_of = ir.plan.round_dims.get(buffer.name)
    if has_rounds(round_of, ir):
        at = ir.loop_position[f"{round_of}.{BLOCK}"]
        outside = (ir.loop_position[f"{dim}.{level}"] < at for level in (BLOCK, TILE))
        return Scope(Scope.FULL - sum(outside))
    return Scope.FULL


def has_rounds(dim: str | None, ir: KernelIR) -> TypeGuard[str]:
    """Whether a dimension exists and is walked in more than one round."""
    return dim is not None and ir.trip_count(f"{dim}.{BLOCK}") > 1


def is_used(ir: KernelIR, step: PlanStep) -> bool:
    """Whether a step runs at all: carrying from round to round is useless with a single round."""
    return step.entry.carries is None or has_rounds(dict(step.axes)[ROUND_AXIS], ir)


def scope_depth(ir: KernelIR, dim: str, scope: Scope) -> int:
    """The least number of loops that a scope puts a buffer inside of."""
    around = (f"{dim}.{level}" for level in (BLOCK, TILE)[: Scope.FULL - scope])
    return max((ir.loop_position[loop] + 1 for loop in around if ir.trip_count(loop) > 1), default=0)


def _is_whole(ir: KernelIR, buffer: Buffer) -> bool:
    """Whether a PSUM buffer is drained only at the end; also if a block is everything."""
    if buffer.partial is None:
        return False
    held = ir.scopes[buffer.name][buffer.partial]
    return ir.tiles_in_scope(buffer.partial, held) == ir.graph.dim[buffer.partial].tiles


def _reduced_loops(ir: KernelIR, step: PlanStep, spans: Mapping[tuple[int, str], Scope]) -> frozenset[str]:
    """The loops in which a step adds up: a matmul within what PSUM holds, its drain over the rest."""
    source = ir.plan.buffer.get(step.operands[0][1])
    if source is not None and source.partial is not None:
        return frozenset() if _is_whole(ir, source) else frozenset({f"{source.partial}.{BLOCK}"})
    if step.reduced_dim is None:
        return frozenset()
    found = _remaining_loops(step.reduced_dim, spans[step.number, step.reduced_dim])
    result = ir.plan.buffer[step.result]
    drained = result.partial is not None and not _is_whole(ir, result)
    return found - {f"{step.reduced_dim}.{BLOCK}"} if drained or result.round == step.reduced_dim else found


def _walked_loops(step: PlanStep, spans: Mapping[tuple[int, str], Scope]) -> list[frozenset[str]]:
    """The loops over what a step does not take at once."""
    return [_remaining_loops(dim, spans[step.number, dim]) for _, dim in step.axes]


@cache
def _remaining_loops(dim: str, scope: Scope) -> frozenset[str]:
    """The loops that remain if a step takes this much of a dimension at once."""
    names = (f"{dim}.{BLOCK}", f"{dim}.{TILE}")
    return frozenset(names[: 2 - scope])


def _step_span(ir: KernelIR, dim: str, limit: int, holders: tuple[str, ...]) -> Scope:
    """The most tiles of a dimension that an instruction reaches and all of these buffers hold."""
    widest = Scope.PER_BLOCK if dim in ir.graph.rounds else Scope.FULL
    most = min((widest, *(ir.scopes[name][dim] for name in holders)))
    return next(
        (scope for scope in _WIDEST if scope <= most and ir.tiles_in_scope(dim, scope) <= limit),
        Scope.PER_TILE,
    )


@lru_cache(maxsize=512)
def _step_stages(plan: BufferPlan, whole: frozenset[str]) -> Mapping[int, Mapping[str, int]]:
    """The number of sums over each loop that precede a step, as late as its readers allow."""
    loops = [f"{dim}.{level}" for dim in plan.graph.dim for level in (BLOCK, TILE)]
    sums = {step.number: _summed_loops(plan, step, whole) for step in plan.steps}
    last = plan.steps[-1]
    early: dict[int, dict[str, int]] = {}
    for step in plan.steps:
        made = [plan.producer[name].number for _, name in step.operands if name in plan.buffer]
        early[step.number] = {i: max((early[n][i] + (i in sums[n]) for n in made), default=0) for i in loops}
    late = {last.number: early[last.number]}
    for step in reversed(plan.steps[:-1]):
        readers = [late[item.number] for item in plan.consumers[step.result]]
        mine = sums[step.number]
        late[step.number] = {loop: min(item[loop] for item in readers) - (loop in mine) for loop in loops}
    return late


def _summed_loops(plan: BufferPlan, step: PlanStep, whole: frozenset[str]) -> frozenset[str]:
    """The loops that are summed over after a step has run in all of them."""
    source, result = plan.buffer.get(step.operands[0][1]), plan.buffer.get(step.result)
    dim = step.reduced_dim
    if source is not None and source.partial is not None:
        dim = None if source.name in whole else source.partial
    elif result is not None and result.partial is not None:
        dim = result.partial if result.name in whole else None
    if dim is None:
        return frozenset()
    in_round = result is not None and dim in (result.round, result.running)
    return frozenset({f"{dim}.{TILE}"} if in_round else {f"{dim}.{BLOCK}", f"{dim}.{TILE}"})
