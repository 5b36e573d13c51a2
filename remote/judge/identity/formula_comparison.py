"""The two sides that are compared, a program and a reference, and the compared output elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from remote.judge.identity.domain import Array, Planes, ValueDomain
from remote.judge.identity.floats import TrackingFloatDomain
from remote.judge.tiles import OutputTile
from seeds.spec import InputSpec

FormulaEvaluator = Callable[[ValueDomain, Sequence[OutputTile]], list[Planes]]
"""Evaluates boxes of the outputs, each in its own shape."""


@dataclass(frozen=True)
class FormulaComparison:
    """What is compared; `seed` is the secret that symbols come from.

    `simulate` runs the program in float32 on the inputs that one of its evaluations requested. It returns the
    compared elements flat, box after box, or None if the program cannot be run.
    """

    program: FormulaEvaluator
    reference: FormulaEvaluator
    simulate: Callable[[TrackingFloatDomain], Array | None]
    boxes: Sequence[OutputTile]
    inputs: Sequence[InputSpec]
    seed: bytes

    @property
    def element_count(self) -> int:
        """Number of output elements that are compared."""
        return sum(int(np.prod([end - first for first, end in box.box])) for box in self.boxes)

    def locate_element(self, position: int) -> tuple[int, tuple[int, ...]]:
        """Return the output of a compared element, and its index there."""
        for tile in self.boxes:
            shape = tuple(end - first for first, end in tile.box)
            size = int(np.prod(shape))
            if position < size:
                inside = np.unravel_index(position, shape)
                starts = (first for first, _ in tile.box)
                return tile.output, tuple(a + int(b) for a, b in zip(starts, inside, strict=True))
            position -= size
        raise IndexError(position)


def flatten_component(values: Sequence[Planes], component: int) -> Array:
    """One component of all elements, box after box."""
    return np.concatenate([value.arrays[component].reshape(-1) for value in values])
