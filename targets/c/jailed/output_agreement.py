"""Compares outputs of two kernels on the same inputs, in a window that is drawn anew each time."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Callable, Sequence
from math import isfinite, sqrt

from targets.c.jailed.shared_memory import SharedArray

_WINDOW = 4096
"""Elements that are compared number by number where the bytes differ."""
_WINDOW_BYTES = 1 << 20
"""Bytes that are compared at all."""

Reader = Callable[[memoryview], Sequence[float]]


def _read_floats(data: memoryview) -> Sequence[float]:
    return array("f", data.tobytes())


def _read_ints(data: memoryview) -> Sequence[float]:
    return array("i", data.tobytes())


def _read_halves(data: memoryview) -> Sequence[float]:
    return struct.unpack(f"{len(data) // 2}e", data)


def _read_brain_floats(data: memoryview) -> Sequence[float]:
    """bfloat16 are the upper halves of float32."""
    words = array("H", data.tobytes())
    return array("f", array("I", [word << 16 for word in words]).tobytes())


_READERS: dict[str, tuple[int, Reader]] = {
    "float32": (4, _read_floats),
    "int32": (4, _read_ints),
    "float16": (2, _read_halves),
    "bfloat16": (2, _read_brain_floats),
}


def have_equal_outputs(
    mine: Sequence[SharedArray],
    others: Sequence[SharedArray],
    dtypes: Sequence[str],
    *,
    tolerance: float,
    chance: random.Random,
) -> bool:
    """Whether two kernels' outputs agree up to a relative L2 error, where a drawn window shows it."""
    for one, other, dtype in zip(mine, others, dtypes, strict=True):
        itemsize, read = _READERS[dtype]
        if not _agree_in_window(one.data, other.data, itemsize, read, tolerance=tolerance, chance=chance):
            return False
    return True


def _agree_in_window(
    mine: memoryview,
    other: memoryview,
    itemsize: int,
    read: Reader,
    *,
    tolerance: float,
    chance: random.Random,
) -> bool:
    count = len(mine) // itemsize
    first = chance.randrange(max(1, count - _WINDOW_BYTES // itemsize + 1)) * itemsize
    if mine[first : first + _WINDOW_BYTES] == other[first : first + _WINDOW_BYTES]:
        return True
    first = chance.randrange(max(1, count - _WINDOW + 1)) * itemsize
    end = first + _WINDOW * itemsize
    return _relative_error(read(mine[first:end]), read(other[first:end])) < tolerance


def _relative_error(values: Sequence[float], truth: Sequence[float]) -> float:
    difference = sqrt(sum((one - other) ** 2 for one, other in zip(values, truth, strict=True)))
    norm = sqrt(sum(other**2 for other in truth))
    if not isfinite(difference) or not norm:
        return 0.0 if not difference else float("inf")
    return difference / norm
