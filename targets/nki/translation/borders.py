"""Borders of results: what is around the parts of an array is written by itself, and not under them too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from remote.judge.identity.expression import (
    ArrayExpression,
    ExpressionNode,
    Shape,
    align_view,
    strides_of,
)
from targets.nki.translation.known import KnownArrays

_MOST_BOXES = 8
"""Boxes of a border that are written one by one: of more, all of the array is filled first."""

_Box = tuple[tuple[int, int], ...]
"""Along each axis the first element and the one after the last."""


def split_borders(expression: ArrayExpression) -> ArrayExpression:
    """Return an expression whose outputs consist of parts only, if what is around these is one number.

    An array of that number with parts put in would be written twice where the parts are.
    """
    known = KnownArrays(expression)
    assembled = _find_assembled(expression, known)
    if not assembled:
        return expression
    numbers: list[int] = []
    nodes: list[ExpressionNode] = []
    for at, node in enumerate(expression.nodes):
        own = replace(node, args=tuple(numbers[arg] for arg in node.args))
        boxes = _find_border(expression, known, node) if at in assembled else []
        if boxes:
            base, *pieces = own.args
            unknown = len(nodes)
            nodes.append(ExpressionNode("unknown", (), node.shape, node.shape))
            places = list(node.params)
            for box in boxes:
                shape = tuple(end - start for start, end in box)
                pieces.append(len(nodes))
                nodes.append(ExpressionNode("view", (base,), (shape, (0,) * len(shape), 0), shape))
                strides = strides_of(node.shape)
                places.append(
                    (strides, sum(start * step for (start, _), step in zip(box, strides, strict=True)))
                )
            own = replace(own, args=(unknown, *pieces), params=tuple(places))
        numbers.append(len(nodes))
        nodes.append(own)
    outputs = [numbers[at] for at in expression.outputs]
    return replace(expression, nodes=nodes, outputs=outputs)


def _find_assembled(expression: ArrayExpression, known: KnownArrays) -> set[int]:
    """The operations that put outputs together, or parts of them, and that nothing else uses."""
    nodes, found, todo = expression.nodes, set[int](), [*expression.outputs]
    while todo:
        at = todo.pop()
        if nodes[at].kind == "assemble" and at not in found and not known.is_known(at):
            found.add(at)
            todo += nodes[at].args[1:]
    used = {arg for at, node in enumerate(nodes) if at not in found for arg in node.args}
    return found - used


def _find_border(expression: ArrayExpression, known: KnownArrays, node: ExpressionNode) -> list[_Box]:
    """The boxes of an assembled array that no part covers; none if they are many, or not of one number."""
    base, *pieces = node.args
    if not known.is_known(base):
        return []
    left: list[_Box] = [tuple((0, size) for size in node.shape)]
    for piece, (strides, offset) in zip(pieces, node.params, strict=True):
        taken = _box_of(node.shape, expression.nodes[piece].shape, strides, offset=offset)
        if taken is None:
            return []
        left = [rest for box in left for rest in _subtract(box, taken)]
        if len(left) > _MOST_BOXES:
            return []
    numbers = known.array(base)
    is_one = bool(np.all(numbers == numbers.flat[0]))
    return left if is_one else []


def _box_of(whole: Shape, shape: Shape, strides: Shape, *, offset: int) -> _Box | None:
    """The box that a part takes; None if its elements do not lie side by side."""
    placed = align_view(whole, shape, strides, offset)
    if placed is None or any(step != 1 for _, step in placed.axes.values()):
        return None
    sizes = [shape[placed.axes[axis][0]] if axis in placed.axes else 1 for axis in range(len(whole))]
    return tuple((start, start + size) for start, size in zip(placed.starts, sizes, strict=True))


def _subtract(box: _Box, taken: _Box) -> Iterator[_Box]:
    """What is left of a box, in boxes."""
    if any(end <= first or last <= start for (start, end), (first, last) in zip(box, taken, strict=True)):
        yield box
        return
    inside = list(box)
    for axis, (first, last) in enumerate(taken):
        start, end = inside[axis]
        for part in ((start, first), (last, end)):
            if part[0] < part[1]:
                yield _with_axis(inside, axis, part)
        inside[axis] = (max(start, first), min(end, last))


def _with_axis(box: Sequence[tuple[int, int]], axis: int, part: tuple[int, int]) -> _Box:
    return (*box[:axis], part, *box[axis + 1 :])
