"""The inputs that a kernel is judged on: those of the problem's seeds, and sets made to catch wrong kernels.

Random normal numbers are too kind: partial maxima, forgotten epsilons and terms that hardly count pass with
them. The other sets fill these gaps. They depend on the specification alone, so every process draws the same;
all but one, which the home's secret decides (`secret_set`): no kernel can be made for it.
Large arrays repeat a block of prime length, because copying is cheaper than drawing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.judge.spans import InputSource, SpanReader
from seeds.distributions import OFFSET
from seeds.inputs import clip_integers, draw_inputs, dtype_of, fit_distribution
from seeds.spec import InputSpec, ProblemSpec

Array = NDArray[Any]
Shape = tuple[int, ...]
SpanMaker = Callable[[int, Shape, np.random.Generator], SpanReader]
"""Makes an input from its position and shape, in float32, before distribution and scale are applied."""

_BLOCK = 65_537
_OUTLIER_FACTOR, _OUTLIER_STEP = 64.0, 1021
_TAIL_FRACTION = 8  # masked sets: the last 1/8 of each axis

ROUNDING_SET = "outliers"
"""The set on which products of parts lose most: audits refuse most kernels that round too much for it."""
WHOLE_SETS = (ROUNDING_SET, "flipped")
"""Sets on which audits compare whole outputs: large values of either sign, everywhere."""

_SECRET_PREFIX = "secret-"  # noqa: S105  a name, not a secret

SHIFTED_SET = "shifted"
"""The set that shows how stable a formula is; only gross errors refuse a kernel there."""

EXTREME_SETS = frozenset({"huge", "tiny"})
"""Sets that count only if an honest evaluation stays within the problem's own tolerance."""


def _normal_block(shape: Shape, generator: np.random.Generator) -> Array:
    """Standard normal numbers, up to the block length that large arrays repeat."""
    return generator.standard_normal(min(prod(shape), _BLOCK), dtype=np.float32)


def _repeat_block(block: Array) -> SpanReader:
    """Repeat the block; its length is a prime, so rows are shifted against each other."""

    def span(first: int, end: int) -> Array:
        start, count = first % block.size, end - first
        if start + count <= block.size:
            return block[start : start + count].copy()
        return np.resize(np.roll(block, -start), count)

    return span


def _noise(_: int, shape: Shape, generator: np.random.Generator) -> SpanReader:
    """Standard normal numbers."""
    return _repeat_block(_normal_block(shape, generator))


def _wide_magnitudes(_: int, shape: Shape, generator: np.random.Generator) -> SpanReader:
    """Magnitudes over six decimal orders, next to each other."""
    block = _normal_block(shape, generator)
    return _repeat_block(block * np.exp2(generator.uniform(-10, 10, block.size).astype(np.float32)))


def _outliers(_: int, shape: Shape, generator: np.random.Generator) -> SpanReader:
    """A few elements far above all others, including the last of each line, which partial maxima miss."""
    noise, width = _noise(_, shape, generator), shape[-1]

    def span(first: int, end: int) -> Array:
        values = noise(first, end)
        values[-first % _OUTLIER_STEP :: _OUTLIER_STEP] *= _OUTLIER_FACTOR
        values[(width - 1 - first) % width :: width] *= _OUTLIER_FACTOR
        return values

    return span


def _shifted_lines(index: int, shape: Shape, generator: np.random.Generator) -> SpanReader:
    """Lines far above and far below zero in turn, for their spread: extrema with a finite start are wrong."""
    noise, lines = _noise(index, shape, generator), prod(shape[:-1])
    offsets = np.where((np.arange(lines) + index) % 2, -OFFSET, OFFSET).astype(np.float32)
    return lambda first, end: noise(first, end) + _repeat_per_line(offsets, shape[-1], first, end=end)


def _equal_values(index: int, shape: Shape, _: np.random.Generator) -> SpanReader:
    """The same value everywhere, of few bits, so that sums are exact in any order."""
    return lambda first, end: np.full(end - first, 0.75 + 0.25 * index, dtype=np.float32)


def _one_hot(index: int, shape: Shape, generator: np.random.Generator) -> SpanReader:
    """The first input selects: each line of it has a single one."""
    if index:
        return _noise(index, shape, generator)
    width, lines = shape[-1], prod(shape[:-1])
    places = np.arange(lines) * width + generator.integers(width, size=lines)

    def span(first: int, end: int) -> Array:
        values = np.zeros(end - first, dtype=np.float32)
        values[places[slice(*np.searchsorted(places, (first, end)))] - first] = 1.0
        return values

    return span


def _separate_signs(index: int, shape: Shape, generator: np.random.Generator) -> SpanReader:
    """Each input has one sign, negative or positive in turn; maxima that begin at zero are wrong."""
    return _repeat_block(np.abs(_normal_block(shape, generator)) * np.float32(4.0 if index % 2 else -4.0))


def _ascending_lines(_: int, shape: Shape, generator: np.random.Generator) -> SpanReader:
    """Each line ascends, so its largest element comes last; lines differ in scale.

    All values are positive: with both signs, products of such matrices cancel, and nothing is left to
    compare.
    """
    line = _repeat_block(np.sort(np.abs(generator.standard_normal(shape[-1], dtype=np.float32))))
    lines = shape[:-1]
    scale = 0.5 + np.abs(_noise(_, lines, generator)(0, prod(lines)))
    return lambda first, end: line(first, end) * _repeat_per_line(scale, shape[-1], first, end=end)


def _zero_tails(_: int, shape: Shape, generator: np.random.Generator) -> SpanReader:
    """The tail of every axis is zero."""
    noise = _noise(_, shape, generator)
    keeps = [np.ones(size, dtype=np.float32) for size in shape]
    for keep in keeps:
        keep[keep.size - keep.size // min(_TAIL_FRACTION, keep.size) :] = 0.0 if keep.size > 1 else 1.0
    *outer, last = keeps
    lines: Array = np.ones(1, dtype=np.float32)
    for keep in outer:
        lines = np.outer(lines, keep).reshape(-1)
    columns = _repeat_block(last)

    def span(first: int, end: int) -> Array:
        # Adding zero makes a negative zero positive.
        return (
            noise(first, end) * columns(first, end) * _repeat_per_line(lines, last.size, first, end=end) + 0.0
        )

    return span


def _repeat_per_line(values: Array, width: int, first: int, *, end: int) -> Array:
    """A value per line, for the elements [first, end)."""
    top = first // width
    return np.repeat(values[top : -(-end // width)], width)[first - top * width : end - top * width]


def _make_scaled_noise(exponent: int) -> SpanMaker:
    return lambda _, shape, generator: _repeat_block(
        _normal_block(shape, generator) * np.float32(2.0**exponent)
    )


def _reordered_batch(_: int, shape: Shape, generator: np.random.Generator) -> SpanReader:
    """Return the plain noise with its batch in another order."""
    noise, size = _noise(_, shape, generator), prod(shape)
    ahead = size - shape[0] // 2 * prod(shape[1:])

    def span(first: int, end: int) -> Array:
        turn = min(max(size - ahead, first), end)
        return np.concatenate(
            [noise(first + ahead, turn + ahead), noise(turn + ahead - size, end + ahead - size)]
        )

    return span


_MAKERS: dict[str, SpanMaker] = {
    "equal": _equal_values,
    "flipped": _separate_signs,
    "huge": _make_scaled_noise(30),
    "masked": _zero_tails,
    "one_hot": _one_hot,
    "outliers": _outliers,
    "permuted": _reordered_batch,
    SHIFTED_SET: _shifted_lines,
    "sorted": _ascending_lines,
    "tiny": _make_scaled_noise(-30),
    "wide": _wide_magnitudes,
}
_WITHOUT_PREFIX = "without_"


def adversarial_sets(spec: ProblemSpec) -> tuple[str, ...]:
    """Return the names of the public sets besides the seeds.

    `without_x` has zeros for the input x, to expose terms that others hide.
    """
    return (*_MAKERS, *(_WITHOUT_PREFIX + item.name for item in spec.inputs if len(spec.inputs) > 1))


def all_sets(spec: ProblemSpec) -> tuple[str, ...]:
    """Return the names of all public sets, the seeds first."""
    return (*map(str, spec.seeds), *adversarial_sets(spec))


def secret_set(secret: str) -> str:
    """Return the name of the set that a home's secret decides.

    The name suffices to draw it, and does not give the secret away: hosts are told the name.
    """
    return _SECRET_PREFIX + hashlib.sha256(f"inputs {secret}".encode()).hexdigest()


def is_secret_set(name: str) -> bool:
    """Whether this is the name of a set that a home's secret decides."""
    return name.startswith(_SECRET_PREFIX)


def draw_set(spec: ProblemSpec, size: str, name: str) -> list[Array]:
    """Return the arrays of a set, in the order of the spec; a seed's name is its number.

    Raises:
        UnknownSizeError: the spec has no such size.
    """
    if name.isdecimal():
        return draw_inputs(spec, size, int(name))
    return [source.read_all() for source in set_sources(spec, size, name)]


def set_sources(spec: ProblemSpec, size: str, name: str) -> list[InputSource]:
    """Return the inputs of a set that is not a seed, as sources of parts.

    Raises:
        UnknownSizeError: the spec has no such size.
    """
    drawn_by = bytes.fromhex(name.removeprefix(_SECRET_PREFIX)) if is_secret_set(name) else name.encode()
    generator = np.random.default_rng([len(drawn_by), *drawn_by])
    maker, dims = _MAKERS.get(name, _noise), spec.dims(size)
    found = []
    for index, item in enumerate(spec.inputs):
        shape = item.resolve_shape(dims)
        span = _with_distribution(item, maker(index, shape, generator))
        zero = name == _WITHOUT_PREFIX + item.name
        found.append(InputSource(shape, dtype_of(item.dtype), _zeros if zero else span))
    return found


def _zeros(first: int, end: int) -> Array:
    return np.zeros(end - first, dtype=np.float32)


def _with_distribution(item: InputSpec, span: SpanReader) -> SpanReader:
    """Apply the distribution and scale that the problem gives this input; integers stay in a seed's range."""

    def drawn(first: int, end: int) -> Array:
        values = fit_distribution(item, span(first, end))
        if item.scale != 1.0:
            values = values * values.dtype.type(item.scale)
        return clip_integers(item, values) if item.dtype == "int32" else values

    return drawn
