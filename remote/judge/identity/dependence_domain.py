"""Domain of sets of input elements: tracks what an output depends on through every operation.

Up to 64 input elements are marked, one bit each, and operations unite the sets of their operands. Under the
policy `must` (reference) a set may be too small; under `may` (program) it may be too large. A program is
wrong if the reference must depend on an element that the program cannot depend on. Neither policy sees that
terms cancel, such as the shift of a softmax, so callers confirm a rejection first (`dependence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from remote.judge.identity.bit_sets import union_of_products, union_over_axes
from remote.judge.identity.domain import Array, Planes
from remote.judge.identity.functions import ComposedDomain, apply_to_known

MAX_MARKED = 64
"""Number of elements that can be marked at a time."""

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_NONE = np.uint64(0)
_INFINITE = 1e30
_ABSORBING_SIZE = {"must": 1e6, "may": _INFINITE}
"""A number added to a constant this large is lost in float32 (`must`), or may be (`may`)."""
_FALSE = np.zeros((), bool)

DependencePolicy = Literal["must", "may"]


class DependenceDomain(ComposedDomain):
    """Planes: the set of marked elements, and the real number where it is known.

    `marked` are (input, element) pairs; the position of a pair is its bit.
    """

    def __init__(self, marked: Sequence[tuple[int, int]], policy: DependencePolicy) -> None:
        if len(marked) > MAX_MARKED:
            raise ValueError(f"{len(marked)} elements are marked, at most {MAX_MARKED} can be")
        self._must, self._hides = policy == "must", _ABSORBING_SIZE[policy]
        self._of_input: dict[int, tuple[Array, Array]] = {}
        for number in {number for number, _ in marked}:
            own = sorted((element, bit) for bit, (at, element) in enumerate(marked) if at == number)
            elements = np.array([element for element, _ in own], np.int64)
            self._of_input[number] = elements, np.left_shift(1, np.array([bit for _, bit in own], np.uint64))

    def dependence_sets(self, value: Planes) -> NDArray[np.uint64]:
        """Return the sets of marked elements that each element depends on."""
        return value.arrays[0]

    def constant(self, array: Array) -> Planes:
        """Return known real numbers, which depend on nothing."""
        real = np.asarray(array, np.float64)
        return Planes((np.broadcast_to(_NONE, real.shape), real))

    def input_symbols(self, number: int, index: Array) -> Planes:
        """Return elements of an input."""
        index = np.asarray(index)
        if number not in self._of_input:
            return _symbolic_planes(np.broadcast_to(_NONE, index.shape))
        elements, bits = self._of_input[number]
        at = np.minimum(np.searchsorted(elements, index), elements.size - 1)
        return _symbolic_planes(np.where(elements[at] == index, bits[at], _NONE))

    def unknown_values(self, shape: Sequence[int]) -> Planes:
        """Return unknown numbers: they must depend on nothing and may depend on everything."""
        return _symbolic_planes(np.broadcast_to(_NONE if self._must else _ALL, tuple(shape)))

    def known_values(self, value: Planes) -> Array:
        """Return the real numbers of values made of constants only, NaN elsewhere."""
        return value.arrays[1]

    def simple_unary(self, name: str, value: Planes) -> Planes:
        """Apply a function that is not composed of others."""
        sets, real = value.arrays
        return Planes((sets, _apply_to_reals(name, real)))

    def simple_binary(self, name: str, left: Planes, right: Planes) -> Planes:
        """Apply a function that is not composed of others."""
        if name == "subtract":
            name, right = "add", Planes((right.arrays[0], -right.arrays[1]))
        reals = left.arrays[1], right.arrays[1]
        sets, real = left.arrays[0] | right.arrays[0], _apply_to_reals(name, *reals)
        decided = _FALSE
        for own, other in (reals, reals[::-1]):
            alone = self._decides_result(name, own) if name != "divide" or own is reals[0] else _FALSE
            real = np.where(alone & np.isnan(other), own, real)
            decided = decided | alone
        return Planes((np.where(decided, _NONE, sets), real))

    def reduce(self, name: str, value: Planes, axes: Sequence[int]) -> Planes:
        """Return `add`, `multiply`, `maximum` or `minimum` over axes, which stay with size one."""
        sets, real = value.arrays
        axes = tuple(axes)
        if name in {"maximum", "minimum"}:
            sets = np.where(union_over_axes(self._decides_result(name, real), axes), _NONE, sets)
        with np.errstate(all="ignore"):
            total = getattr(np, name).reduce(real, axis=axes, keepdims=True)
        return Planes((union_over_axes(sets, axes), np.asarray(total)))

    def matmul(self, left: Planes, right: Planes) -> Planes:
        """Return matrix products, the leading axes broadcast."""
        sets = union_of_products(left.arrays[0], right.arrays[0], left.arrays[1] == 0, right.arrays[1] == 0)
        if np.isnan(left.arrays[1]).all() or np.isnan(right.arrays[1]).all():
            return _symbolic_planes(sets)
        with np.errstate(all="ignore"):
            return Planes((sets, np.matmul(left.arrays[1], right.arrays[1])))

    def select(self, mask: Planes, left: Planes, right: Planes) -> Planes:
        """Return left where the condition is true, else right; both where it is not known."""
        truth = mask.arrays[1]
        chosen = _choose_planes(truth != 0, left, right)
        if not np.isnan(truth).any():
            return chosen
        sets = left.arrays[0] & right.arrays[0] if self._must else left.arrays[0] | right.arrays[0]
        either_one = _symbolic_planes(
            np.broadcast_to(sets | (_NONE if self._must else mask.arrays[0]), chosen.shape)
        )
        return _choose_planes(np.isnan(truth), either_one, chosen)

    def _decides_result(self, name: str, real: Array) -> Array:
        """Where one operand alone decides the result."""
        if name in {"multiply", "divide"}:
            return np.asarray(real == 0)
        if name == "add":
            return np.asarray(np.abs(real) >= self._hides)
        if name in {"maximum", "minimum"}:
            return np.asarray((real if name == "maximum" else -real) >= _INFINITE)
        return _FALSE


def _symbolic_planes(sets: Array) -> Planes:
    return Planes((sets, np.broadcast_to(np.nan, sets.shape)))


def _apply_to_reals(name: str, *values: Array) -> Array:
    """The function's values for known numbers, NaN elsewhere."""
    shape = np.broadcast_shapes(*(value.shape for value in values))
    if any(np.isnan(value).all() for value in values):
        return np.broadcast_to(np.nan, shape)
    found = apply_to_known(name, *values)
    if found is None and hasattr(np, name):
        missing = np.isnan(np.add.reduce(np.broadcast_arrays(*values)))
        with np.errstate(all="ignore"):
            found = np.where(missing, np.nan, getattr(np, name)(*values))
    return np.broadcast_to(np.nan, shape) if found is None else found


def _choose_planes(condition: Array, left: Planes, right: Planes) -> Planes:
    if not condition.any():
        return right.move(lambda array: np.broadcast_to(array, np.broadcast_shapes(array.shape, left.shape)))
    return left.join([right], lambda pair: np.where(condition, *pair))
