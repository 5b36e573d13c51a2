"""Counts the least work of a formula: products, functions, and elements that an engine has to compute."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from remote.judge.identity.expression import ArrayExpression, ExpressionNode
from targets.nki.translation.known import KnownArrays, assemble_pieces, view_elements
from targets.nki.translation.running_sums import find_running_sums
from targets.nki.translation.simplify import ACTIVATIONS
from targets.nki.translation.values import Array

_MAX_MOVED = 1 << 26
"""Most elements of moved arrays that are followed, together; beyond, all elements may be copies."""


def count_work(expression: ArrayExpression) -> dict[str, int]:
    """Return the counts of a problem's `[work]`, by key.

    Products that a constant mask follows are not counted: a kernel may skip what the mask hides. Running
    sums need no product.
    """
    numbers = list(_needed(expression))
    needed = [expression.nodes[number] for number in numbers]
    sums = find_running_sums(expression)
    masked = any(expression.nodes[node.args[0]].shape for node in needed if node.kind == "select")
    products = [expression.nodes[number] for number in numbers if number not in sums]
    flops = 0 if masked else sum(_product_flops(expression, node) for node in products)
    counted = [node for node in needed if node.kind in {"unary", "binary", "reduce"}]
    functions = [node for node in counted if node.kind == "unary" and node.params[0] in ACTIVATIONS]
    return {
        "matmul_flops": flops,
        "other_flops": sum(prod(node.shape) for node in counted),
        "activation_elements": max((prod(node.shape) for node in functions), default=0),
        "elementwise_elements": count_computed(expression),
    }


def _product_flops(expression: ArrayExpression, node: ExpressionNode) -> int:
    if node.kind != "matmul":
        return 0
    return 2 * prod(node.shape) * expression.nodes[node.args[0]].shape[-1]


def _needed(expression: ArrayExpression) -> Iterator[int]:
    seen: set[int] = set()
    todo = [*expression.outputs]
    while todo:
        number = todo.pop()
        if number not in seen:
            seen.add(number)
            todo += expression.nodes[number].args
            yield number


def count_computed(expression: ArrayExpression) -> int:
    """Return how many different elements of the outputs are neither an input's nor known numbers.

    Each of them is the result of some instruction, also if its formula is a product, because results of
    products leave PSUM through an engine. The other elements may be copied from HBM to HBM. An element that
    an output holds several times, as after a broadcast, counts once.
    """
    origins = _Origins(expression)
    if origins.moved > _MAX_MOVED:
        return 0
    found = [np.unique(origins.follow(number)) for number in dict.fromkeys(expression.outputs)]
    return int(np.count_nonzero(np.unique(np.concatenate(found)))) if found else 0


class _Origins:
    """Follows elements back through operations that only move them.

    Every element that an operation computes has a number of its own, above 0. Elements of inputs and of known
    arrays are 0.
    """

    def __init__(self, expression: ArrayExpression) -> None:
        self._expression = expression
        self._known = KnownArrays(expression)
        self._moving = self._find_moving()
        self._numbers: dict[int, Array] = {}
        self._next = 1
        self.moved = sum(prod(expression.nodes[number].shape) for number in self._moving)

    def follow(self, output: int) -> Array:
        """The numbers of an output's elements."""
        for number in self._moving:
            if number not in self._numbers:
                self._numbers[number] = self._move(number)
        return self._number(output)

    def _find_moving(self) -> list[int]:
        """The operations that move elements on to an output, arguments first."""
        seen: set[int] = set()
        todo = [*self._expression.outputs]
        while todo:
            number = todo.pop()
            if number not in seen and self._moves(number):
                seen.add(number)
                todo += self._expression.nodes[number].args
        return sorted(seen)

    def _moves(self, number: int) -> bool:
        node = self._expression.nodes[number]
        if self._known.is_known(number):
            return False
        is_masked = node.kind == "select" and self._known.is_known(node.args[0])
        return node.kind in {"view", "take", "assemble"} or is_masked

    def _number(self, number: int) -> Array:
        if number not in self._numbers:
            self._numbers[number] = self._begin(number)
        return self._numbers[number]

    def _begin(self, number: int) -> Array:
        """Numbers for the elements of an operation that does not move others."""
        node = self._expression.nodes[number]
        if self._known.is_known(number) or node.kind in {"input", "unknown"}:
            return np.zeros(node.shape)
        first, self._next = self._next, self._next + prod(node.shape)
        return np.arange(first, self._next, dtype=np.float64).reshape(node.shape)

    def _move(self, number: int) -> Array:
        node = self._expression.nodes[number]
        if node.kind == "select":
            mask, left, right = node.args
            return np.where(self._known.array(mask) != 0, self._number(left), self._number(right))
        args = [self._number(arg) for arg in node.args]
        if node.kind == "view":
            return view_elements(args[0], *node.params)
        if node.kind == "take":
            places = self._expression.arrays[node.params[0]].astype(np.int64)
            return np.asarray(np.take(args[0], places, axis=node.params[1]))
        return assemble_pieces(args, node.params)
