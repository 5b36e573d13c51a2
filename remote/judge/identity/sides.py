"""The two that are compared, a program and a reference, and on which elements of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from remote.judge.identity.domain import Array, Domain, Planes
from remote.judge.identity.floats import Asking
from remote.judge.tiles import Tile
from seeds.spec import InputSpec

Side = Callable[[Domain, Sequence[Tile]], list[Planes]]
"""Evaluates boxes of the outputs, each in its own shape."""


@dataclass(frozen=True)
class Sides:
    """What is compared; `seed` is the secret that symbols come from.

    `simulate` runs the program in float32 on the inputs that an evaluation of it asked for: flat, box after
    box, None where it cannot be run.
    """

    program: Side
    reference: Side
    simulate: Callable[[Asking], Array | None]
    boxes: Sequence[Tile]
    inputs: Sequence[InputSpec]
    seed: bytes

    @property
    def elements(self) -> int:
        """Elements of the outputs that are compared."""
        return sum(int(np.prod([end - first for first, end in box.box])) for box in self.boxes)

    def place(self, position: int) -> tuple[int, tuple[int, ...]]:
        """The output and the index in it of a compared element."""
        for tile in self.boxes:
            shape = tuple(end - first for first, end in tile.box)
            size = int(np.prod(shape))
            if position < size:
                inside = np.unravel_index(position, shape)
                starts = (first for first, _ in tile.box)
                return tile.output, tuple(a + int(b) for a, b in zip(starts, inside, strict=True))
            position -= size
        raise IndexError(position)


def flat(values: Sequence[Planes], component: int) -> Array:
    """One component of all elements, box after box."""
    return np.concatenate([value.arrays[component].reshape(-1) for value in values])
