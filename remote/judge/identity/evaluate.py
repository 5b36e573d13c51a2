"""Evaluates parts of an expression over a domain: only what they need of every operation on the way.

First regions go up from the part, each operation turning what is wanted of it into what it wants of its
arguments. Then values come down, each operation computed once, on the least region that holds all that is
wanted of it, and dropped after its last use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from remote.judge.identity import regions
from remote.judge.identity.domain import Array, Domain, Planes
from remote.judge.identity.expression import (
    Aligned,
    Expression,
    ExpressionError,
    Node,
    Shape,
    aligned,
    strides_of,
)
from remote.judge.identity.recurrence import recurrence
from remote.judge.identity.regions import Axis, Region, broadcast, sizes, taken
from remote.judge.tiles import Tile

_LARGEST, _MOST = 1 << 24, 1 << 27
"""Elements of one operation's result, and of all results, that are evaluated."""


def evaluate(expression: Expression, boxes: Sequence[Tile], domain: Domain) -> list[Planes]:
    """Return boxes of the outputs, each in its own shape.

    Raises:
        ExpressionError: they need too much of the reference.
    """
    course = _course(expression, tuple(boxes))
    values: dict[int, Planes] = {}
    for number, plan in course.plans:
        given = [taken(values[at], course.have[at], region) for at, region in plan.needs]
        values[number] = plan.compute(domain, given)
        for at in course.done.get(number, ()):
            del values[at]
    return [
        taken(
            values[expression.outputs[box.output]], course.have[expression.outputs[box.output]], _region(box)
        )
        for box in boxes
    ]


@dataclass(frozen=True, slots=True)
class _Course:
    """What is computed for some boxes, in order; of each the region; what is of no more use after it."""

    plans: Sequence[tuple[int, _Plan]]
    have: dict[int, Region]
    done: dict[int, list[int]]


@lru_cache(maxsize=4)
def _course(expression: Expression, boxes: tuple[Tile, ...]) -> _Course:
    have: dict[int, Region] = {}
    plans: dict[int, _Plan] = {}
    wanted: dict[int, list[Region]] = {}
    for box in boxes:
        wanted.setdefault(expression.outputs[box.output], []).append(_region(box))
    goals = {*wanted}
    for number in range(max(goals), -1, -1):
        if number in wanted:
            have[number] = regions.merged(wanted.pop(number))
            plans[number] = plan = _plan(expression, number, have[number])
            for at, region in plan.needs:
                wanted.setdefault(at, []).append(region)
    work = [prod(sizes(region)) for region in have.values()]
    if max(work) > _LARGEST or sum(work) > _MOST:
        raise ExpressionError(
            f"the reference takes {sum(work)} elements for what is compared, that is too many"
        )
    return _Course(sorted(plans.items(), key=lambda item: item[0]), have, _last_uses(plans, goals))


def _region(box: Tile) -> Region:
    return tuple(range(first, end) for first, end in box.box)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What an operation needs for a region: parts of its arguments, and how it makes its result of them."""

    needs: Sequence[tuple[int, Region]]
    compute: Callable[[Domain, Sequence[Planes]], Planes]


@dataclass(frozen=True, slots=True)
class _Asked:
    """An operation, the region that is asked of it, and its arguments' shapes."""

    expression: Expression
    node: Node
    region: Region

    def shape_of(self, position: int) -> Shape:
        return self.expression.nodes[self.node.args[position]].shape


def _plan(expression: Expression, number: int, region: Region) -> _Plan:
    node = expression.nodes[number]
    return _PLANS[node.kind](_Asked(expression, node, region))


def _last_uses(plans: dict[int, _Plan], goals: set[int]) -> dict[int, list[int]]:
    """By operation, the values but goals that it is the last to use."""
    last = {at: number for number in sorted(plans) for at, _ in plans[number].needs}
    found: dict[int, list[int]] = {}
    for at, number in last.items():
        if at not in goals:
            found.setdefault(number, []).append(at)
    return found


def _input(asked: _Asked) -> _Plan:
    number = asked.node.params[0]
    strides = strides_of(asked.node.shape)
    return _Plan((), lambda domain, _: domain.symbols(number, regions.indices(asked.region, strides)))


def _constant(asked: _Asked) -> _Plan:
    array = asked.expression.arrays[asked.node.params[0]]
    index = np.ix_(*map(regions.listed, asked.region))
    return _Plan((), lambda domain, _: domain.constant(array[index] if asked.region else array))


def _unknown(asked: _Asked) -> _Plan:
    return _Plan((), lambda domain, _: domain.unknown(sizes(asked.region)))


def _elementwise(asked: _Asked) -> _Plan:
    node = asked.node
    needs = [(at, broadcast(asked.region, asked.shape_of(number))) for number, at in enumerate(node.args)]
    return _Plan(needs, _ELEMENTWISE[node.kind](*node.params))


_ELEMENTWISE: dict[str, Callable[..., Callable[[Domain, Sequence[Planes]], Planes]]] = {
    "binary": lambda name: lambda domain, given: domain.binary(name, *given),
    "select": lambda: lambda domain, given: domain.select(*given),
    "unary": lambda name: lambda domain, given: domain.unary(name, *given),
}


def _reduce(asked: _Asked) -> _Plan:
    (at,), (name, *axes) = asked.node.args, asked.node.params
    shape = asked.shape_of(0)
    region = tuple(range(shape[n]) if n in axes else axis for n, axis in enumerate(asked.region))
    return _Plan([(at, region)], lambda domain, given: domain.reduce(name, given[0], axes))


def _matmul(asked: _Asked) -> _Plan:
    (left, right), (*lead, rows, columns) = asked.node.args, asked.region
    shapes = asked.shape_of(0), asked.shape_of(1)
    inner = range(shapes[0][-1])
    outer = [broadcast(tuple(lead), shape[:-2]) for shape in shapes]
    needs = [(left, (*outer[0], rows, inner)), (right, (*outer[1], inner, columns))]
    return _Plan(needs, lambda domain, given: domain.matmul(*given))


def _recurrence(asked: _Asked) -> _Plan:
    """All states up to the last one that is asked for."""
    node, (steps, *rest) = asked.node, asked.region
    region = (range(int(regions.listed(steps)[-1]) + 1), *rest)
    needs = [(node.args[n], broadcast(region, asked.shape_of(n))) for n in (0, 1)]
    needs.append((node.args[2], tuple(rest)))

    def compute(domain: Domain, given: Sequence[Planes]) -> Planes:
        factors, terms = (
            value.move(lambda array: np.broadcast_to(array, sizes(region))) for value in given[:2]
        )
        return taken(recurrence(domain, factors, terms, given[2]), region, asked.region)

    return _Plan(needs, compute)


def _take(asked: _Asked) -> _Plan:
    (at,), (number, axis) = asked.node.args, asked.node.params
    index = asked.expression.arrays[number].astype(np.int64)
    rows = index[regions.listed(asked.region[axis])]
    region = (*asked.region[:axis], rows, *asked.region[axis + 1 :])
    return _Plan([(at, region)], lambda _, given: given[0])


def _view(asked: _Asked) -> _Plan:
    (at,), (shape, strides, offset) = asked.node.args, asked.node.params
    source = asked.shape_of(0)
    part = _aligned(source, shape, strides, offset)
    if part is None:
        return _across(asked, source, regions.indices(asked.region, strides, offset))
    order = [axis for _, axis in sorted((own, axis) for axis, (own, _) in part.axes.items())]
    order += [axis for axis in range(len(source)) if axis not in part.axes]
    own = {own for own, _ in part.axes.values()}
    shown = tuple(len(axis) if n in own else 1 for n, axis in enumerate(asked.region))
    full = sizes(asked.region)

    def moved(array: Array) -> Array:
        return np.broadcast_to(array.transpose(order).reshape(shown), full)

    needs = [(at, regions.of_source(part, asked.region, source))]
    return _Plan(needs, lambda _, given: given[0].move(moved))


def _across(asked: _Asked, source: Shape, flat: regions.Ints) -> _Plan:
    """A part that runs across axes of its source: elements one by one, from the least box of them."""
    places = np.unravel_index(flat, source)
    found = [np.unique(axis, return_inverse=True) for axis in places]
    region = tuple(positions for positions, _ in found)
    index = tuple(where.reshape(flat.shape) for _, where in found)
    return _Plan([(asked.node.args[0], region)], lambda _, given: given[0].move(lambda array: array[index]))


def _assemble(asked: _Asked) -> _Plan:
    """The pieces that show, later ones over earlier ones, and the base where it shows."""
    base, *pieces = asked.node.args
    remaining: Region | None = asked.region
    shown: list[tuple[int, Region, list[Axis], Aligned]] = []
    for position in range(len(pieces), 0, -1):
        if remaining is None:
            break
        part = _aligned(asked.node.shape, asked.shape_of(position), *asked.node.params[position - 1])
        assert part is not None
        met = regions.of_piece(part, asked.region, asked.shape_of(position))
        if met is not None and regions.of_piece(part, remaining, asked.shape_of(position)) is not None:
            shown.append((pieces[position - 1], *met, part))
            remaining = _uncovered(asked.region, remaining, met[1])
    needs = [(at, region) for at, region, _, _ in reversed(shown)]
    if remaining is not None:
        needs.append((base, asked.region))
    places = [(where, part) for _, _, where, part in reversed(shown)]
    return _Plan(needs, lambda _, given: _put_together(sizes(asked.region), places, given))


def _uncovered(region: Region, remaining: Region, where: Sequence[Axis]) -> Region | None:
    """What a piece at these positions of a region leaves of it, or a region around that; None: nothing."""
    short = [n for n, axis in enumerate(region) if len(where[n]) < len(axis)]
    if not short:
        return None
    if len(short) > 1:
        return remaining
    (axis,) = short
    covered = regions.listed(region[axis])[regions.listed(where[axis])]
    left = np.setdiff1d(regions.listed(remaining[axis]), covered)
    return (*remaining[:axis], left, *remaining[axis + 1 :]) if left.size else None


def _put_together(
    shape: Shape, places: Sequence[tuple[Sequence[Axis], Aligned]], given: Sequence[Planes]
) -> Planes:
    base = given[len(places)] if len(given) > len(places) else None
    found = []
    for plane in range(len(given[0].arrays)):
        target = np.empty(shape, given[0].arrays[plane].dtype)
        if base is not None:
            target[...] = base.arrays[plane]
        for (where, part), piece in zip(places, given, strict=False):
            own = [part.axes[axis][0] if axis in part.axes else None for axis in range(len(shape))]
            regions.placed(target, piece.arrays[plane], where, own)
        found.append(target)
    return Planes(tuple(found))


@lru_cache(maxsize=1 << 16)
def _aligned(source: Shape, shape: Shape, strides: Shape, offset: int) -> Aligned | None:
    return aligned(source, shape, strides, offset)


_PLANS: dict[str, Callable[[_Asked], _Plan]] = {
    "assemble": _assemble,
    "binary": _elementwise,
    "constant": _constant,
    "input": _input,
    "matmul": _matmul,
    "recurrence": _recurrence,
    "reduce": _reduce,
    "select": _elementwise,
    "take": _take,
    "unary": _elementwise,
    "unknown": _unknown,
    "view": _view,
}
