"""The text of a whole kernel, and of the known numbers that it loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targets.nki.translation.text import INDENT, NameTable
from targets.nki.translation.values import Array, Buffer

_FEW_NUMBERS = 64
"""Numbers that are listed as they are."""
_MOST_VALUES = 4096
"""Different numbers in an array up to which their places are written instead."""
_MOST_REPEATS = 64
"""How often a block of known numbers may be repeated to be written once."""

TABLE_READER = """def read_table(text, values, shape):
    \"\"\"Six bits in a character: places in `values`, or float32 in six characters each.\"\"\"
    width = 6 if values is None else values[0]
    codes = np.array(list(text)).reshape(-1, width) - 48
    bits = np.sum(codes * 64 ** np.arange(width)[::-1], axis=1)
    if values is not None:
        return np.array(values[1], np.float32)[bits].reshape(shape)
    size = (bits % 2**23 + 2**23) * 2.0 ** (bits // 2**23 % 256 - 150)
    signed = np.where(bits < 2**31, size, -size)
    return np.where(bits % 2**31 == 0, 0.0, signed).astype(np.float32).reshape(shape)
"""
"""What a kernel with tables reads them by. The judge's rules leave it NumPy's arithmetic only."""


def array_expression(array: NDArray[np.float32]) -> str:
    """Return NumPy code for a float32 array; lines and blocks that repeat are written once."""
    copies = _line_copies(array)
    if copies > 1:
        lines = array.reshape(len(array), -1)[::copies]
        return f"np.tile({array_expression(lines)}, (1, {copies})).reshape({array.shape})"
    periods = [_period(np.moveaxis(array, axis, 0)) for axis in range(array.ndim)]
    block = np.ascontiguousarray(array[tuple(slice(period) for period in periods)])
    found = _block_expression(block)
    repeats = tuple(size // period for size, period in zip(array.shape, periods, strict=True))
    return found if block.shape == array.shape else f"np.tile({found}, {repeats})"


def _block_expression(block: NDArray[np.float32]) -> str:
    values, places = np.unique(block, return_inverse=True)
    if block.size <= _FEW_NUMBERS and np.isfinite(block).all():
        return f"np.array({block.tolist()!r}, np.float32)"
    if len(values) <= _MOST_VALUES and np.isfinite(values).all():
        width = 1 if len(values) <= 64 else 2
        return f"read_table({_characters(places, width)!r}, ({width}, {values.tolist()!r}), {block.shape})"
    bits = block.reshape(-1).view(np.uint32)
    return f"read_table({_characters(bits, 6)!r}, None, {block.shape})"


def _characters(numbers: NDArray[Any], width: int) -> bytes:
    """Whole numbers as so many characters of six bits each."""
    digits = numbers.reshape(-1, 1).astype(np.int64) // 64 ** np.arange(width)[::-1] % 64
    return (digits.reshape(-1) + 48).astype(np.uint8).tobytes()


def _line_copies(array: NDArray[np.float32]) -> int:
    """How often each line follows itself, as where two loops are one and the inner one changes nothing."""
    lines = array.reshape(len(array), -1)
    changes = np.flatnonzero((lines[1:] != lines[:-1]).any(axis=1)) + 1
    return gcd(len(lines), *changes.tolist()) if changes.size else 1


def _period(array: NDArray[np.float32]) -> int:
    """The length after which an array's lines are the same again."""
    lines = array.reshape(len(array), -1)
    for part in range(1, len(lines)):
        repeats, rest = divmod(len(lines), part)
        is_likely = not rest and repeats <= _MOST_REPEATS and np.array_equal(lines[0], lines[part])
        if is_likely and np.array_equal(lines, np.tile(lines[:part], (repeats, 1))):
            return part
    return len(lines)


@dataclass
class KnownTables:
    """Known numbers that a kernel loads, each kept once."""

    names: NameTable
    lines: list[str] = field(default_factory=list)
    _held: dict[tuple[tuple[int, ...], bytes], Buffer] = field(default_factory=dict)

    def buffer(self, numbers: Array) -> Buffer:
        """Return the array in HBM that holds these numbers."""
        kept = np.ascontiguousarray(numbers, np.float32)
        key = kept.shape, kept.tobytes()
        if key not in self._held:
            name = self.names.new("table")
            self.lines.append(f"{name} = nl.shared_constant({array_expression(kept)})")
            self._held[key] = Buffer(name, kept.shape)
        return self._held[key]


def join_kernel(
    name: str,
    arguments: Sequence[str],
    outputs: Sequence[Buffer],
    *,
    stored: Sequence[Buffer],
    tables: KnownTables,
    body: Sequence[str],
) -> str:
    """Return the source of a kernel: its arrays in HBM, its tables, and the lines of its stages."""
    lines = [
        *(_declare(item, item.dtype, "shared_hbm") for item in outputs),
        *(_declare(item, "float32", "private_hbm") for item in stored),
        *tables.lines,
        "",
        *body,
        f"return {', '.join(item.name for item in outputs)}",
    ]
    imports = ["import nki", "import nki.isa as nisa", "import nki.language as nl"]
    if tables.lines:
        imports += ["import numpy as np"]
    if any("read_table(" in line for line in tables.lines):
        imports += ["", "", *TABLE_READER.rstrip().split("\n")]
    text = "\n".join(INDENT + line if line else "" for line in lines)
    return "\n".join([*imports, "", "", "@nki.jit", f"def {name}({', '.join(arguments)}):", text, ""])


def _declare(array: Buffer, dtype: str, memory: str) -> str:
    return f"{array.name} = nl.ndarray({array.shape}, dtype=nl.{dtype}, buffer=nl.{memory})"
