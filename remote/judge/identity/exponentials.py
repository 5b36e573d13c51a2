"""Exponentials from one prime field into the other, and the logarithms that undo them.

exp(x) = BASE ** x modulo P, for x modulo Q, the order of BASE. Both use tables of powers: an exponential is a
product of two entries, a logarithm is found by baby steps and giant steps.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from remote.judge.identity.prime_fields import PrimeField, ResidueArray

P, Q = 1951617359, 975808679
"""P = 2 Q + 1. Primes up to 41 are squares modulo P, up to 29 modulo Q: roots of sizes are exact."""

BASE = pow(1234567891, 2, P)
"""A square, so that its order is Q. It need not be secret: the symbols are."""

MOST_LOGARITHMS = 1 << 11
"""Number of different values whose logarithms are searched at a time; each takes about a thousand lookups."""

_VALUES = PrimeField(P)
_BITS = 15
_BABY_STEPS = 1 << 20


def exponential(exponents: ResidueArray) -> ResidueArray:
    """Return BASE ** exponents modulo P."""
    low, high = _power_tables()
    mask = np.uint64((1 << _BITS) - 1)
    return _VALUES.multiply(low[exponents & mask], high[exponents >> np.uint64(_BITS)])


def logarithm(values: ResidueArray) -> ResidueArray:
    """Return x modulo Q with BASE ** x equal to each value; a value must be a nonzero square modulo P."""
    powers, exponents = _baby_steps()
    found, giant = np.zeros(values.size, np.uint64), np.uint64(pow(BASE, -_BABY_STEPS, P))
    left, rest = np.arange(values.size), values.reshape(-1)
    for step in range(Q // _BABY_STEPS + 1):
        at = np.minimum(np.searchsorted(powers, rest), powers.size - 1)
        hit = powers[at] == rest
        found[left[hit]] = exponents[at[hit]] + np.uint64(step * _BABY_STEPS)
        left, rest = left[~hit], _VALUES.multiply(rest[~hit], giant)
        if not left.size:
            break
    return found.reshape(values.shape)


@lru_cache(maxsize=1)
def _power_tables() -> tuple[ResidueArray, ResidueArray]:
    """Powers of BASE for the low and the high bits of exponents."""
    return _compute_powers(BASE, 1 << _BITS), _compute_powers(pow(BASE, 1 << _BITS, P), 1 << _BITS)


@lru_cache(maxsize=1)
def _baby_steps() -> tuple[ResidueArray, NDArray[np.uint64]]:
    """The first powers of BASE in ascending order, and the exponent of each."""
    powers = _compute_powers(BASE, _BABY_STEPS)
    order = np.argsort(powers)
    return powers[order], order.astype(np.uint64)


def _compute_powers(base: int, count: int) -> ResidueArray:
    """Return `count` powers of a number modulo P, starting at exponent 0; `count` is a power of two."""
    found = np.ones(1, np.uint64)
    while found.size < count:
        found = np.concatenate([found, _VALUES.multiply(found, np.uint64(pow(base, found.size, P)))])
    return found
