"""Estimates a point statically: the busy time of its engines, without a schedule.

Every step runs once per iteration of its path, and each of its instructions costs what the simulator's table
says. Waiting between engines is not counted. So the estimate ranks the points to try first, but never
predicts a kernel's latency. It gives a lower bound, though: a kernel cannot be faster than its busiest
engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from nki_sim import targets
from nki_sim.forms import Form, Operand
from targets.nki.knobs.capacity import buffer_dtype, buffer_extent, is_accumulated, row_elements
from targets.nki.knobs.ir import KernelIR, Scope
from targets.nki.knobs.operators import PARTIAL, TileUse
from targets.nki.knobs.placement import Placement
from targets.nki.knobs.plan import PlanStep
from targets.nki.rewrites.estimate import ENGINES, NORM, form_ns

_PREFIX = "nl."


class PointEstimate(NamedTuple):
    """Nanoseconds. `cost_ns` is a norm over the engines' busy times, close to that of the busiest.

    `least_ns` is the busiest engine alone plus the fixed time of every kernel: no schedule is shorter.
    """

    cost_ns: float
    least_ns: float


def cost_ns(ir: KernelIR, place: Placement) -> float:
    """Return the cost by which points are ordered."""
    return estimate_cost(ir, place).cost_ns


def estimate_cost(ir: KernelIR, place: Placement) -> PointEstimate:
    """Both estimates of a point."""
    target = targets.load(ir.graph.target)
    busy = dict.fromkeys(ENGINES, 0.0)
    for step in ir.plan.steps:
        rounds = prod(ir.trip_count(loop) for loop, _ in place.paths[step.number])
        for form in _instruction_forms(ir, place, step):
            for engine, nanoseconds in form_ns(form, target).items():
                busy[engine] += nanoseconds * rounds
    norm = float(sum(value**NORM for value in busy.values()) ** (1 / NORM))
    return PointEstimate(norm, target.kernel_overhead_ns + max(busy.values()))


def _instruction_forms(ir: KernelIR, place: Placement, step: PlanStep) -> Iterator[Form]:
    """The instructions of a step, in the form that the cost table expects."""
    settings = dict(step.settings)
    tensors = {**dict(step.operands), "result": step.result}
    for item in step.entry.emit(settings, is_accumulated(ir, place, step)):
        operands = []
        params = []
        for role, value in item.arguments:
            if not isinstance(value, TileUse):
                params.append((role, value.removeprefix(_PREFIX)))
            elif value.slot in tensors:
                operands.append(_tensor_operand(ir, place, step, role=role, tensor=tensors[value.slot]))
            else:
                operands.append(_scratch_operand(ir, place, step, role=role, slot=value.slot))
        engine = step.entry.engine if item.name not in _VECTOR else "vector"
        yield Form(item.name, engine, tuple(operands), tuple(params))


_VECTOR = frozenset({"tensor_tensor"})
"""The instructions that add a part to a result, whichever engine made it."""


def _tensor_operand(ir: KernelIR, place: Placement, step: PlanStep, *, role: str, tensor: str) -> Operand:
    core = ir.plan.core_of(tensor)
    sizes = [_elements_at_once(ir, place, step, dim=dim) for dim in core]
    if tensor in ir.plan.buffer:
        buffer = ir.plan.buffer[tensor]
        tiles, row = buffer_extent(ir, buffer)
        width = sizes[1] if len(sizes) > 1 else 1
        dims = ((tiles * row, ir.plan.rows_of(tensor)), (1, width))
        return Operand(role, dims, buffer_dtype(ir, place, tensor), buffer.memory, tiles * row, 0)
    value = ir.graph.value[tensor]
    if value.spread is not None:
        dims = ((0, ir.plan.rows_of(step.result)), (1, sizes[0]))
    elif len(sizes) > 1:
        dims = ((ir.graph.dim[core[1]].size, sizes[0]), (1, sizes[1]))
    else:
        dims = ((1, sizes[0]), (1, 1))
    return Operand(role, dims, value.dtype, "shared_hbm", dims[0][0], 0)


def _scratch_operand(ir: KernelIR, place: Placement, step: PlanStep, *, role: str, slot: str) -> Operand:
    row = 1 if slot == PARTIAL else row_elements(ir, place, step)
    rows = ir.plan.rows_of(step.operands[0][1])
    return Operand(role, ((row, rows), (1, row)), "float32", "sbuf", row, 0)


def _elements_at_once(ir: KernelIR, place: Placement, step: PlanStep, *, dim: str) -> int:
    """The number of elements of a dimension that a step takes at once."""
    span = place.spans.get((step.number, dim), Scope.PER_TILE)
    return ir.tiles_in_scope(dim, span) * ir.graph.dim[dim].tile if dim in ir.graph.dim else 1
