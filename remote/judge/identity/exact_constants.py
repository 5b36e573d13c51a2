"""Recognises the exact number that a rounded constant stands for, however it was folded and rounded.

0.01 * 0.001 in float64 and 1e-5 in float32 are one number; so are 1 / sqrt(128) computed at home and on the
device. The simplest number within a float32 unit in the last place is taken: a decimal, a fraction, its
square root or fourth root, or one of these times pi or ln 2. A constant without such a name is taken
as its float32 value, or as the inverse of one if it is above 1, and flagged as unnamed, because another
rounding of it would be another number. One that has several names of about the same cost is the simplest of
them, and flagged as unnamed too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import frexp, log, log10, pi

import numpy as np

_ULP = 2.0**-23
_DIGITS = 6
_DENOMINATOR = 4096
_SMALLEST, _LARGEST = 1e-38, 1e38  # the range of float32; fourth powers of these are still floats
MAX_INTEGER = 1 << 24
"""Integers up to this stand for themselves."""

# The cost of writing a number down: the product of the odd parts of numerator and denominator, since digits
# are what people write. By chance, three numbers in a hundred are this close to one that costs at most
# `_MAX_COST`.
_MAX_COST = 1 << 14
_CLEAR_RATIO = 16  # the simplest name counts only if all others cost this many times more
_PLAIN_COST = 1 << 8  # the search stops at a number that costs no more than this
_DECIMAL = 8
_ROOTS = {1: 1, 2: 8, 4: 64}
_FACTOR = 64

FACTORS = {"pi": pi, "ln2": log(2.0)}


@dataclass(frozen=True, slots=True)
class ExactNumber:
    """sign * (fraction * factor ** power) ** (1 / root); `named`: no doubt about it."""

    sign: int
    fraction: Fraction
    root: int = 1
    factor: str = ""
    power: int = 0
    named: bool = True

    @property
    def fourth_power(self) -> tuple[Fraction, str, int]:
        """The fourth power, whose parts are the same however the number is written."""
        times = 4 // self.root
        return self.fraction**times, self.factor, self.power * times


@lru_cache(maxsize=1 << 14)
def recognise_constant(value: float) -> ExactNumber:
    """Return the number that a finite constant stands for."""
    sign, size = (-1, -value) if value < 0 else (1, value)
    if size.is_integer() and size <= MAX_INTEGER:
        return ExactNumber(sign, Fraction(int(size)))
    found = sorted(_simple_numbers(size, _ULP), key=_candidate_cost)
    if not found or found[0][0] > _PLAIN_COST:
        found = sorted([*found, *_composed_numbers(size)], key=_candidate_cost)
    found = [(cost, item) for cost, item in found if cost <= _MAX_COST]
    if not found:
        return ExactNumber(sign, _rounded(size), named=False)
    least, best = found[0]
    doubtful = any(
        cost <= _CLEAR_RATIO * least and item.fourth_power != best.fourth_power for cost, item in found
    )
    return replace(best, sign=sign, named=not doubtful)


def _rounded(size: float) -> Fraction:
    """A number without a name: of it and its inverse, the float32 value of the smaller one decides.

    So dividing by a number and multiplying by its inverse, folded in float64, are the same.
    """
    if 1 < size < _LARGEST:
        return 1 / _rounded(1 / size)
    single = float(np.float32(size)) if size < _LARGEST else size
    return Fraction(single or size)


def _candidate_cost(candidate: tuple[int, ExactNumber]) -> int:
    return candidate[0]


def _composed_numbers(size: float) -> Iterator[tuple[int, ExactNumber]]:
    """Roots of simple numbers, and simple numbers times a power of a factor, inside or outside the root."""
    for root, penalty in _ROOTS.items():
        powers = [("", 0)] if root > 1 else []
        powers += [(factor, sign * power) for factor in FACTORS for power in {1, root} for sign in (1, -1)]
        for factor, power in powers if _SMALLEST < size < _LARGEST else ():
            number = FACTORS[factor] ** power if factor else 1.0
            for cost, found in _simple_numbers(size**root / number, root * _ULP):
                full = cost * penalty * (_FACTOR if factor else 1)
                yield full, replace(found, root=root, factor=factor, power=power)


def _simple_numbers(value: float, tolerance: float) -> Iterator[tuple[int, ExactNumber]]:
    """Simple numbers near a positive number, each with its cost."""
    if not 1e-300 < value < 1e300:
        return
    shift = _DIGITS - 1 - int(np.floor(log10(value)))
    digits = round(value * 10.0**shift)
    if abs(digits / 10.0**shift - value) <= tolerance * value:
        yield int(str(digits).rstrip("0")) // _DECIMAL + 1, ExactNumber(1, digits / Fraction(10) ** shift)
    mantissa, exponent = frexp(value)
    fraction = _simplest_fraction(mantissa, tolerance)
    if fraction.denominator <= _DENOMINATOR:
        cost = _odd_part(fraction.numerator) * _odd_part(fraction.denominator)
        yield cost, ExactNumber(1, fraction * Fraction(2) ** exponent)


def _simplest_fraction(value: float, tolerance: float) -> Fraction:
    """Return the fraction of the least denominator within a relative tolerance of a number in [1/2, 1)."""
    low, high = Fraction(value * (1 - tolerance)), Fraction(value * (1 + tolerance))
    return _fraction_between(low, high)


def _fraction_between(low: Fraction, high: Fraction) -> Fraction:
    whole = low.numerator // low.denominator
    if whole == low:
        return Fraction(whole)
    if whole + 1 <= high:
        return Fraction(whole + 1)
    return whole + 1 / _fraction_between(1 / (high - whole), 1 / (low - whole))


def _odd_part(number: int) -> int:
    return number // (number & -number) if number else 1
