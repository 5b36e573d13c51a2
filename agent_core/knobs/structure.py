"""Contradictions of places: buffers that are made anew in a loop that they have to outlive."""

from __future__ import annotations

from collections.abc import Iterator

from agent_core.knobs.ir import SCOPES, TILE, KernelIR, Scope
from agent_core.knobs.nest import Nest
from agent_core.knobs.placement import Level, Place, inside
from agent_core.knobs.plan import Buffer, Step
from agent_core.knobs.report import Failure, Fix


def contradictions(ir: KernelIR, place: Place) -> Iterator[Failure]:
    """Buffers whose loops are not those of all that use them; of each buffer the outermost loop first."""
    for buffer in ir.plan.buffers:
        if place.contexts[buffer.name]:
            found = [*_of_users(ir, place, buffer), *_of_scopes(ir, place, buffer)]
            single = {failure.key: failure for failure in found}
            yield from sorted(single.values(), key=lambda failure: ir.position[failure.at])


def splits(ir: KernelIR, place: Place, nest: Nest) -> Iterator[Failure]:
    """Buffers whose users share their loops by name, and yet run in two of them."""
    chains = dict(nest.chains())
    for buffer in ir.plan.buffers:
        users = [step.number for step in ir.plan.steps if buffer.name in step.tensors]
        for depth, (loop, _) in enumerate(place.contexts[buffer.name], 1):
            if len({id(chains[number][depth]) for number in users}) > 1:
                detail = f"{buffer.name} is used in two loops {loop}, as steps between them need the first"
                yield Failure("split_loop", buffer.name, loop, detail, outlives(ir, buffer, loop))
                break


def _of_scopes(ir: KernelIR, place: Place, buffer: Buffer) -> Iterator[Failure]:
    """Loops over what a buffer holds at once."""
    for loop, _ in place.contexts[buffer.name]:
        dim, level = loop.split(".")
        scope = ir.scopes[buffer.name].get(dim, Scope.PER_TILE)
        if scope is Scope.FULL or (scope is Scope.PER_BLOCK and level == TILE):
            held = "all" if scope is Scope.FULL else "a block"
            detail = f"{buffer.name} holds {held} of {dim}, but is made anew in {loop}"
            yield Failure("scope_interval", buffer.name, loop, detail, outlives(ir, buffer, loop))


def _of_users(ir: KernelIR, place: Place, buffer: Buffer) -> Iterator[Failure]:
    """Steps that do not run in all loops of the context and no others outside of its innermost."""
    context = place.contexts[buffer.name]
    innermost = ir.position[context[-1][0]]
    for step in ir.plan.steps:
        if buffer.name in step.tensors:
            outer = {level for level in place.paths[step.number] if ir.position[level[0]] <= innermost}
            astray = outer.symmetric_difference(context) | _other_stages(place, step, context)
            for level in sorted(astray):
                yield _astray(ir, place, buffer, step, level)


def _other_stages(place: Place, step: Step, context: tuple[Level, ...]) -> set[Level]:
    """Loops over a step's own dimensions that belong to another stage than the step."""
    mine = {dim for _, dim in step.axes}
    stages = place.stages[step.number]
    dims = {level: level[0].split(".")[0] for level in context}
    return {level for level, dim in dims.items() if dim in mine and level[1] != stages[dim]}


def _astray(ir: KernelIR, place: Place, buffer: Buffer, step: Step, level: Level) -> Failure:
    """A step that uses a buffer and does not run in the same rounds of a loop."""
    loop = level[0]
    if step.result == buffer.name and loop.split(".")[0] in _sums(place, step):
        check, text = "reduction_interval", f"adds up over {loop}, in which {buffer.name} is made anew"
    elif loop in dict(place.paths[step.number]):
        check, text = "reader_interval", f"uses {buffer.name} in other rounds of {loop} than its other users"
    else:
        check, text = "reader_interval", f"uses {buffer.name}, made anew in {loop}, and does not run there"
    return Failure(check, buffer.name, loop, f"{step.operator} {text}", outlives(ir, buffer, loop))


def _sums(place: Place, step: Step) -> set[str]:
    """The dimensions that a step adds up over."""
    return {loop.split(".")[0] for loop in place.reduced[step.number]} | {step.reduces or ""}


def outlives(ir: KernelIR, buffer: Buffer, loop: str) -> Fix:
    """Scopes with which a buffer is made outside of a loop: the least of each dimension that does it."""
    at = ir.position[loop]
    fixes = []
    for dim in buffer.scoped:
        if inside(ir, dim, ir.scopes[buffer.name][dim]) > at:
            scope = next(item for item in (Scope.PER_BLOCK, Scope.FULL) if inside(ir, dim, item) <= at)
            fixes.append(((SCOPES, buffer.name, dim), scope))
    return tuple(fixes)
