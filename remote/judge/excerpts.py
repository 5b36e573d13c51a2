"""Evaluates a reference on tiles of its outputs, from parts of its inputs where that gives the same.

Along many axes the problem falls apart: rows of a product of matrices need only their rows of the left input.
Which axes of which inputs go with an axis of an output is not declared but tried out, at the reduced size: an
axis counts where the reference, given parts of these inputs, gives just that part of its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.judge.honest import in_float32
from remote.judge.tiles import Box, Tile, floors, worst
from seeds.faults import REDUCED
from seeds.inputs import draw, dtype_of
from seeds.spec import ProblemSpec

Array = NDArray[Any]
Reference = Callable[..., Any]

_SMALL = 1 << 22
"""Outputs of up to so many elements are evaluated whole, once for all tiles."""

_PARTS = ((0.3, 0.6), (0.0, 0.1), (0.9, 1.0))
"""Parts of an axis that are tried out."""

_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of an output, and the (input, axis) pairs that may be cut with it."""

    axis: int
    inputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Excerpts:
    """A reference that is asked for tiles of its outputs; per output the `axes` it falls apart along."""

    reference: Reference
    spec: ProblemSpec
    axes: Sequence[Sequence[Axis]]

    def evaluate(self, inputs: Sequence[Array], tiles: Sequence[Tile]) -> list[Array]:
        """Return the tiles, in the outputs' types."""
        whole: list[Array] | None = None
        found = []
        for tile in tiles:
            if self.axes[tile.output]:
                found.append(self.cut(inputs, tile))
                continue
            whole = whole or outputs_of(self.reference(*inputs), self.spec)
            found.append(whole[tile.output][tile.index].copy())
        return found

    def honest_error(self, inputs: Sequence[Array], tiles: Sequence[Tile], truth: Sequence[Array]) -> float:
        """Return the error of float32 with sums in shuffled order, that of the worst tile.

        It is infinite where the truth is not finite, or zero throughout an output: nothing to compare with.
        """
        bottom = floors(tiles, truth)
        if not all(bottom.values()) or not all(np.isfinite(item.astype(np.float64)).all() for item in truth):
            return inf
        found = replace(self, reference=_shuffled(self.reference)).evaluate(inputs, tiles)
        return worst(found, truth, bottom, range(len(tiles)))

    def cut(self, inputs: Sequence[Array], tile: Tile) -> Array:
        """Return one tile, from the parts of the inputs that go with it."""
        parts, inside = list(inputs), list(tile.index)
        for item in self.axes[tile.output]:
            first, end = tile.box[item.axis]
            inside[item.axis] = slice(0, end - first)
            for number, axis in item.inputs:
                parts[number] = parts[number][(slice(None),) * axis + (slice(first, end),)]
        return outputs_of(self.reference(*parts), self.spec)[tile.output][tuple(inside)].copy()

    def holds(self, inputs: Sequence[Array], tile: Tile, expected: Array) -> bool:
        """Whether the parts of the inputs give this tile."""
        try:
            found = self.cut(inputs, tile)
        except Exception:  # noqa: BLE001  whatever a reference says to inputs that do not fit together
            return False
        if found.shape != expected.shape:
            return False
        wrong = np.linalg.norm((found.astype(np.float64) - expected).reshape(-1))
        return bool(wrong <= _SAME * np.linalg.norm(expected.astype(np.float64).reshape(-1)))


def excerpts(reference: Reference, spec: ProblemSpec, size: str) -> Excerpts:
    """Find out along which axes the outputs that are large at `size` fall apart."""
    small = [prod(output.resolve(spec.dims(size))) <= _SMALL for output in spec.outputs]
    none = Excerpts(reference, spec, [() for _ in small])
    if all(small) or REDUCED not in spec.sizes:
        return none
    inputs = draw(spec, REDUCED, spec.seeds[0])
    truth = outputs_of(reference(*inputs), spec)
    axes = [
        () if is_small else _axes_of(none, inputs, number, truth[number])
        for number, is_small in enumerate(small)
    ]
    return replace(none, axes=axes)


def outputs_of(found: Any, spec: ProblemSpec) -> list[Array]:
    """Return what a reference gave as arrays of the outputs' types."""
    arrays = found if isinstance(found, tuple) else (found,)
    with np.errstate(all="ignore"):
        return [
            np.asarray(array).astype(dtype_of(output.dtype), copy=False)
            for array, output in zip(arrays, spec.outputs, strict=True)
        ]


def _shuffled(reference: Reference) -> Reference:
    return lambda *arrays: in_float32(reference, arrays, seed=1)


def _axes_of(trial: Excerpts, inputs: Sequence[Array], number: int, truth: Array) -> Sequence[Axis]:
    found: list[Axis] = []
    shape = trial.spec.outputs[number].shape
    for axis, label in enumerate(shape):
        if shape.count(label) > 1 or truth.shape[axis] == 1:
            continue
        for candidate in _candidates(trial.spec, axis, label):
            axes = [[*found, candidate] if at == number else () for at in range(len(trial.axes))]
            attempt = replace(trial, axes=axes)
            tiles = [Tile(number, _box(truth.shape, axes[number], part)) for part in _PARTS]
            if all(attempt.holds(inputs, tile, truth[tile.index]) for tile in tiles):
                found.append(candidate)
                break
    return found


def _candidates(spec: ProblemSpec, axis: int, label: str | int) -> Iterator[Axis]:
    """All inputs that have this axis together, then each alone: rows of queries are not those of keys."""
    having = [(at, item.shape.index(label)) for at, item in enumerate(spec.inputs) if label in item.shape]
    if having:
        yield Axis(axis, tuple(having))
    if len(having) > 1:
        yield from (Axis(axis, (pair,)) for pair in having)


def _box(shape: Sequence[int], axes: Sequence[Axis], part: tuple[float, float]) -> Box:
    """All of the output but for the axes under trial, of which a part."""
    box = [(0, size) for size in shape]
    for item in axes:
        size = shape[item.axis]
        first = min(int(part[0] * size), size - 1)
        box[item.axis] = (first, max(first + 1, int(part[1] * size)))
    return tuple(box)
