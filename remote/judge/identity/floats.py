"""Domain of float64 numbers: how far two formulas are apart where rounding hardly matters.

Formulas that differ over the residues must also differ here, by more than rounding constants to float32
explains; otherwise they may still mean the same. Inputs are hashes of a secret and the element's number, so
no input array is ever drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from remote.judge.identity.domain import Array, Planes
from remote.judge.identity.functions import COMPARISONS, ComposedDomain, apply_to_known
from remote.judge.identity.hashing import derive_secret, mix_bits
from seeds.inputs import fit_distribution
from seeds.spec import InputSpec

_UINT32_UNIT = 2.0**-32
_MOVE_DISTANCE = 16.0  # far outside the range of the draws, so that a maximum moves too

_UNARY: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "negative": np.negative,
    "reciprocal": np.reciprocal,
    "sqrt": np.sqrt,
}
_BINARY: dict[str, Any] = {
    name: getattr(np, name)
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", *COMPARISONS)
}


class FloatDomain(ComposedDomain):
    """Planes: the number in float64. Functions without rules give NaN.

    Inputs have the distribution that a problem's `inputs` specify, moved by `offset` of their units and times
    `scale`. `moved` is an (input, element) that is shifted by several of its input's units.
    """

    def __init__(
        self,
        seed: bytes,
        inputs: Sequence[InputSpec],
        scale: float = 1.0,
        moved: tuple[int, int] | None = None,
        *,
        offset: float = 0.0,
    ) -> None:
        self._seed = seed
        self._inputs = inputs
        self._scale = scale
        self._moved = moved
        self._offset = offset

    def constant(self, array: Array) -> Planes:
        """Return known real numbers."""
        return Planes((np.asarray(array, np.float64),))

    def input_symbols(self, number: int, index: Array) -> Planes:
        """Return elements of an input."""
        item = self._inputs[number]
        values = self._normal_numbers(number, index) + self._offset
        if self._moved is not None and self._moved[0] == number:
            values = values + _MOVE_DISTANCE * (np.asarray(index) == self._moved[1])
        values = fit_distribution(item, values) * (self._scale * item.scale)
        return Planes((np.rint(values) if item.dtype == "int32" else values,))

    def unknown_values(self, shape: Sequence[int]) -> Planes:
        """Return unknown numbers."""
        return Planes((np.full(tuple(shape), np.nan),))

    def known_values(self, value: Planes) -> Array:
        """Return all numbers: they are known here."""
        return value.arrays[0]

    def simple_unary(self, name: str, value: Planes) -> Planes:
        """Apply a function that is not composed of others."""
        return self._apply_function(name, _UNARY.get(name), value)

    def simple_binary(self, name: str, left: Planes, right: Planes) -> Planes:
        """Apply a function that is not composed of others."""
        return self._apply_function(name, _BINARY.get(name), left, right)

    def reduce(self, name: str, value: Planes, axes: Sequence[int]) -> Planes:
        """Return a reduction over axes, which stay with size one."""
        return Planes((_BINARY[name].reduce(value.arrays[0], axis=tuple(axes), keepdims=True),))

    def matmul(self, left: Planes, right: Planes) -> Planes:
        """Return matrix products, the leading axes broadcast."""
        return Planes((np.matmul(left.arrays[0], right.arrays[0]),))

    def select(self, mask: Planes, left: Planes, right: Planes) -> Planes:
        """Return left where the condition is true, else right."""
        return Planes((np.where(mask.arrays[0] != 0, left.arrays[0], right.arrays[0]),))

    def _apply_function(self, name: str, function: Callable[..., Array] | None, *values: Planes) -> Planes:
        arrays = [value.arrays[0] for value in values]
        with np.errstate(all="ignore"):
            found = apply_to_known(name, *arrays) if function is None else function(*arrays)
        if found is None:
            return self.unknown_values(np.broadcast_shapes(*(array.shape for array in arrays)))
        return Planes((np.asarray(found, np.float64),))

    def _normal_numbers(self, number: int, index: Array) -> Array:
        """Standard normal numbers of the elements, by the Box-Muller method."""
        start = np.uint64(derive_secret(self._seed, f"input {number}"))
        drawn = mix_bits(np.asarray(index).astype(np.uint64) + start)
        angle, radius = (
            (drawn & np.uint64(0xFFFFFFFF)) * _UINT32_UNIT,
            (drawn >> np.uint64(32)) * _UINT32_UNIT,
        )
        found: Array = np.sqrt(-2.0 * np.log(radius + _UINT32_UNIT / 2)) * np.cos(2.0 * np.pi * angle)
        return found


class TrackingFloatDomain(FloatDomain):
    """Records which input elements were requested, in `requested_elements`: flat arrays by input."""

    @cached_property
    def requested_elements(self) -> dict[int, list[Array]]:
        return {}

    def input_symbols(self, number: int, index: Array) -> Planes:
        """Return elements of an input."""
        self.requested_elements.setdefault(number, []).append(np.asarray(index).reshape(-1))
        return super().input_symbols(number, index)
