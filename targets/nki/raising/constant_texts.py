"""The NumPy source of constant data, from what repeats in it.

Kernels compute their constants with any Python, such as masks, averages over blocks, or tables of cosines.
Only the data is left of that. It is described by the first of these that fits: one number; a triangle or an
identity; lines that repeat; one value for each diagonal; numbers that grow evenly; runs of equal numbers.
What fits none is written out, number by number, up to `MAX_NUMBERS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from targets.nki.raising.instruction_rows import NotRaised

MAX_NUMBERS = 1024
"""Most numbers that are written out; more would hide the kernel."""
_TYPES = frozenset({"float32", "float16", "int32", "int8", "uint8"})

_Array = NDArray[np.generic]


def constant_text(data: bytes, shape: tuple[int, ...], dtype: str, name: str) -> str:
    """Return an expression for an array, in which shape and type can be read without running it.

    Raises:
        NotRaised: NumPy lacks the type, or too little repeats.
    """
    if dtype not in _TYPES:
        raise NotRaised(f"constant data of type {dtype}: `{name}`")
    held = np.frombuffer(data, dtype=dtype).reshape(shape)
    text = _simple_text(held)
    if text is None:
        inner = _array_text(held, name)
        text = f"{inner}.astype(np.{dtype}).reshape({shape})"
    return text


def _simple_text(held: _Array) -> str | None:
    """A call that makes the array at once; None if no such call does."""
    word, kind, first = f"dtype=np.{held.dtype}", held.dtype, held.flat[0]
    forms: dict[str, _Array] = {
        f"np.full({held.shape}, {_number(first)}, {word})": np.full(held.shape, first, kind)
    }
    if held.ndim == len("rc"):
        rows, columns = held.shape
        forms[f"np.eye({rows}, {columns}, {word})"] = np.eye(rows, columns, dtype=kind)
        forms[f"np.tri({rows}, {columns}, {word})"] = np.tri(rows, columns, dtype=kind)
        forms[f"np.tri({columns}, {rows}, {word}).T"] = np.tri(columns, rows, dtype=kind).T
    return next((text for text, array in forms.items() if _are_equal(array, held)), None)


def _array_text(held: _Array, name: str) -> str:
    """An expression for the array's numbers, in its own or in a flat shape."""
    for axis in range(held.ndim):
        size = held.shape[axis]
        for count in _divisors(size):  # the largest block of equal lines first
            kept = held.take(range(0, size, count), axis)
            if _are_equal(kept.repeat(count, axis), held):
                return f"{_shaped_text(kept, name)}.repeat({count}, {axis})"
        for count in _divisors(size):
            kept = held.take(range(size // count), axis)
            times = tuple(count if other == axis else 1 for other in range(held.ndim))
            if _are_equal(np.tile(kept, times), held):
                return f"np.tile({_shaped_text(kept, name)}, {times})"
    if held.ndim == len("rc") and min(held.shape) > 1:
        rows, columns = held.shape
        diagonals = np.concatenate([held[::-1, 0], held[0, 1:]])
        places = np.arange(columns) + np.arange(rows)[::-1, None]
        if _are_equal(diagonals[places], held):
            index = f"np.arange({columns}) + np.arange({rows})[::-1, None]"
            return f"{_line_text(diagonals, name)}[{index}]"
    return _line_text(held.reshape(-1), name)


def _shaped_text(held: _Array, name: str) -> str:
    text = _array_text(held, name)
    return text if held.ndim == 1 else f"{text}.reshape({held.shape})"


def _line_text(line: _Array, name: str) -> str:
    """An expression for a one-dimensional array."""
    if line.size > 2 and np.isfinite(line).all():
        first, step = line[0].item(), line[1].item() - line[0].item()
        if _are_equal((first + step * np.arange(line.size)).astype(line.dtype), line):
            return f"({first!r} + {step!r} * np.arange({line.size}))"
    starts = np.flatnonzero([True, *_differ(line[:-1], line[1:])])
    if 2 * len(starts) < line.size and len(starts) <= MAX_NUMBERS:
        values = ", ".join(_number(line[start]) for start in starts)
        return f"np.repeat([{values}], {np.diff([*starts, line.size]).tolist()})"
    if line.size > MAX_NUMBERS:
        raise NotRaised(f"constant data in which too little repeats: `{name}`")
    return f"np.array([{', '.join(map(_number, line))}])"


def _differ(one: _Array, other: _Array) -> NDArray[np.bool_]:
    """Where the bits of two arrays differ."""
    bits = np.dtype(f"u{one.dtype.itemsize}")
    return np.asarray(np.not_equal(one.view(bits), other.view(bits)))


def _are_equal(one: _Array, other: _Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _divisors(size: int) -> Iterator[int]:
    """The divisors of a size above 1, the largest first."""
    return (count for count in range(size, 1, -1) if size % count == 0)


def _number(value: np.generic) -> str:
    number = value.item()
    if isinstance(number, float) and not math.isfinite(number):
        return "np.nan" if math.isnan(number) else "np.inf" if number > 0 else "-np.inf"
    return repr(number)
