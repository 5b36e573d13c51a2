"""The protocol of value domains: the operations that evaluating a program or a reference needs.

A value is `Planes`: one array for each component of its numbers, all of one shape. Moving data (slicing,
transposing, gathering) is the same for every domain: the same NumPy operation on each plane. Functions have
NumPy's names where NumPy has them; the others are in `functions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Planes:
    """An array of a domain's numbers: its components, which have one shape and are never written to."""

    arrays: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays[0].shape

    def move(self, movement: Callable[[Array], Array]) -> Planes:
        """Apply one movement of data to each component."""
        return Planes(tuple(movement(array) for array in self.arrays))

    def join(self, others: Sequence[Planes], movement: Callable[[Sequence[Array]], Array]) -> Planes:
        """Apply a movement that takes several arrays, such as a concatenation, to each component."""
        parts = zip(self.arrays, *(other.arrays for other in others), strict=True)
        return Planes(tuple(movement(arrays) for arrays in parts))


class ValueDomain(Protocol):
    """Operations on `Planes`. A domain treats a name that it does not know as an opaque function."""

    def constant(self, array: Array) -> Planes:
        """Return known real numbers (or integers, or booleans)."""

    def input_symbols(self, number: int, index: Array) -> Planes:
        """Return elements of an input, by its position and the elements' numbers in row-major order."""

    def unknown_values(self, shape: Sequence[int]) -> Planes:
        """Return unknown numbers; no two are the same."""

    def known_values(self, value: Planes) -> Array:
        """Return the real numbers [same shape, float64] of values made of constants only, NaN elsewhere."""

    def apply_unary(self, name: str, value: Planes) -> Planes:
        """Apply a function of one argument to each element."""

    def apply_binary(self, name: str, left: Planes, right: Planes) -> Planes:
        """Apply a function of two arguments to each pair, shapes broadcast; comparisons give booleans."""

    def reduce(self, name: str, value: Planes, axes: Sequence[int]) -> Planes:
        """Return `add`, `multiply`, `maximum` or `minimum` over axes, which stay with size one."""

    def matmul(self, left: Planes, right: Planes) -> Planes:
        """Return matrix products, the leading axes broadcast."""

    def select(self, mask: Planes, left: Planes, right: Planes) -> Planes:
        """Return left where the condition is true, else right; shapes broadcast."""
