"""Evaluates a reference on tiles of its outputs, from parts of its inputs where that gives the same result.

Many axes separate the problem: rows of a matrix product need only their rows of the left input. Which axes of
which inputs belong to an axis of an output is not declared but tried at the reduced size. An axis counts if
the reference, given parts of these inputs, gives exactly that part of its output.

An input's axis may be shorter: neighbouring heads of queries share one head of keys. Then one element of the
output's axis needs one element of the input's. Such axes are tried at each of their elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.judge.rounding_noise import run_in_float32, run_in_narrow_type, run_with_mx_products
from remote.judge.tiles import Box, OutputTile, norm_floors, worst_tile_error
from seeds.expressions import evaluate_expression
from seeds.faults import REDUCED
from seeds.inputs import draw_inputs, dtype_of
from seeds.spec import ProblemSpec

Array = NDArray[Any]
Reference = Callable[..., Any]
Label = str | int
"""The size of an axis as the specification writes it; axes with the same label are cut alike."""

_SMALL = 1 << 22
"""Outputs of up to this many elements are evaluated whole, once for all tiles."""

_TRIAL_PARTS = ((0.3, 0.6), (0.0, 0.1), (0.9, 1.0))
"""The parts of an axis that are tried."""

_MAX_SHARED_LENGTH = 16
"""Longest axis, at the reduced size, whose inputs may be shared: each element is tried."""

_NARROW_BYTES = 2
_SAME_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class SeparableAxis:
    """An axis of an output, and the (input, axis) pairs that can be cut with it.

    `shared` axes are shorter: one element belongs to several neighbours on the output's axis. If there are
    any, only single elements can be cut.
    """

    axis: int
    inputs: tuple[tuple[int, int], ...]
    shared: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class TiledReference:
    """A reference that evaluates tiles of its outputs; `axes` holds the separable axes of each output."""

    reference: Reference
    spec: ProblemSpec
    axes: Sequence[Sequence[SeparableAxis]]

    def evaluate(self, inputs: Sequence[Array], tiles: Sequence[OutputTile]) -> list[Array]:
        """Return the tiles, in the outputs' types."""
        whole: list[Array] | None = None
        found = []
        for tile in tiles:
            if self.axes[tile.output]:
                found.append(self.evaluate_tile(inputs, tile))
                continue
            whole = whole or as_outputs(self.reference(*inputs), self.spec)
            found.append(whole[tile.output][tile.index].copy())
        return found

    def reordering_error(
        self, inputs: Sequence[Array], tiles: Sequence[OutputTile], truth: Sequence[Array]
    ) -> float:
        """Return the error of float32 with sums in shuffled order, on the worst tile.

        It is infinite where the truth is not finite, or zero throughout an output: nothing can be compared
        then.
        """
        bottom = norm_floors(tiles, truth)
        if not all(bottom.values()) or not all(np.isfinite(item.astype(np.float64)).all() for item in truth):
            return inf
        found = replace(self, reference=_in_shuffled_order(self.reference)).evaluate(inputs, tiles)
        return worst_tile_error(found, truth, bottom, range(len(tiles)))

    def narrow_type_error(
        self, inputs: Sequence[Array], tiles: Sequence[OutputTile], truth: Sequence[Array]
    ) -> float:
        """Return the worst tile's error when everything is computed in the inputs' type of two bytes.

        A large error means that the answer depends on chance, for example where the reference takes the
        largest of nearly equal numbers. In float16 it may not be finite. 0 where all inputs are wider.
        """
        narrow = [array.dtype for array in inputs if array.dtype.itemsize == _NARROW_BYTES]
        floats = [dtype for dtype in narrow if dtype.kind not in "iub"]
        if not floats:
            return 0.0
        found = replace(self, reference=_in_narrow_type(self.reference, floats[0])).evaluate(inputs, tiles)
        return worst_tile_error(found, truth, norm_floors(tiles, truth), range(len(tiles)))

    def mx_error(self, inputs: Sequence[Array], tiles: Sequence[OutputTile], truth: Sequence[Array]) -> float:
        """Return the worst tile's error when operands of products are rounded to MX types.

        0 where the problem does not allow that. A large error means that products cancel.
        """
        if not self.spec.mx:
            return 0.0
        found = replace(self, reference=_with_mx_products(self.reference)).evaluate(inputs, tiles)
        return worst_tile_error(found, truth, norm_floors(tiles, truth), range(len(tiles)))

    def evaluate_tile(self, inputs: Sequence[Array], tile: OutputTile) -> Array:
        """Return one tile, computed from the parts of the inputs that belong to it."""
        parts, inside = list(inputs), list(tile.index)
        for item in self._cuttable_axes(tile):
            first, end = tile.box[item.axis]
            inside[item.axis] = slice(0, end - first)
            for number, axis in item.inputs:
                parts[number] = _slice_axis(parts[number], axis, first, end=end)
            for number, axis in item.shared:
                at = first * inputs[number].shape[axis] // _axis_extent(item, inputs)
                parts[number] = _slice_axis(parts[number], axis, at, end=at + 1)
        return as_outputs(self.reference(*parts), self.spec)[tile.output][tuple(inside)].copy()

    def _cuttable_axes(self, tile: OutputTile) -> Sequence[SeparableAxis]:
        """All axes; those with shared inputs only if the box has a single element along them."""
        axes = self.axes[tile.output]
        single = all(np.diff(tile.box[item.axis]) == 1 for item in axes if item.shared)
        return axes if single else [item for item in axes if not item.shared]

    def reproduces_tile(self, inputs: Sequence[Array], tile: OutputTile, expected: Array) -> bool:
        """Whether the parts of the inputs give this tile."""
        try:
            found = self.evaluate_tile(inputs, tile)
        except Exception:  # noqa: BLE001  whatever a reference says to inputs that do not fit together
            return False
        if found.shape != expected.shape:
            return False
        wrong = np.linalg.norm((found.astype(np.float64) - expected).reshape(-1))
        return bool(wrong <= _SAME_TOLERANCE * np.linalg.norm(expected.astype(np.float64).reshape(-1)))


def make_tiled_reference(reference: Reference, spec: ProblemSpec, size: str) -> TiledReference:
    """Find the axes along which the outputs that are large at `size` separate."""
    small = [prod(output.resolve_shape(spec.dims(size))) <= _SMALL for output in spec.outputs]
    none = TiledReference(reference, spec, [() for _ in small])
    if all(small) or REDUCED not in spec.sizes:
        return none
    inputs = draw_inputs(spec, REDUCED, spec.seeds[0])
    truth = as_outputs(reference(*inputs), spec)
    axes = [
        () if is_small else _find_axes(none, inputs, number, truth=truth[number], size=size)
        for number, is_small in enumerate(small)
    ]
    return replace(none, axes=axes)


def as_outputs(found: Any, spec: ProblemSpec) -> list[Array]:
    """Return a reference's result as arrays of the outputs' types.

    Raises:
        ValueError: it is not one array for each output.
    """
    arrays = found if isinstance(found, tuple) else (found,)
    if found is None:
        raise ValueError("the reference returns nothing; end it with `return`")
    if len(arrays) != len(spec.outputs):
        named = ", ".join(output.name for output in spec.outputs)
        wanted = f"problem.toml has {len(spec.outputs)} outputs: {named}"
        raise ValueError(f"the reference returns {len(arrays)} arrays, and {wanted}")
    with np.errstate(all="ignore"):
        return [
            np.asarray(array).astype(dtype_of(output.dtype), copy=False)
            for array, output in zip(arrays, spec.outputs, strict=True)
        ]


def _in_shuffled_order(reference: Reference) -> Reference:
    return lambda *arrays: run_in_float32(reference, arrays, seed=1)


def _in_narrow_type(reference: Reference, dtype: Any) -> Reference:
    return lambda *arrays: run_in_narrow_type(reference, arrays, dtype)


def _with_mx_products(reference: Reference) -> Reference:
    return lambda *arrays: run_with_mx_products(reference, arrays)


def _slice_axis(array: Array, axis: int, first: int, *, end: int) -> Array:
    return array[(slice(None),) * axis + (slice(first, end),)]


def _axis_extent(item: SeparableAxis, inputs: Sequence[Array]) -> int:
    """The length of the output's axis: that of the inputs that are cut alike."""
    number, axis = item.inputs[0]
    extent: int = inputs[number].shape[axis]
    return extent


def _find_axes(
    trial: TiledReference, inputs: Sequence[Array], number: int, *, truth: Array, size: str
) -> Sequence[SeparableAxis]:
    found: list[SeparableAxis] = []
    labels = trial.spec.outputs[number].shape
    # Axes with shared inputs come last, because the others are also cut without them.
    for candidates in (_equal_axis_candidates, _shared_axis_candidates):
        for axis, label in enumerate(labels):
            if labels.count(label) > 1 or truth.shape[axis] == 1 or axis in {item.axis for item in found}:
                continue
            for candidate in candidates(trial.spec, size, axis, label):
                if _separates_along(trial, inputs, number, truth=truth, axes=[*found, candidate]):
                    found.append(candidate)
                    break
    return found


def _separates_along(
    trial: TiledReference,
    inputs: Sequence[Array],
    number: int,
    *,
    truth: Array,
    axes: Sequence[SeparableAxis],
) -> bool:
    """Whether an output separates along these axes, the last of which is being tried."""
    attempt = replace(trial, axes=[axes if at == number else () for at in range(len(trial.axes))])
    tiles = (OutputTile(number, box) for box in _trial_boxes(truth.shape, axes))
    return all(attempt.reproduces_tile(inputs, tile, truth[tile.index]) for tile in tiles)


def _equal_axis_candidates(spec: ProblemSpec, _: str, axis: int, label: Label) -> Iterator[SeparableAxis]:
    """All inputs with this axis together, then each alone: rows of queries are not those of keys."""
    having = _input_axes_labelled(spec, label)
    if having:
        yield SeparableAxis(axis, having)
    if len(having) > 1:
        yield from (SeparableAxis(axis, (pair,)) for pair in having)


def _shared_axis_candidates(spec: ProblemSpec, size: str, axis: int, label: Label) -> Iterator[SeparableAxis]:
    """The same, including inputs whose axis is shorter by the same whole factor at both sizes."""
    if evaluate_expression(label, spec.dims(REDUCED)) > _MAX_SHARED_LENGTH:
        return
    labels = dict.fromkeys(name for item in spec.inputs for name in item.shape)
    sizes = [spec.dims(REDUCED), spec.dims(size)]
    shorter = [name for name in labels if all(_is_divisor(name, label, dims) for dims in sizes)]
    for item, name in product(_equal_axis_candidates(spec, size, axis, label), shorter):
        yield replace(item, shared=_input_axes_labelled(spec, name))


def _is_divisor(part: Label, whole: Label, dims: Mapping[str, int]) -> bool:
    few, many = evaluate_expression(part, dims), evaluate_expression(whole, dims)
    return 1 < few < many and many % few == 0


def _input_axes_labelled(spec: ProblemSpec, label: Label) -> tuple[tuple[int, int], ...]:
    return tuple((at, item.shape.index(label)) for at, item in enumerate(spec.inputs) if label in item.shape)


def _trial_boxes(shape: Sequence[int], axes: Sequence[SeparableAxis]) -> Iterator[Box]:
    """The boxes to try for the last of the axes: some parts, or each of its elements."""
    tried = axes[-1]
    for part in _TRIAL_PARTS:
        box = _trial_box(shape, axes, part)
        places = [(at, at + 1) for at in range(shape[tried.axis])] if tried.shared else [box[tried.axis]]
        yield from ((*box[: tried.axis], place, *box[tried.axis + 1 :]) for place in places)


def _trial_box(shape: Sequence[int], axes: Sequence[SeparableAxis], part: tuple[float, float]) -> Box:
    """The whole output except along these axes: a part of each, or one element where inputs are shared."""
    box = [(0, size) for size in shape]
    for item in axes:
        size = shape[item.axis]
        first = min(int(part[0] * size), size - 1)
        box[item.axis] = (first, first + 1 if item.shared else max(first + 1, int(part[1] * size)))
    return tuple(box)
