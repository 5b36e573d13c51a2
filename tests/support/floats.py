"""The domain of plain float64 numbers: a program or an expression gives what NumPy gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from remote.judge.identity.domain import Array, Planes
from remote.judge.identity.functions import Composed, of_known


class Floats(Composed):
    """Planes: the number, whether it comes from constants alone. `inputs` are what symbols stand for."""

    def __init__(self, inputs: Sequence[Array]) -> None:
        self._inputs = [np.asarray(array, np.float64).reshape(-1) for array in inputs]

    def constant(self, array: Array) -> Planes:
        return _known(np.asarray(array, np.float64), known=True)

    def symbols(self, number: int, index: Array) -> Planes:
        return _known(self._inputs[number][index], known=False)

    def unknown(self, shape: Sequence[int]) -> Planes:
        return _known(np.full(shape, np.nan), known=False)

    def known(self, value: Planes) -> Array:
        return np.where(value.arrays[1], value.arrays[0], np.nan)

    def simple_unary(self, name: str, value: Planes) -> Planes:
        return self._of(name, value)

    def simple_binary(self, name: str, left: Planes, right: Planes) -> Planes:
        return self._of(name, left, right)

    def reduce(self, name: str, value: Planes, axes: Sequence[int]) -> Planes:
        numbers, known = value.arrays
        return Planes((
            getattr(np, name).reduce(numbers, axis=tuple(axes), keepdims=True),
            known.all(axis=tuple(axes), keepdims=True),
        ))  # fmt: skip

    def matmul(self, left: Planes, right: Planes) -> Planes:
        product = np.matmul(left.arrays[0], right.arrays[0])
        known = left.arrays[1].all() and right.arrays[1].all()
        return _known(product, known=bool(known))

    def select(self, mask: Planes, left: Planes, right: Planes) -> Planes:
        truth = mask.arrays[0] != 0
        return left.join([right], lambda pair: np.where(truth, *pair))

    def _of(self, name: str, *values: Planes) -> Planes:
        numbers = [value.arrays[0] for value in values]
        with np.errstate(all="ignore"):
            found = of_known(name, *numbers)
            found = np.asarray(getattr(np, name)(*numbers), np.float64) if found is None else found
        known = np.logical_and.reduce(np.broadcast_arrays(*(value.arrays[1] for value in values)))
        return Planes((found, np.broadcast_to(known, found.shape)))


def _known(array: Array, *, known: bool) -> Planes:
    return Planes((array, np.broadcast_to(np.bool_(known), array.shape)))
