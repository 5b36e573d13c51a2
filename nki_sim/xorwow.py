"""The random number generator of an engine: xorwow (Marsaglia, Xorshift RNGs, 2003), one state per lane.

The documents name xorwow with six words per lane for GpSimd; what VectorE has before NeuronCore-v4 they do
not specify, and here it is the same. How one seed becomes the states of 128 lanes is not documented either:
here splitmix64 counts through the lanes. Free of NumPy, because the tracer needs the first state.
"""

from __future__ import annotations

import struct

WORDS = 6
LANES = 128
STEP = 362437

_MASK = (1 << 64) - 1


def seed_state(seed: int) -> list[int]:
    """The state after seeding: lane after lane, five shift words and a counter, unsigned 32-bit."""
    words: list[int] = []
    for lane in range(LANES):
        for part in range(WORDS // 2):
            mixed = _splitmix((seed & 0xFFFFFFFF) << 32 | lane << 8 | part)
            words += [mixed & 0xFFFFFFFF, mixed >> 32]
    return words


def pack_words(words: list[int]) -> bytes:
    """Little-endian, as tensors are."""
    return struct.pack(f"<{len(words)}I", *words)


def _splitmix(value: int) -> int:
    """One output of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
