"""Whether a program's outputs can depend on all the inputs that the reference's outputs depend on.

Elements of the inputs that the reference asks for are marked, some from each input. Where a mark must reach
an element of the reference's and cannot reach it in the program, the reference is evaluated once more with
that input moved: only what then moves the output counts, since sets do not see that terms cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remote.judge.identity.domain import Array, Planes
from remote.judge.identity.floats import Floats
from remote.judge.identity.marks import MOST, Marks
from remote.judge.identity.sides import Sides, flat

_SEEN = 4
"""Elements remembered of each access to an input."""

_TRIED = 4
"""Missing dependences that are looked at."""

_MOVES = 1e-7
"""What counts as a change of an output, relative to it."""


@dataclass(frozen=True, slots=True)
class Missing:
    """An element of the compared ones, by its position, and the (input, element) that it cannot depend on."""

    position: int
    input: int
    element: int


def missing(sides: Sides, generator: np.random.Generator) -> Missing | None:
    """Find an input that the reference's outputs depend on and the program's cannot depend on."""
    marked = _asked(sides, generator)
    must = flat(sides.reference(Marks(marked, "must"), sides.boxes), 0)
    may = flat(sides.program(Marks(marked, "may"), sides.boxes), 0)
    lacking = must & ~may
    for position in np.flatnonzero(lacking)[:_TRIED].tolist():
        bits = int(lacking[position])
        found = Missing(position, *marked[(bits & -bits).bit_length() - 1])
        if _depends(sides, found):
            return found
    return None


def _depends(sides: Sides, found: Missing) -> bool:
    """Whether moving the input moves the reference's output."""
    before, after = (
        flat(sides.reference(Floats(sides.seed, sides.inputs, moved=moved), sides.boxes), 0)[found.position]
        for moved in (None, (found.input, found.element))
    )
    return bool(abs(after - before) > _MOVES * abs(before))


def _asked(sides: Sides, generator: np.random.Generator) -> list[tuple[int, int]]:
    """Elements of the inputs that the reference reads for the boxes, about as many of each input."""
    domain = _Asking(sides.seed, sides.inputs, generator)
    sides.reference(domain, sides.boxes)
    share = MOST // max(1, len(domain.seen))
    found = []
    for number, elements in domain.seen.items():
        chosen = generator.permutation(np.unique(np.concatenate(elements)))[:share]
        found += [(number, element) for element in chosen.tolist()]
    return found


class _Asking(Floats):
    """Remembers some of the elements of each access to an input."""

    def __init__(self, seed: bytes, inputs: Sequence[object], generator: np.random.Generator) -> None:
        super().__init__(seed, inputs)
        self.seen: dict[int, list[Array]] = {}
        self._generator = generator

    def symbols(self, number: int, index: Array) -> Planes:
        """Return elements of an input."""
        places = np.asarray(index).reshape(-1)
        if places.size:
            self.seen.setdefault(number, []).append(self._generator.choice(places, _SEEN))
        return super().symbols(number, index)
