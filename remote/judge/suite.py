"""The inputs that a kernel is judged on: those of the problem's seeds, and sets made to catch wrong kernels.

Random normal numbers are kind: partial maxima, forgotten epsilons and terms that hardly count pass with them.
The other sets have what random ones lack. They are drawn from the specification alone, so that every process
draws the same; large arrays repeat a block of prime length, which costs a copy instead of a draw.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seeds.inputs import draw, dtype_of
from seeds.spec import InputSpec, ProblemSpec

Array = NDArray[Any]
Shape = tuple[int, ...]
Maker = Callable[[int, Shape, np.random.Generator], Array]
"""An input by its position and shape, in float32, before distribution and scale are applied."""

_BLOCK = 65_537
_OUTLIER, _RARE = 64.0, 1021
_TAIL = 8  # masked: one in so many of each axis, the last ones

EXTREME = frozenset({"huge", "tiny"})
"""Sets that count only where an honest evaluation stays within the problem's own tolerance."""


def _block(shape: Shape, generator: np.random.Generator) -> Array:
    """Standard normal numbers, as many as an array has up to the length that large ones repeat."""
    return generator.standard_normal(min(prod(shape), _BLOCK), dtype=np.float32)


def _noise(shape: Shape, generator: np.random.Generator) -> Array:
    """Standard normal numbers; those of a large array repeat themselves, rows shifted against each other."""
    return np.resize(_block(shape, generator), shape)


def _wide(_: int, shape: Shape, generator: np.random.Generator) -> Array:
    """Magnitudes over six decimal orders, side by side."""
    block = _block(shape, generator)
    return np.resize(block * np.exp2(generator.uniform(-10, 10, block.size).astype(np.float32)), shape)


def _outliers(_: int, shape: Shape, generator: np.random.Generator) -> Array:
    """A few elements far above all others; also every last one of a line, where partial maxima end early."""
    values = _noise(shape, generator)
    values.reshape(-1)[::_RARE] *= _OUTLIER
    values[..., -1] *= _OUTLIER
    return values


def _equal(index: int, shape: Shape, _: np.random.Generator) -> Array:
    """One value everywhere, of few bits, so that sums are exact in any order."""
    return np.full(shape, 0.75 + 0.25 * index, dtype=np.float32)


def _one_hot(index: int, shape: Shape, generator: np.random.Generator) -> Array:
    """The first input selects: each line of it has a single one."""
    if index:
        return _noise(shape, generator)
    values = np.zeros(shape, dtype=np.float32)
    lines = values.reshape(-1, shape[-1])
    rows = np.arange(len(lines))
    lines[rows, generator.integers(shape[-1], size=len(lines))] = 1.0
    return values


def _flipped(index: int, shape: Shape, generator: np.random.Generator) -> Array:
    """Signs that never mix: one input negative, the next positive; maxima that begin at zero are wrong."""
    return np.resize(np.abs(_block(shape, generator)) * np.float32(4.0 if index % 2 else -4.0), shape)


def _sorted(_: int, shape: Shape, generator: np.random.Generator) -> Array:
    """Each line ascends, so that its largest element comes last; lines differ in scale.

    All are positive: with both signs, products of such matrices cancel, and nothing is left to compare.
    """
    line = np.sort(np.abs(generator.standard_normal(shape[-1], dtype=np.float32)))
    return line * (0.5 + np.abs(_noise((*shape[:-1], 1), generator)))


def _masked(_: int, shape: Shape, generator: np.random.Generator) -> Array:
    """The tail of every axis is zero."""
    values = _noise(shape, generator)
    for axis, size in enumerate(shape):
        if size > 1:
            np.moveaxis(values, axis, 0)[size - max(1, size // _TAIL) :] = 0.0
    return values


def _scaled(exponent: int) -> Maker:
    return lambda _, shape, generator: np.resize(_block(shape, generator) * np.float32(2.0**exponent), shape)


def _permuted(_: int, shape: Shape, generator: np.random.Generator) -> Array:
    """What plain noise is, its batch in another order."""
    return np.roll(_noise(shape, generator), shape[0] // 2, axis=0)


_MAKERS: dict[str, Maker] = {
    "equal": _equal,
    "flipped": _flipped,
    "huge": _scaled(30),
    "masked": _masked,
    "one_hot": _one_hot,
    "outliers": _outliers,
    "permuted": _permuted,
    "sorted": _sorted,
    "tiny": _scaled(-30),
    "wide": _wide,
}
_WITHOUT = "without_"


def adversarial(spec: ProblemSpec) -> tuple[str, ...]:
    """Return the names of the sets beside the seeds.

    `without_x` has zeros for the input x, so that terms show which others hide.
    """
    return (*_MAKERS, *(_WITHOUT + item.name for item in spec.inputs if len(spec.inputs) > 1))


def every(spec: ProblemSpec) -> tuple[str, ...]:
    """Return the names of all sets, the seeds first."""
    return (*map(str, spec.seeds), *adversarial(spec))


def inputs(spec: ProblemSpec, size: str, name: str) -> list[Array]:
    """Return the arrays of a set, in the order of the spec; a seed's name is its number.

    Raises:
        UnknownSizeError: the spec has no such size.
    """
    if name.isdecimal():
        return draw(spec, size, int(name))
    generator = np.random.default_rng([len(name), *name.encode()])
    maker = _MAKERS.get(name, _scaled(0))
    dims = spec.dims(size)
    arrays = [
        _as_drawn(item, maker(index, item.resolve(dims), generator)) for index, item in enumerate(spec.inputs)
    ]
    for item, array in zip(spec.inputs, arrays, strict=True):
        if name == _WITHOUT + item.name:
            array[...] = 0
    return arrays


def _as_drawn(item: InputSpec, values: Array) -> Array:
    """Signs, scale and type that the problem gives this input; integers stay what a seed can draw."""
    if item.distribution == "abs_normal":
        values = np.abs(values)
    if item.scale != 1.0:
        values *= np.float32(item.scale)
    if item.dtype == "int32":
        values = np.clip(values, -4, 4)
    return values.astype(dtype_of(item.dtype), copy=False)
