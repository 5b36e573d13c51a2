"""The engines' random number generator: xorwow (Marsaglia, Xorshift RNGs, 2003), one state per lane.

The documents name xorwow with six words per lane for GpSimd, and four such states per lane for VectorE
from NeuronCore-v4 on. They do not specify VectorE's generator before that; this module uses the same one.
They do not document how one seed becomes the states of 128 lanes either; this module runs splitmix64 over
the lanes. Nor do they say which state gives which number; here four states take turns. Free of NumPy, because
the tracer needs the first state.
"""

from __future__ import annotations

import struct

WORDS = 6
LANES = 128
VECTOR_STATES = 4
"""States of a lane of VectorE from NeuronCore-v4 on."""
STEP = 362437

_MASK = (1 << 64) - 1


def seed_state(seed: int, states: int = 1) -> list[int]:
    """Return the states after seeding: for each state of a lane five shift words and a counter, as unsigned
    32-bit numbers.
    """
    words: list[int] = []
    for lane in range(LANES):
        for part in range(states * WORDS // 2):
            mixed = _splitmix((seed & 0xFFFFFFFF) << 32 | lane << 8 | part)
            words += [mixed & 0xFFFFFFFF, mixed >> 32]
    return words


def pack_words(words: list[int]) -> bytes:
    """Pack 32-bit words as little-endian bytes, the byte order of tensors."""
    return struct.pack(f"<{len(words)}I", *words)


def _splitmix(value: int) -> int:
    """Return one output of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
