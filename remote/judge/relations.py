"""Metamorphic relations: what must hold between a kernel's own outputs, whatever its inputs are.

No reference is needed. All of a problem's relations that change inputs are applied one after the other, with
orders and shifts drawn from the bytes of the program. The outputs for the changed inputs then follow from
those for known inputs. Two more runs test linearity where the problem declares it. This catches kernels that
recognise the inputs they are judged on, and are right only on those.

Axes are reordered by i -> (turn - i) mod n, so parts of outputs come from few parts of unchanged ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import inf, isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.judge.tiles import MAX_WHOLE_ELEMENTS, Box
from seeds.relations import ArrayChange, parse_change
from seeds.spec import ProblemSpec, RelationSpec

Array = NDArray[Any]
RunFunction = Callable[[Sequence[Array], Mapping[int, Sequence[Box]]], Sequence[Array]]
"""Computes the outputs for some inputs; only the boxes, given by output, must be right."""

RELATION_FACTOR = 4.0
"""How many times its tolerance a kernel may be off: each side of a relation has its own error."""

SHIFT_RATIO = 0.25
"""The spread of added shifts, relative to the input's: other sets test larger inputs."""

_SHAPE = (64, 256)
_SEEDS = 1 << 31


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A box of an output, and along each axis which elements of the unchanged output it must equal."""

    output: int
    box: Box
    sources: tuple[Array, ...]
    factor: float = 1.0

    def found_values(self, outputs: Sequence[Array]) -> Array:
        """Return the box, in float64."""
        return outputs[self.output][tuple(slice(*ends) for ends in self.box)].astype(np.float64)

    def expected_values(self, unchanged: Sequence[Array]) -> Array:
        """Return what the box must equal, in float64."""
        return unchanged[self.output][np.ix_(*self.sources)].astype(np.float64) * self.factor

    def needed_boxes(self) -> Iterator[Box]:
        """The boxes of the unchanged output that are needed for the expected values."""
        return product(*(list(_contiguous_runs(places)) for places in self.sources))


@dataclass(frozen=True, slots=True)
class RelationStep:
    """One relation that changes inputs, with its random choices."""

    relation: RelationSpec
    turn: int
    seed: int

    def change_inputs(self, spec: ProblemSpec, arrays: Sequence[Array]) -> list[Array]:
        """Return the changed inputs."""
        found = list(arrays)
        for number, item in enumerate(spec.inputs):
            if item.name in self.relation.inputs:
                made = parse_change(self.relation.inputs[item.name])
                found[number] = self._change_array(made, found[number], number, scale=item.scale)
        return found

    def _change_array(self, made: ArrayChange, array: Array, number: int, *, scale: float) -> Array:
        if made.kind == "permute":
            return _turn_axis(array, made.axis, self.turn)
        if made.kind == "shift":
            shape = [1 if axis == made.axis else size for axis, size in enumerate(array.shape)]
            generator = np.random.default_rng([self.seed, number])
            by = generator.standard_normal(shape, dtype=np.float32) * np.float32(SHIFT_RATIO * scale)
            shifted: Array = (array + by).astype(array.dtype)
            return shifted
        scaled: Array = array * array.dtype.type(made.factor)
        return scaled

    def undo_step(self, name: str, part: OutputPart, shape: Sequence[int]) -> OutputPart:
        """Return the part in terms of the elements of the output before this step."""
        if name not in self.relation.outputs:
            return part
        made, sources = parse_change(self.relation.outputs[name]), list(part.sources)
        if made.kind == "permute":
            sources[made.axis] = (self.turn - sources[made.axis]) % shape[made.axis]
        return OutputPart(part.output, part.box, tuple(sources), part.factor * made.factor)


@dataclass(frozen=True)
class RelationTrial:
    """A kernel, or a reference, with inputs on which it is known to be right."""

    spec: ProblemSpec
    shapes: Sequence[tuple[int, ...]]
    inputs: Sequence[Array]
    run: RunFunction
    boxes: Sequence[Box]

    def changed_error(self, steps: Sequence[RelationStep]) -> float:
        """Return how far outputs are from what these relations, one after the other, predict."""
        parts = [self._make_part(steps, output) for output in range(len(self.boxes))]
        unchanged = self.run(self.inputs, {part.output: list(part.needed_boxes()) for part in parts})
        expected = [part.expected_values(unchanged) for part in parts]
        del unchanged
        inputs = list(self.inputs)
        for step in steps:
            inputs = step.change_inputs(self.spec, inputs)
        outputs = self.run(inputs, self._wanted_boxes())
        return _worst_error(
            (part.found_values(outputs), truth) for part, truth in zip(parts, expected, strict=True)
        )

    def linearity_error(self, names: Iterable[str], turn: int) -> float:
        """Return how far f(x + y) is from f(x) + f(y), where y is x in another order."""
        right, both = list(self.inputs), list(self.inputs)
        for number, item in enumerate(self.spec.inputs):
            if item.name in names:
                flat = self.inputs[number].reshape(-1)
                right[number] = _turn_axis(flat, 0, turn).reshape(self.inputs[number].shape)
                both[number] = self.inputs[number] + right[number]
        other, total = self._run_boxes(right), self._run_boxes(both)
        return _worst_error(
            (found, a + b) for found, a, b in zip(total, self._unchanged_values, other, strict=True)
        )

    @cached_property
    def _unchanged_values(self) -> list[Array]:
        """The boxes for the unchanged inputs."""
        return self._run_boxes(self.inputs)

    def _run_boxes(self, inputs: Sequence[Array]) -> list[Array]:
        outputs = self.run(inputs, self._wanted_boxes())
        return [self._make_part((), output).found_values(outputs) for output in range(len(self.boxes))]

    def _wanted_boxes(self) -> dict[int, list[Box]]:
        return {output: [box] for output, box in enumerate(self.boxes)}

    def _make_part(self, steps: Sequence[RelationStep], output: int) -> OutputPart:
        box = self.boxes[output]
        part = OutputPart(output, box, tuple(np.arange(first, end) for first, end in box))
        for step in reversed(steps):
            part = step.undo_step(self.spec.outputs[output].name, part, self.shapes[output])
        return part


def find_broken_relation(
    spec: ProblemSpec, size: str, inputs: Sequence[Array], run: RunFunction, *, tolerance: float, key: bytes
) -> str | None:
    """Return a message on the relation that is off by `RELATION_FACTOR` tolerances or more; None if all hold.

    `inputs` are any on which the outputs are right; random choices depend on `key`.
    """
    generator = np.random.default_rng(list(hashlib.sha256(key).digest()))
    shapes = [output.resolve_shape(spec.dims(size)) for output in spec.outputs]
    trial = RelationTrial(spec, shapes, inputs, run, [_draw_box(shape, generator) for shape in shapes])
    limit = RELATION_FACTOR * tolerance
    steps = [
        RelationStep(relation, *generator.integers(_SEEDS, size=2).tolist())
        for relation in spec.relations
        if relation.inputs
    ]
    if steps and (error := trial.changed_error(steps)) >= limit:
        # The kernel is rejected in any case; more runs are worth their cost to say which relation broke.
        each = ((step.relation.name, trial.changed_error([step])) for step in steps)
        name, error = next((pair for pair in each if pair[1] >= limit), ("all after each other", error))
        return _describe_failure(name, error, limit)
    for relation in spec.relations:
        if relation.linear:
            error = trial.linearity_error(relation.linear, int(generator.integers(_SEEDS)))
            if error >= limit:
                return _describe_failure(relation.name, error, limit)
    return None


def _describe_failure(name: str, error: float, limit: float) -> str:
    return f"relation {name!r} does not hold: relative L2 error {error:.3g}, it must be below {limit:.3g}"


def _draw_box(shape: tuple[int, ...], generator: np.random.Generator) -> Box:
    """Return small outputs whole, for others a tile at a random place."""
    extent = shape if prod(shape) <= MAX_WHOLE_ELEMENTS else ((1,) * len(shape) + _SHAPE)[-len(shape) :]
    extent = tuple(min(size, part) for size, part in zip(shape, extent, strict=True))
    starts = generator.integers(np.subtract(shape, extent) + 1)
    return tuple((int(first), int(first) + size) for first, size in zip(starts, extent, strict=True))


def _turn_axis(array: Array, axis: int, turn: int) -> Array:
    """Move element i along the axis to (turn - i) mod n, with two copies."""
    low, high = np.split(array, [turn % array.shape[axis] + 1], axis)
    return np.concatenate([np.flip(low, axis), np.flip(high, axis)], axis)


def _contiguous_runs(places: Array) -> Iterator[tuple[int, int]]:
    """The intervals that some positions along an axis form."""
    ordered = np.sort(places)
    for run in np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1):
        yield int(run[0]), int(run[-1]) + 1


def _worst_error(pairs: Iterable[tuple[Array, Array]]) -> float:
    """The largest relative L2 error; infinite where something is not finite, or should be zero and is not."""
    return max(_relative_error(found, truth) for found, truth in pairs)


def _relative_error(found: Array, truth: Array) -> float:
    with np.errstate(all="ignore"):
        wrong = float(np.linalg.norm((found - truth).reshape(-1)))
        scale = float(np.linalg.norm(truth.reshape(-1)))
    if not isfinite(wrong):
        return inf
    return wrong / scale if scale else (inf if wrong else 0.0)
