"""Pseudo-random numbers as a function of a secret and a position, so that no array of them is drawn."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def derive_secret(seed: bytes, purpose: str) -> int:
    """Derive 64 bits for one purpose from a secret."""
    return int.from_bytes(hashlib.sha256(seed + purpose.encode()).digest()[:8], "big")


def mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return hashes of 64 bits (the mixing function of splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
