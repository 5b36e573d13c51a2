"""Sketches of outputs: random projections whose difference tells how far two arrays are apart.

Each element is added to one of `bins` sums with a random sign. The difference of two sketches is the sketch
of the difference. Its squared norm estimates that of the difference, with a relative standard deviation of
sqrt(2 / bins); if a single element differs it is exact. (The count sketch of Charikar, Chen and
Farach-Colton, 2002.) Without the seed nobody can make a different array with the same sketch.

A sketch is `HEADER` (the largest sum, the number of non-finite elements) and `bins` sums in units of the
largest, in float32. Both ends run this file, hosts under Python 3.9. It needs only NumPy's bit generators,
whose streams are the same in all its versions.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BINS = 256
"""Number of sums in a sketch: a standard deviation of 9 %."""

HEADER = struct.Struct("<dq")
_CHUNK = 1 << 18


def sketch_bytes(bins: int) -> int:
    """Return the size of a sketch in bytes."""
    return HEADER.size + 4 * bins


def sketch_sums(array: Array, seed: str, bins: int = BINS) -> tuple[NDArray[np.float64], int]:
    """Return the sums, and the number of non-finite elements, which count as zero; `bins` is a power of 2."""
    flat, found, bad = array.reshape(-1), np.zeros(bins), 0
    stream = np.random.PCG64(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big"))
    for start in range(0, flat.size, _CHUNK):
        values = flat[start : start + _CHUNK].astype(np.float64)
        finite = np.isfinite(values)
        if not finite.all():
            bad += int(values.size - np.count_nonzero(finite))
            values = np.where(finite, values, 0.0)
        raw = stream.random_raw(values.size)
        signed = np.where(raw >> np.uint64(63), values, -values)
        found += np.bincount((raw & np.uint64(bins - 1)).astype(np.intp), weights=signed, minlength=bins)
    return found, bad


def pack_sketch(array: Array, seed: str, bins: int = BINS) -> bytes:
    """Return the sketch of an array."""
    found, bad = sketch_sums(array, seed, bins)
    largest = float(np.max(np.abs(found)))
    unit = largest or 1.0
    return HEADER.pack(largest, bad) + (found / unit).astype("<f4").tobytes()


def unpack_sketch(data: bytes) -> tuple[NDArray[np.float64], int]:
    """Return the sums of a sketch and the number of non-finite elements.

    Raises:
        ValueError: the bytes are not a sketch.
    """
    if len(data) <= HEADER.size or (len(data) - HEADER.size) % 4:
        raise ValueError(f"a sketch does not have {len(data)} bytes")
    largest, bad = HEADER.unpack_from(data)
    parts = np.frombuffer(data, "<f4", offset=HEADER.size).astype(np.float64)
    if not (np.isfinite(largest) and largest >= 0 and bad >= 0 and (np.abs(parts) <= 1.0).all()):
        raise ValueError("its sums are out of range")
    return parts * largest, bad
