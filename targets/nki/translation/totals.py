"""Reductions in two steps: each row by itself, and then the rows' results, which go through HBM.

A loop nest without loops of its own has one tile for everything that it reads. So what a number is reduced
from goes through HBM first, with rows on the partitions, unless it is short. The same holds for a reduction
over loops around and inside those of its result, such as a group of channels that are the last axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from remote.judge.identity.expression import ArrayExpression, ExpressionNode

_SHORT = 1 << 14
"""Elements up to which a number is reduced at once."""


def split_totals(expression: ArrayExpression, *, is_whole: bool = False) -> ArrayExpression:
    """Return an expression in which such reductions of long arrays go row by row first.

    If `is_whole`, only those to one number do.
    """
    numbers: list[int] = []
    nodes: list[ExpressionNode] = []
    for node in expression.nodes:
        own = replace(node, args=tuple(numbers[at] for at in node.args))
        if not is_whole and _is_long_total(nodes, own):
            name, *axes = own.params
            source = nodes[own.args[0]].shape
            last = max(axis for axis in axes if source[axis] > 1)
            shape = tuple(1 if axis == last else size for axis, size in enumerate(source))
            nodes.append(ExpressionNode("reduce", own.args, (name, last), shape))
            rest = tuple(axis for axis in axes if axis != last)
            own = replace(own, args=(len(nodes) - 1,), params=(name, *rest))
        numbers.append(len(nodes))
        nodes.append(own)
    outputs = [numbers[at] for at in expression.outputs]
    return replace(expression, nodes=nodes, outputs=outputs)


def _is_long_total(nodes: Sequence[ExpressionNode], node: ExpressionNode) -> bool:
    """Whether a node reduces a long array of several axes to one number, or around and inside of others."""
    if node.kind != "reduce":
        return False
    source = nodes[node.args[0]].shape
    axes = [axis for axis in node.params[1:] if source[axis] > 1]
    if prod(source) <= _SHORT or len(axes) < 2:
        return False
    if prod(node.shape) == 1:
        return True
    between = prod(source[axis] for axis in range(min(axes), len(source)) if axis not in axes)
    is_split = any(source[axis] > 1 for axis in range(min(axes), max(axes)) if axis not in axes)
    is_inner = all(source[axis] == 1 for axis in range(max(axes) + 1, len(source)))
    return is_split and is_inner and between * prod(source[axis] for axis in axes) > _SHORT


def find_parts_of_sums(expression: ArrayExpression) -> set[int]:
    """The row results of which all that follows is their sum: a number."""
    found = {*find_row_results(expression)} - {*expression.outputs}
    for node in expression.nodes:
        is_sum = node.kind == "reduce" and node.params[0] == "add" and prod(node.shape) == 1
        found -= set() if is_sum else {*node.args}
    return found


def find_row_results(expression: ArrayExpression) -> list[int]:
    """The operations whose results numbers are reduced from, if these are made of something longer."""
    nodes, found = expression.nodes, list[int]()
    longest: list[int] = []
    for node in nodes:
        longest.append(max([prod(node.shape), *(longest[at] for at in node.args)]))
        if node.kind == "reduce":
            (source,) = node.args
            is_second = nodes[source].kind == "reduce" and nodes[source].params[0] == node.params[0]
            is_total = prod(node.shape) == 1 or is_second
            length = prod(nodes[source].shape)
            if is_total and length > 1 and longest[source] > max(_SHORT, length):
                found.append(source)
    return found
