"""Running sums: products with a triangle of ones, which VectorE makes as recurrences.

A formula has a running sum as a product with a triangular matrix of ones. The tensor engine needs transposed
blocks and the square of the length in multiplications for it; a recurrence along the free dimension takes a
cycle for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from remote.judge.identity.expression import ArrayExpression, ExpressionNode, strides_of
from targets.nki.translation.known import KnownArrays
from targets.nki.translation.values import Array


def find_running_sums(expression: ArrayExpression) -> list[int]:
    """The operations that are products with an upper triangle of ones: sums along the last axis."""
    known = KnownArrays(expression)
    return [
        number
        for number, node in enumerate(expression.nodes)
        if node.kind == "matmul"
        and not known.is_known(node.args[0])
        and known.is_known(node.args[1])
        and _is_triangle(known.array(node.args[1]))
    ]


def _is_triangle(matrix: Array) -> bool:
    size = matrix.shape[-1]
    plain = matrix.shape[-2] == size and prod(matrix.shape) == size * size and size > 1
    return plain and bool(np.array_equal(matrix.reshape(size, size), np.triu(np.ones((size, size)))))


def scan_sums(expression: ArrayExpression, sums: Sequence[int]) -> ArrayExpression:
    """Return an expression in which these running sums are recurrences: state = 1 * state + element."""
    numbers: list[int] = []
    nodes: list[ExpressionNode] = []
    arrays = [*expression.arrays]
    for number, node in enumerate(expression.nodes):
        own = replace(node, args=tuple(numbers[at] for at in node.args))
        if number in sums:
            _add_scan(nodes, arrays, own)
        else:
            nodes.append(own)
        numbers.append(len(nodes) - 1)
    outputs = [numbers[at] for at in expression.outputs]
    return replace(expression, nodes=nodes, arrays=arrays, outputs=outputs)


def _add_scan(nodes: list[ExpressionNode], arrays: list[Array], node: ExpressionNode) -> None:
    """Add the operations that make a running sum; the last one has the product's shape."""
    *around, size = node.shape
    steps = (size, *around)
    source = nodes[node.args[0]]
    strides = strides_of(source.shape)
    # The product may repeat a source with fewer axes.
    missing = len(node.shape) - len(source.shape)
    spread = [0] * missing + [
        stride if count > 1 else 0 for stride, count in zip(strides, source.shape, strict=True)
    ]
    nodes.append(ExpressionNode("view", node.args[:1], (steps, (spread[-1], *spread[:-1]), 0), steps))
    terms = len(nodes) - 1
    factors, initial = np.ones((1,) * len(steps)), np.zeros(steps[1:])
    for array in (factors, initial):
        nodes.append(ExpressionNode("constant", (), (len(arrays),), array.shape))
        arrays.append(array)
    nodes.append(ExpressionNode("recurrence", (terms + 1, terms, terms + 2), (size,), steps))
    along, *others = strides_of(steps)
    nodes.append(ExpressionNode("view", (len(nodes) - 1,), (node.shape, (*others, along), 0), node.shape))
