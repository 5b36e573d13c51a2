"""The OCP Microscaling formats (version 1.0), from their tables: numbers bit by bit, rounding by search.

It shares nothing with the simulator, nor with a library of types. Scales are those that the documents of
`nisa.quantize_mx` give, and the layout of groups is that of the Trainium 3 guide.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

SCALE_BIAS = 127


@dataclass(frozen=True)
class Format:
    """Bits of exponent and fraction; `most` is the exponent of the largest number."""

    exponent: int
    fraction: int
    most: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.fraction


FORMATS = {
    "float8_e4m3fn_x4": Format(4, 3, 8),
    "float8_e5m2_x4": Format(5, 2, 15),
    "float4_e2m1fn_x4": Format(2, 1, 2),
}


@cache
def decode(name: str, code: int) -> float:
    """The number of a code: sign, exponent, fraction; subnormal where the exponent is 0."""
    kind = FORMATS[name]
    sign = -1.0 if code >> (kind.bits - 1) else 1.0
    exponent = code >> kind.fraction & (1 << kind.exponent) - 1
    fraction = code & (1 << kind.fraction) - 1
    if exponent == (1 << kind.exponent) - 1:
        if name == "float8_e5m2_x4":
            return math.nan if fraction else sign * math.inf
        if name == "float8_e4m3fn_x4" and fraction == 7:
            return math.nan
    bias = (1 << kind.exponent - 1) - 1
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - bias - kind.fraction)
    return sign * math.ldexp((1 << kind.fraction) + fraction, exponent - bias - kind.fraction)


@cache
def magnitudes(name: str) -> list[float]:
    """The finite numbers that are not negative, by code."""
    found = [decode(name, code) for code in range(1 << FORMATS[name].bits - 1)]
    return [value for value in found if math.isfinite(value)]


def encode(name: str, value: float) -> int:
    """The code of the nearest number, the even one of two; beyond the largest one that."""
    sign = (1 << FORMATS[name].bits - 1) if math.copysign(1.0, value) < 0 else 0
    size, known = abs(value), magnitudes(name)
    above = min(bisect_left(known, size), len(known) - 1)
    if known[above] <= size or above == 0:
        return sign | above
    below, middle = above - 1, (Fraction(known[above]) + Fraction(known[above - 1])) / 2
    if Fraction(size) == middle:
        return sign | (above if above % 2 == 0 else below)
    return sign | (above if Fraction(size) > middle else below)


def unpack(name: str, packed: Any) -> Any:
    """Numbers [P, F, 4] of packed elements, given as integers [P, F]: the first one in the lowest bits."""
    bits = FORMATS[name].bits
    return np.array(
        [
            [[decode(name, int(word) >> bits * n & (1 << bits) - 1) for n in range(4)] for word in row]
            for row in packed
        ]
    )


def quantise(name: str, numbers: Any) -> tuple[Any, Any]:
    """Codes [P, F, 4] and scales [P / 8, F] of numbers [P, 4 F], which are finite."""
    rows, free = numbers.shape[0], numbers.shape[1] // 4
    groups = numbers.astype(np.float64).reshape(rows // 8, 8, free, 4)
    codes = np.zeros((rows // 8, 8, free, 4), np.int64)
    scales = np.zeros((rows // 8, free), np.int64)
    for row in range(rows // 8):
        for column in range(free):
            group = groups[row, :, column]
            scales[row, column] = scale_of(name, float(np.abs(group).max()))
            unit = Fraction(2) ** int(scales[row, column] - SCALE_BIAS)
            for place, value in np.ndenumerate(group):
                scaled = math.copysign(float(Fraction(float(value)) / unit), value)
                codes[row, place[0], column, place[1]] = encode(name, scaled)
    return codes.reshape(rows, free, 4), scales


def scale_of(name: str, largest: float) -> int:
    """The scale's code: 2 to the exponent of the largest number, less that of the format and one."""
    if largest == 0.0:
        return 0
    exponent = 0
    while Fraction(2) ** exponent > Fraction(largest):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= Fraction(largest):
        exponent += 1
    return min(max(exponent - (FORMATS[name].most - 1), -SCALE_BIAS), SCALE_BIAS) + SCALE_BIAS


def scale_rows(scales: Any, rows: int, offset: int = 0) -> Any:
    """Where the scales of groups lie in a tile of that many partitions: in four of each quadrant."""
    tile = np.zeros((rows, scales.shape[1]), np.uint8)
    for group, values in enumerate(scales):
        tile[32 * (group // 4) + group % 4 + offset] = values
    return tile


def multiply(stationary: tuple[Any, Any], moving: tuple[Any, Any]) -> Any:
    """The product of numbers [K, F, 4] and scales [K / 8, F] of both, each element's sum rounded once."""
    left, right = (
        numbers * 2.0 ** np.repeat(scales.astype(np.float64) - SCALE_BIAS, 8, axis=0)[:, :, None]
        for numbers, scales in (stationary, moving)
    )
    rows, columns = left.shape[1], right.shape[1]
    sums = [[math.fsum((left[:, i] * right[:, j]).reshape(-1)) for j in range(columns)] for i in range(rows)]
    return np.array(sums).astype(np.float32)
