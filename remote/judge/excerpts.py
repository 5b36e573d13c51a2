"""Evaluates a reference on tiles of its outputs, from parts of its inputs where that gives the same.

Along many axes the problem falls apart: rows of a product of matrices need only their rows of the left input.
Which axes of which inputs go with an axis of an output is not declared but tried out, at the reduced size: an
axis counts where the reference, given parts of these inputs, gives just that part of its output.

An axis of an input may be shorter: neighbouring heads of queries share one of keys. Then it is one element of
the output's axis that needs one of the input's. Such axes are tried out at each of their elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.judge.honest import in_float32, in_narrow
from remote.judge.tiles import Box, Tile, floors, worst
from seeds.expressions import evaluate
from seeds.faults import REDUCED
from seeds.inputs import draw, dtype_of
from seeds.spec import ProblemSpec

Array = NDArray[Any]
Reference = Callable[..., Any]
Label = str | int
"""The size of an axis as the specification writes it; axes of the same label are cut alike."""

_SMALL = 1 << 22
"""Outputs of up to so many elements are evaluated whole, once for all tiles."""

_PARTS = ((0.3, 0.6), (0.0, 0.1), (0.9, 1.0))
"""Parts of an axis that are tried out."""

_SHARED = 16
"""Elements, at the reduced size, of the longest axis whose inputs may share theirs: each is tried out."""

_NARROW_BYTES = 2
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of an output, and the (input, axis) pairs that may be cut with it.

    Of `shared` ones, which are shorter, an element goes with several neighbours of the output's axis; where
    there are any, only single elements can be cut.
    """

    axis: int
    inputs: tuple[tuple[int, int], ...]
    shared: tuple[tuple[int, int], ...] = ()


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

    def narrow_error(self, inputs: Sequence[Array], tiles: Sequence[Tile], truth: Sequence[Array]) -> float:
        """Return the error of keeping all that is computed in the inputs' type of two bytes, worst tile.

        Where the reference takes the largest of nearly equal numbers, say, the answer is one of chance then;
        in float16 it may not be finite. 0 where all inputs are wider.
        """
        narrow = [array.dtype for array in inputs if array.dtype.itemsize == _NARROW_BYTES]
        floats = [dtype for dtype in narrow if dtype.kind not in "iub"]
        if not floats:
            return 0.0
        found = replace(self, reference=_kept(self.reference, floats[0])).evaluate(inputs, tiles)
        return worst(found, truth, floors(tiles, truth), range(len(tiles)))

    def cut(self, inputs: Sequence[Array], tile: Tile) -> Array:
        """Return one tile, from the parts of the inputs that go with it."""
        parts, inside = list(inputs), list(tile.index)
        for item in self._cuttable(tile):
            first, end = tile.box[item.axis]
            inside[item.axis] = slice(0, end - first)
            for number, axis in item.inputs:
                parts[number] = _taken(parts[number], axis, first, end)
            for number, axis in item.shared:
                at = first * inputs[number].shape[axis] // _extent(item, inputs)
                parts[number] = _taken(parts[number], axis, at, at + 1)
        return outputs_of(self.reference(*parts), self.spec)[tile.output][tuple(inside)].copy()

    def _cuttable(self, tile: Tile) -> Sequence[Axis]:
        """All axes; of a box with several elements of an axis whose inputs are shared only the others."""
        axes = self.axes[tile.output]
        single = all(np.diff(tile.box[item.axis]) == 1 for item in axes if item.shared)
        return axes if single else [item for item in axes if not item.shared]

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
        () if is_small else _axes_of(none, inputs, number, truth[number], size)
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


def _kept(reference: Reference, dtype: Any) -> Reference:
    return lambda *arrays: in_narrow(reference, arrays, dtype)


def _taken(array: Array, axis: int, first: int, end: int) -> Array:
    return array[(slice(None),) * axis + (slice(first, end),)]


def _extent(item: Axis, inputs: Sequence[Array]) -> int:
    """How long the output's axis is: as long as those of the inputs that are cut alike."""
    number, axis = item.inputs[0]
    extent: int = inputs[number].shape[axis]
    return extent


def _axes_of(
    trial: Excerpts, inputs: Sequence[Array], number: int, truth: Array, size: str
) -> Sequence[Axis]:
    found: list[Axis] = []
    labels = trial.spec.outputs[number].shape
    # Those with shared inputs last, since the others are also cut without them.
    for candidates in (_alike, _sharing):
        for axis, label in enumerate(labels):
            if labels.count(label) > 1 or truth.shape[axis] == 1 or axis in {item.axis for item in found}:
                continue
            for candidate in candidates(trial.spec, size, axis, label):
                if _holds(trial, inputs, number, truth, [*found, candidate]):
                    found.append(candidate)
                    break
    return found


def _holds(trial: Excerpts, inputs: Sequence[Array], number: int, truth: Array, axes: Sequence[Axis]) -> bool:
    """Whether an output falls apart along these axes, the last of which is on trial."""
    attempt = replace(trial, axes=[axes if at == number else () for at in range(len(trial.axes))])
    tiles = (Tile(number, box) for box in _boxes(truth.shape, axes))
    return all(attempt.holds(inputs, tile, truth[tile.index]) for tile in tiles)


def _alike(spec: ProblemSpec, _: str, axis: int, label: Label) -> Iterator[Axis]:
    """All inputs that have this axis together, then each alone: rows of queries are not those of keys."""
    having = _having(spec, label)
    if having:
        yield Axis(axis, having)
    if len(having) > 1:
        yield from (Axis(axis, (pair,)) for pair in having)


def _sharing(spec: ProblemSpec, size: str, axis: int, label: Label) -> Iterator[Axis]:
    """The same, with inputs of an axis that is a whole number of times shorter at either size."""
    if evaluate(label, spec.dims(REDUCED)) > _SHARED:
        return
    labels = dict.fromkeys(name for item in spec.inputs for name in item.shape)
    sizes = [spec.dims(REDUCED), spec.dims(size)]
    shorter = [name for name in labels if all(_goes_into(name, label, dims) for dims in sizes)]
    for item, name in product(_alike(spec, size, axis, label), shorter):
        yield replace(item, shared=_having(spec, name))


def _goes_into(part: Label, whole: Label, dims: Mapping[str, int]) -> bool:
    few, many = evaluate(part, dims), evaluate(whole, dims)
    return 1 < few < many and many % few == 0


def _having(spec: ProblemSpec, label: Label) -> tuple[tuple[int, int], ...]:
    return tuple((at, item.shape.index(label)) for at, item in enumerate(spec.inputs) if label in item.shape)


def _boxes(shape: Sequence[int], axes: Sequence[Axis]) -> Iterator[Box]:
    """What the last of the axes is tried out with: some parts, or each of its elements."""
    tried = axes[-1]
    for part in _PARTS:
        box = _box(shape, axes, part)
        places = [(at, at + 1) for at in range(shape[tried.axis])] if tried.shared else [box[tried.axis]]
        yield from ((*box[: tried.axis], place, *box[tried.axis + 1 :]) for place in places)


def _box(shape: Sequence[int], axes: Sequence[Axis], part: tuple[float, float]) -> Box:
    """All of the output but for these axes, of which a part, or one element where inputs are shared."""
    box = [(0, size) for size in shape]
    for item in axes:
        size = shape[item.axis]
        first = min(int(part[0] * size), size - 1)
        box[item.axis] = (first, first + 1 if item.shared else max(first + 1, int(part[1] * size)))
    return tuple(box)
