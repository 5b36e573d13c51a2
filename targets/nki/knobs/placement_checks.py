"""Checks placements for contradictions: buffers that are made again in a loop that they must outlive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from targets.nki.knobs.ir import BLOCK, LTILES, SCOPES, TILE, KernelIR, Knob, Scope
from targets.nki.knobs.nest import LoopNest
from targets.nki.knobs.placement import LoopStage, Placement, has_rounds, scope_depth
from targets.nki.knobs.plan import Buffer, PlanStep
from targets.nki.knobs.report import CheckFailure, KnobFix


def find_contradictions(ir: KernelIR, place: Placement) -> Iterator[CheckFailure]:
    """Buffers whose loops differ from those of their users; for each buffer the outermost loop first."""
    for buffer in ir.plan.buffers:
        if place.contexts[buffer.name]:
            found = [
                *_user_contradictions(ir, place, buffer),
                *_scope_contradictions(ir, place, buffer),
                *_round_contradictions(ir, place, buffer),
            ]
            single = {failure.key: failure for failure in found}
            yield from sorted(single.values(), key=lambda failure: ir.loop_position[failure.at])


def find_splits(ir: KernelIR, place: Placement, nest: LoopNest) -> Iterator[CheckFailure]:
    """Buffers whose users share loops by name, but run in two separate copies of a loop."""
    chains = dict(nest.step_chains())
    for buffer in ir.plan.buffers:
        users = [
            step.number for step in ir.plan.steps if buffer.name in step.tensors and step.number in chains
        ]
        for depth, (loop, _) in enumerate(place.contexts[buffer.name], 1):
            if len({id(chains[number][depth]) for number in users}) > 1:
                detail = f"{buffer.name} is used in two loops {loop}, as steps between them need the first"
                yield CheckFailure(
                    "split_loop", buffer.name, loop, detail, outliving_scopes(ir, buffer, loop)
                )
                break
        if has_rounds(buffer.running, ir):
            rounds = [_round_loop(chains[number], buffer.running) for number in users]
            if None in rounds or len(set(rounds)) > 1:
                loop = f"{buffer.running}.{BLOCK}"
                detail = f"{buffer.name} is read in other loops {loop} than the one in which it goes on"
                yield CheckFailure(
                    "split_rounds", buffer.name, loop, detail, (_single_round(ir, buffer.running),)
                )


def _round_loop(chain: tuple[LoopNest, ...], dim: str) -> int | None:
    """The loop over the rounds of a dimension among these."""
    found = (id(nest) for nest in chain if nest.level is not None and nest.level[0] == f"{dim}.{BLOCK}")
    return next(found, None)


def _single_round(ir: KernelIR, dim: str) -> tuple[Knob, int]:
    return (LTILES, dim), ir.graph.dim[dim].tiles


def _scope_contradictions(ir: KernelIR, place: Placement, buffer: Buffer) -> Iterator[CheckFailure]:
    """Loops over what a buffer holds at once."""
    for loop, _ in place.contexts[buffer.name]:
        dim, level = loop.split(".")
        scope = ir.scopes[buffer.name].get(dim, Scope.PER_TILE)
        if scope is Scope.FULL or (scope is Scope.PER_BLOCK and level == TILE):
            held = "all" if scope is Scope.FULL else "a block"
            detail = f"{buffer.name} holds {held} of {dim}, but is made anew in {loop}"
            less = Scope.PER_TILE if level == TILE else Scope.PER_BLOCK
            narrower: KnobFix = (((SCOPES, buffer.name, dim), less),)
            fix = narrower if _is_outside_rounds(ir, loop, buffer) else outliving_scopes(ir, buffer, loop)
            yield CheckFailure("scope_interval", buffer.name, loop, detail, fix)


def _is_outside_rounds(ir: KernelIR, loop: str, buffer: Buffer) -> bool:
    """Whether a loop is necessarily outside the rounds in which a buffer is made again."""
    rounds = has_rounds(buffer.round, ir)
    return rounds and ir.loop_position[loop] < ir.loop_position[f"{buffer.round}.{BLOCK}"]


def _round_contradictions(ir: KernelIR, place: Placement, buffer: Buffer) -> Iterator[CheckFailure]:
    """Loops over the rounds that a buffer must outlive."""
    for loop, _ in place.contexts[buffer.name]:
        if loop.split(".")[0] == buffer.running:
            detail = f"{buffer.name} goes on over all of {buffer.running}, but is made anew in {loop}"
            yield CheckFailure(
                "reduction_interval", buffer.name, loop, detail, outliving_scopes(ir, buffer, loop)
            )


def _user_contradictions(ir: KernelIR, place: Placement, buffer: Buffer) -> Iterator[CheckFailure]:
    """Steps that do not run in all loops of the context, or run in others outside its innermost loop."""
    context = place.contexts[buffer.name]
    innermost = ir.loop_position[context[-1][0]]
    for step in ir.plan.steps:
        if buffer.name in step.tensors:
            outer = {level for level in place.paths[step.number] if ir.loop_position[level[0]] <= innermost}
            astray = outer.symmetric_difference(context) | _other_stages(place, step, context)
            for level in sorted(astray):
                yield _interval_failure(ir, place, buffer, step=step, level=level)


def _other_stages(place: Placement, step: PlanStep, context: tuple[LoopStage, ...]) -> set[LoopStage]:
    """Loops over a step's own dimensions that belong to a different stage than the step."""
    mine = {dim for _, dim in step.axes}
    stages = place.stages[step.number]
    return {level for level in context if level[0].split(".")[0] in mine and level[1] != stages[level[0]]}


def _interval_failure(
    ir: KernelIR, place: Placement, buffer: Buffer, *, step: PlanStep, level: LoopStage
) -> CheckFailure:
    """The failure for a step that uses a buffer and does not run in the same iterations of a loop."""
    loop = level[0]
    if step.result == buffer.name and loop.split(".")[0] in _summed_dims(place, step):
        check, text = "reduction_interval", f"adds up over {loop}, in which {buffer.name} is made anew"
    elif loop in dict(place.paths[step.number]):
        check, text = "reader_interval", f"uses {buffer.name} in other rounds of {loop} than its other users"
    else:
        check, text = "reader_interval", f"uses {buffer.name}, made anew in {loop}, and does not run there"
    return CheckFailure(
        check, buffer.name, loop, f"{step.operator} {text}", outliving_scopes(ir, buffer, loop)
    )


def _summed_dims(place: Placement, step: PlanStep) -> set[str]:
    """The dimensions that a step sums over."""
    return {loop.split(".")[0] for loop in place.reduced[step.number]} | {step.reduced_dim or ""}


def outliving_scopes(ir: KernelIR, buffer: Buffer, loop: str) -> KnobFix:
    """Scopes that put a buffer outside a loop: the least of each dimension that achieves it.

    A buffer that is made again in each round is made once if there is a single round.
    """
    at = ir.loop_position[loop]
    fixes: list[tuple[Knob, Any]] = []
    for dim in buffer.scoped_dims:
        if scope_depth(ir, dim, ir.scopes[buffer.name][dim]) > at:
            scope = next(item for item in (Scope.PER_BLOCK, Scope.FULL) if scope_depth(ir, dim, item) <= at)
            fixes.append(((SCOPES, buffer.name, dim), scope))
    if has_rounds(buffer.round, ir) and scope_depth(ir, buffer.round, Scope.PER_BLOCK) > at:
        fixes.append(_single_round(ir, buffer.round))
    return tuple(fixes)
