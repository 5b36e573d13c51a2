"""Arithmetic of a prime field on whole arrays: uint64 residues below a prime of at most 31 bits.

NumPy vectorises quotients by a fixed divisor but not remainders, so remainders are computed from quotients.
Matrix products split residues into halves of 16 bits and add up exactly in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

ResidueArray = NDArray[np.uint64]

_HALF = np.uint64(16)
_LOW = np.uint64(0xFFFF)
_MAX_TERMS = 1 << 18  # number of products below 2^34 whose sum float64 holds exactly, with room to spare
_WINDOW = 4  # exponent bits processed at a time


class PrimeField:
    """The integers modulo `prime`, which is 3 modulo 4, so a square's root is one of its powers."""

    def __init__(self, prime: int) -> None:
        if prime % 4 != 3 or prime >= 1 << 31:
            raise ValueError(f"{prime} is not a prime below 2^31 that is 3 modulo 4")
        self.order = prime
        self._prime = np.uint64(prime)

    def remainder(self, values: NDArray[Any]) -> ResidueArray:
        """Return any uint64 values as residues."""
        quotient = values // self._prime
        quotient *= self._prime
        found: ResidueArray = values - quotient
        return found

    def add(self, left: ResidueArray, right: ResidueArray | np.uint64) -> ResidueArray:
        total = left + right
        # Below the prime the difference wraps round to something large.
        found: ResidueArray = np.minimum(total, total - self._prime)
        return found

    def subtract(self, left: ResidueArray | np.uint64, right: ResidueArray) -> ResidueArray:
        return self.add(self._prime - right, left)

    def multiply(self, left: ResidueArray, right: ResidueArray | np.uint64) -> ResidueArray:
        return self.remainder(left * right)

    def power(self, base: ResidueArray, exponent: int) -> ResidueArray:
        """Return base ** exponent, for an exponent that is not negative."""
        if exponent < 0:
            raise ValueError(f"the exponent {exponent} is negative")
        powers = [np.ones_like(base), base]
        while len(powers) < 1 << _WINDOW:
            powers.append(self.multiply(powers[-1], base))
        found = powers[0]
        for digit in np.base_repr(exponent, 1 << _WINDOW):
            for _ in range(_WINDOW if found is not powers[0] else 0):
                found = self.multiply(found, found)
            if digit != "0":
                found = self.multiply(found, powers[int(digit, 1 << _WINDOW)])
        return found

    def inverse(self, values: ResidueArray) -> ResidueArray:
        """Return reciprocals, zero for zero; one inversion serves all, through a tree of products."""
        flat = np.where(values == 0, np.uint64(1), values).reshape(-1)
        levels = [flat]
        while levels[-1].size > 1:
            last = levels[-1]
            if last.size % 2:
                last = levels[-1] = np.append(last, np.uint64(1))
            levels.append(self.multiply(last[::2], last[1::2]))
        found = np.array([pow(int(item), -1, self.order) for item in levels.pop()], np.uint64)
        for level in reversed(levels):
            below = np.empty_like(level)
            found = found[: level.size // 2]  # drop the element that padded the level above
            below[::2] = self.multiply(found, level[1::2])
            below[1::2] = self.multiply(found, level[::2])
            found = below
        found = found[: values.size].reshape(values.shape)
        return np.where(values == 0, np.uint64(0), found)

    def square_root(self, values: ResidueArray) -> ResidueArray:
        """Return the root that is itself a square; for a non-square, the root of its negative."""
        return self.power(values, (self.order + 1) // 4)

    def is_square(self, values: ResidueArray, root: ResidueArray) -> NDArray[np.bool_]:
        """Whether values with this `square_root` are squares; zero is one."""
        same: NDArray[np.bool_] = self.multiply(root, root) == values
        return same

    def sum(self, values: ResidueArray, axes: Sequence[int]) -> ResidueArray:
        """Add up over axes, which stay with size one."""
        return self.remainder(np.asarray(values.sum(axis=tuple(axes), keepdims=True, dtype=np.uint64)))

    def product(self, values: ResidueArray, axes: Sequence[int]) -> ResidueArray:
        """Multiply over axes, which stay with size one."""
        return reduce(self._multiply_axis, axes, values)

    def _multiply_axis(self, values: ResidueArray, axis: int) -> ResidueArray:
        found = np.moveaxis(values, axis, 0)
        while len(found) > 1:
            odd = found[len(found) & ~1 :]
            found = np.concatenate([self.multiply(found[: len(found) & ~1 : 2], found[1::2]), odd])
        if not len(found):
            found = np.ones((1, *found.shape[1:]), np.uint64)
        return np.moveaxis(found, 0, axis)

    def matmul(self, left: ResidueArray, right: ResidueArray) -> ResidueArray:
        """Return matrix products, the leading axes broadcast."""
        parts = [
            self._multiply_halves(
                left[..., start : start + _MAX_TERMS], right[..., start : start + _MAX_TERMS, :]
            )
            for start in range(0, left.shape[-1], _MAX_TERMS)
        ]
        return reduce(self.add, parts)

    def _multiply_halves(self, left: ResidueArray, right: ResidueArray) -> ResidueArray:
        left_high, left_low = (left >> _HALF).astype(np.float64), (left & _LOW).astype(np.float64)
        right_high, right_low = (right >> _HALF).astype(np.float64), (right & _LOW).astype(np.float64)
        high, low = np.matmul(left_high, right_high), np.matmul(left_low, right_low)
        # Karatsuba: three matrix products give all four products of the halves.
        middle = np.matmul(left_high + left_low, right_high + right_low) - high - low
        found = self._shift_half(high.astype(np.uint64)) + middle.astype(np.uint64)
        return self.remainder(self._shift_half(found) + low.astype(np.uint64))

    def _shift_half(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return self.remainder(values) << _HALF

    def fraction_residue(self, value: Fraction) -> int:
        """Return the residue of a fraction whose denominator the prime does not divide."""
        return value.numerator * pow(value.denominator, -1, self.order) % self.order
