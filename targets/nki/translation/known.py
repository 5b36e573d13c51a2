"""Evaluates the operations of an expression that depend on no input."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from remote.judge.identity.expression import ArrayExpression, ExpressionNode
from targets.nki.translation.values import Array

_LIMIT = 1 << 24
"""Elements of the largest known array that is kept."""

_REDUCTIONS = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}


class KnownArrays:
    """The operations whose results are known numbers, as flat arrays, evaluated when first asked for."""

    def __init__(self, expression: ArrayExpression) -> None:
        self.expression = expression
        self._is_known: list[bool] = []
        for node in expression.nodes:
            varies = node.kind in {"input", "unknown"} or np.prod(node.shape, dtype=float) > _LIMIT
            self._is_known.append(not varies and all(self._is_known[at] for at in node.args))
        self._arrays: dict[int, Array] = {}

    def is_known(self, number: int) -> bool:
        """Whether an operation depends on no input."""
        return self._is_known[number]

    def array(self, number: int) -> Array:
        """The numbers of a known operation, in its shape."""
        if number not in self._arrays:
            node = self.expression.nodes[number]
            self._arrays[number] = self._evaluate(node, [self.array(at) for at in node.args])
        return self._arrays[number]

    def _evaluate(self, node: ExpressionNode, args: list[Array]) -> Array:
        with np.errstate(all="ignore"):
            match node.kind:
                case "constant":
                    return np.asarray(self.expression.arrays[node.params[0]], np.float64)
                case "view":
                    return view_elements(args[0], *node.params)
                case "unary":
                    return np.asarray(getattr(np, node.params[0])(args[0]), np.float64)
                case "binary":
                    return np.asarray(getattr(np, node.params[0])(*args), np.float64)
                case "select":
                    return np.where(args[0] != 0, args[1], args[2])
                case "reduce":
                    name, *axes = node.params
                    found = _REDUCTIONS[name].reduce(args[0], axis=tuple(axes), keepdims=True)
                    return np.asarray(found, np.float64)
                case "matmul":
                    return np.asarray(np.matmul(*args), np.float64)
                case "take":
                    places = self.expression.arrays[node.params[0]].astype(np.int64)
                    return np.asarray(np.take(args[0], places, axis=node.params[1]), np.float64)
                case "assemble":
                    return assemble_pieces(args, node.params)
                case "recurrence":
                    return _recur(args, node.shape)
        raise AssertionError(node.kind)


def view_elements(source: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    """The elements of a view, in an array of their own; strides and offset count elements."""
    flat = np.ascontiguousarray(source).reshape(-1)[offset:]
    return as_strided(flat, shape, [step * flat.itemsize for step in strides]).copy()


def assemble_pieces(args: list[Array], places: tuple[tuple[tuple[int, ...], int], ...]) -> Array:
    """The first array with the others put in, each at the strides and the offset of its place."""
    flat = args[0].copy().reshape(-1)
    for piece, (strides, offset) in zip(args[1:], places, strict=True):
        as_strided(flat[offset:], piece.shape, [step * flat.itemsize for step in strides])[...] = piece
    return flat.reshape(args[0].shape)


def _recur(args: list[Array], shape: tuple[int, ...]) -> Array:
    factors, terms = (np.broadcast_to(item, shape) for item in args[:2])
    state, found = args[2], []
    for factor, term in zip(factors, terms, strict=True):
        state = factor * state + term
        found.append(state)
    return np.stack(found)
