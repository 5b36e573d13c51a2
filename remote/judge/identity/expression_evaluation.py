"""Evaluates parts of an expression over a domain, computing only what they need of each operation.

First, regions go backward from the part: each operation turns the region wanted of it into the regions it
needs of its arguments. Then values go forward: each operation is computed once, on the smallest region that
holds all that is wanted, and dropped after its last use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from remote.judge.identity import regions
from remote.judge.identity.domain import Array, Planes, ValueDomain
from remote.judge.identity.expression import (
    ArrayExpression,
    AxisAlignment,
    ExpressionNode,
    InvalidExpressionError,
    Shape,
    align_view,
    strides_of,
)
from remote.judge.identity.recurrence import solve_recurrence
from remote.judge.identity.regions import (
    ArrayRegion,
    AxisPositions,
    region_shape,
    take_region,
    unbroadcast_region,
)
from remote.judge.tiles import OutputTile

_MAX_RESULT_ELEMENTS, _MAX_TOTAL_ELEMENTS = 1 << 24, 1 << 27
"""Limits on the elements evaluated for one operation's result, and for all results."""


def evaluate_boxes(
    expression: ArrayExpression, boxes: Sequence[OutputTile], domain: ValueDomain
) -> list[Planes]:
    """Return boxes of the outputs, each in its own shape.

    Raises:
        InvalidExpressionError: they need too much of the reference.
    """
    course = _plan_evaluation(expression, tuple(boxes))
    values: dict[int, Planes] = {}
    for number, plan in course.plans:
        given = [take_region(values[at], course.have[at], region) for at, region in plan.needs]
        values[number] = plan.compute(domain, given)
        for at in course.done.get(number, ()):
            del values[at]
    return [
        take_region(
            values[expression.outputs[box.output]],
            course.have[expression.outputs[box.output]],
            _box_region(box),
        )
        for box in boxes
    ]


@dataclass(frozen=True, slots=True)
class _EvaluationPlan:
    """What to compute for some boxes, in order, with the region of each, and what can be dropped after it."""

    plans: Sequence[tuple[int, _OperationPlan]]
    have: dict[int, ArrayRegion]
    done: dict[int, list[int]]


@lru_cache(maxsize=4)
def _plan_evaluation(expression: ArrayExpression, boxes: tuple[OutputTile, ...]) -> _EvaluationPlan:
    have: dict[int, ArrayRegion] = {}
    plans: dict[int, _OperationPlan] = {}
    wanted: dict[int, list[ArrayRegion]] = {}
    for box in boxes:
        wanted.setdefault(expression.outputs[box.output], []).append(_box_region(box))
    goals = {*wanted}
    for number in range(max(goals), -1, -1):
        if number in wanted:
            have[number] = regions.merge_regions(wanted.pop(number))
            plans[number] = plan = _plan_operation(expression, number, have[number])
            for at, region in plan.needs:
                wanted.setdefault(at, []).append(region)
    work = [prod(region_shape(region)) for region in have.values()]
    if max(work) > _MAX_RESULT_ELEMENTS or sum(work) > _MAX_TOTAL_ELEMENTS:
        raise InvalidExpressionError(
            f"the reference takes {sum(work)} elements for what is compared, that is too many"
        )
    return _EvaluationPlan(sorted(plans.items(), key=lambda item: item[0]), have, _last_uses(plans, goals))


def _box_region(box: OutputTile) -> ArrayRegion:
    return tuple(range(first, end) for first, end in box.box)


@dataclass(frozen=True, slots=True)
class _OperationPlan:
    """What an operation needs for a region: parts of its arguments, and how to make its result of them."""

    needs: Sequence[tuple[int, ArrayRegion]]
    compute: Callable[[ValueDomain, Sequence[Planes]], Planes]


@dataclass(frozen=True, slots=True)
class _RegionRequest:
    """An operation, the region wanted of it, and its arguments' shapes."""

    expression: ArrayExpression
    node: ExpressionNode
    region: ArrayRegion

    def argument_shape(self, position: int) -> Shape:
        return self.expression.nodes[self.node.args[position]].shape


def _plan_operation(expression: ArrayExpression, number: int, region: ArrayRegion) -> _OperationPlan:
    node = expression.nodes[number]
    return _PLANNERS[node.kind](_RegionRequest(expression, node, region))


def _last_uses(plans: dict[int, _OperationPlan], goals: set[int]) -> dict[int, list[int]]:
    """By operation, the values except goals that it is the last to use."""
    last = {at: number for number in sorted(plans) for at, _ in plans[number].needs}
    found: dict[int, list[int]] = {}
    for at, number in last.items():
        if at not in goals:
            found.setdefault(number, []).append(at)
    return found


def _plan_input(asked: _RegionRequest) -> _OperationPlan:
    number = asked.node.params[0]
    strides = strides_of(asked.node.shape)
    return _OperationPlan(
        (), lambda domain, _: domain.input_symbols(number, regions.flat_indices(asked.region, strides))
    )


def _plan_constant(asked: _RegionRequest) -> _OperationPlan:
    array = asked.expression.arrays[asked.node.params[0]]
    index = np.ix_(*map(regions.as_positions, asked.region))
    return _OperationPlan((), lambda domain, _: domain.constant(array[index] if asked.region else array))


def _plan_unknown(asked: _RegionRequest) -> _OperationPlan:
    return _OperationPlan((), lambda domain, _: domain.unknown_values(region_shape(asked.region)))


def _plan_elementwise(asked: _RegionRequest) -> _OperationPlan:
    node = asked.node
    needs = [
        (at, unbroadcast_region(asked.region, asked.argument_shape(number)))
        for number, at in enumerate(node.args)
    ]
    return _OperationPlan(needs, _ELEMENTWISE[node.kind](*node.params))


_ELEMENTWISE: dict[str, Callable[..., Callable[[ValueDomain, Sequence[Planes]], Planes]]] = {
    "binary": lambda name: lambda domain, given: domain.apply_binary(name, *given),
    "select": lambda: lambda domain, given: domain.select(*given),
    "unary": lambda name: lambda domain, given: domain.apply_unary(name, *given),
}


def _plan_reduce(asked: _RegionRequest) -> _OperationPlan:
    (at,), (name, *axes) = asked.node.args, asked.node.params
    shape = asked.argument_shape(0)
    region = tuple(range(shape[n]) if n in axes else axis for n, axis in enumerate(asked.region))
    return _OperationPlan([(at, region)], lambda domain, given: domain.reduce(name, given[0], axes))


def _plan_matmul(asked: _RegionRequest) -> _OperationPlan:
    (left, right), (*lead, rows, columns) = asked.node.args, asked.region
    shapes = asked.argument_shape(0), asked.argument_shape(1)
    inner = range(shapes[0][-1])
    outer = [unbroadcast_region(tuple(lead), shape[:-2]) for shape in shapes]
    needs = [(left, (*outer[0], rows, inner)), (right, (*outer[1], inner, columns))]
    return _OperationPlan(needs, lambda domain, given: domain.matmul(*given))


def _plan_recurrence(asked: _RegionRequest) -> _OperationPlan:
    """Plan all states up to the last one that is wanted."""
    node, (steps, *rest) = asked.node, asked.region
    region = (range(int(regions.as_positions(steps)[-1]) + 1), *rest)
    needs = [(node.args[n], unbroadcast_region(region, asked.argument_shape(n))) for n in (0, 1)]
    needs.append((node.args[2], tuple(rest)))

    def compute(domain: ValueDomain, given: Sequence[Planes]) -> Planes:
        factors, terms = (
            value.move(lambda array: np.broadcast_to(array, region_shape(region))) for value in given[:2]
        )
        return take_region(solve_recurrence(domain, factors, terms, given[2]), region, asked.region)

    return _OperationPlan(needs, compute)


def _plan_take(asked: _RegionRequest) -> _OperationPlan:
    (at,), (number, axis) = asked.node.args, asked.node.params
    index = asked.expression.arrays[number].astype(np.int64)
    rows = index[regions.as_positions(asked.region[axis])]
    region = (*asked.region[:axis], rows, *asked.region[axis + 1 :])
    return _OperationPlan([(at, region)], lambda _, given: given[0])


def _plan_view(asked: _RegionRequest) -> _OperationPlan:
    (at,), (shape, strides, offset) = asked.node.args, asked.node.params
    source = asked.argument_shape(0)
    part = _align_cached(source, shape, strides, offset)
    if part is None:
        return _plan_scattered_view(asked, source, regions.flat_indices(asked.region, strides, offset))
    order = [axis for _, axis in sorted((own, axis) for axis, (own, _) in part.axes.items())]
    order += [axis for axis in range(len(source)) if axis not in part.axes]
    own = {own for own, _ in part.axes.values()}
    shown = tuple(len(axis) if n in own else 1 for n, axis in enumerate(asked.region))
    full = region_shape(asked.region)

    def moved(array: Array) -> Array:
        return np.broadcast_to(array.transpose(order).reshape(shown), full)

    needs = [(at, regions.source_region(part, asked.region, source))]
    return _OperationPlan(needs, lambda _, given: given[0].move(moved))


def _plan_scattered_view(asked: _RegionRequest, source: Shape, flat: regions.Ints) -> _OperationPlan:
    """Plan a part that runs across axes of its source: elements one by one, from their smallest box."""
    places = np.unravel_index(flat, source)
    found = [np.unique(axis, return_inverse=True) for axis in places]
    region = tuple(positions for positions, _ in found)
    index = tuple(where.reshape(flat.shape) for _, where in found)
    return _OperationPlan(
        [(asked.node.args[0], region)], lambda _, given: given[0].move(lambda array: array[index])
    )


def _plan_assembly(asked: _RegionRequest) -> _OperationPlan:
    """Plan the visible pieces, later ones over earlier ones, and the base where it shows."""
    base, *pieces = asked.node.args
    remaining: ArrayRegion | None = asked.region
    shown: list[tuple[int, ArrayRegion, list[AxisPositions], AxisAlignment]] = []
    for position in range(len(pieces), 0, -1):
        if remaining is None:
            break
        part = _align_cached(
            asked.node.shape, asked.argument_shape(position), *asked.node.params[position - 1]
        )
        assert part is not None
        met = regions.piece_region(part, asked.region, asked.argument_shape(position))
        if (
            met is not None
            and regions.piece_region(part, remaining, asked.argument_shape(position)) is not None
        ):
            shown.append((pieces[position - 1], *met, part))
            remaining = _uncovered_region(asked.region, remaining, met[1])
    needs = [(at, region) for at, region, _, _ in reversed(shown)]
    if remaining is not None:
        needs.append((base, asked.region))
    places = [(where, part) for _, _, where, part in reversed(shown)]
    return _OperationPlan(needs, lambda _, given: _assemble_pieces(region_shape(asked.region), places, given))


def _uncovered_region(
    region: ArrayRegion, remaining: ArrayRegion, where: Sequence[AxisPositions]
) -> ArrayRegion | None:
    """The region that a piece at these positions leaves uncovered, or one around it; None: nothing."""
    short = [n for n, axis in enumerate(region) if len(where[n]) < len(axis)]
    if not short:
        return None
    if len(short) > 1:
        return remaining
    (axis,) = short
    covered = regions.as_positions(region[axis])[regions.as_positions(where[axis])]
    left = np.setdiff1d(regions.as_positions(remaining[axis]), covered)
    return (*remaining[:axis], left, *remaining[axis + 1 :]) if left.size else None


def _assemble_pieces(
    shape: Shape, places: Sequence[tuple[Sequence[AxisPositions], AxisAlignment]], given: Sequence[Planes]
) -> Planes:
    base = given[len(places)] if len(given) > len(places) else None
    found = []
    for plane in range(len(given[0].arrays)):
        target = np.empty(shape, given[0].arrays[plane].dtype)
        if base is not None:
            target[...] = base.arrays[plane]
        for (where, part), piece in zip(places, given, strict=False):
            own = [part.axes[axis][0] if axis in part.axes else None for axis in range(len(shape))]
            regions.write_piece(target, piece.arrays[plane], where, own)
        found.append(target)
    return Planes(tuple(found))


@lru_cache(maxsize=1 << 16)
def _align_cached(source: Shape, shape: Shape, strides: Shape, offset: int) -> AxisAlignment | None:
    return align_view(source, shape, strides, offset)


_PLANNERS: dict[str, Callable[[_RegionRequest], _OperationPlan]] = {
    "assemble": _plan_assembly,
    "binary": _plan_elementwise,
    "constant": _plan_constant,
    "input": _plan_input,
    "matmul": _plan_matmul,
    "recurrence": _plan_recurrence,
    "reduce": _plan_reduce,
    "select": _plan_elementwise,
    "take": _plan_take,
    "unary": _plan_elementwise,
    "unknown": _plan_unknown,
    "view": _plan_view,
}
