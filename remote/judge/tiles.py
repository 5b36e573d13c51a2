"""Chooses the parts of outputs that are kept of the reference and compared for a candidate.

For a large output a pool of tiles is kept, drawn once per problem and size by a secret of the installation; a
small output is one tile. The bytes of a candidate's program choose its tiles from the pool; the first and the
last tile are always included. So a verdict repeats within an installation, and the author of a kernel does
not know where it is compared, although this code is public.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seeds.spec import ProblemSpec

Array = NDArray[Any]
Box = tuple[tuple[int, int], ...]
"""(first, end) along each dimension of an output."""

MAX_WHOLE_ELEMENTS = 1 << 20
"""Outputs of up to this many elements are one tile."""

POOL_SIZE, JUDGED_TILES = 12, 4
"""Tiles kept of each larger output, and tiles that one candidate is judged on."""

_SHAPE = (64, 256)


@dataclass(frozen=True, slots=True)
class OutputTile:
    """A box of an output, by the output's position."""

    output: int
    box: Box

    @property
    def index(self) -> tuple[slice, ...]:
        return tuple(slice(first, end) for first, end in self.box)


def make_tile_pool(spec: ProblemSpec, size: str, secret: str) -> list[OutputTile]:
    """Return the tiles to keep of all outputs; each output's first and last tile come first.

    Their number and shapes are the same for every `secret`, which decides where the others lie.
    """
    dims = spec.dims(size)
    generator = _make_generator(f"{spec.name} {size} {secret}".encode())
    return [
        OutputTile(number, box)
        for number, output in enumerate(spec.outputs)
        for box in _draw_boxes(output.resolve_shape(dims), generator)
    ]


def choose_tiles(tiles: Sequence[OutputTile], program: bytes) -> list[int]:
    """Return the positions of the tiles that a program is judged on."""
    generator = _make_generator(program)
    found: list[int] = []
    for number in sorted({tile.output for tile in tiles}):
        own = [at for at, tile in enumerate(tiles) if tile.output == number]
        rest = generator.permutation(own[2:])[: JUDGED_TILES - 2]
        found += [*own[:2], *(int(at) for at in rest)]
    return found


def boxes_by_output(tiles: Sequence[OutputTile]) -> dict[int, list[Box]]:
    """Return the boxes by output, in the form in which programs take slices."""
    found: dict[int, list[Box]] = {}
    for tile in tiles:
        found.setdefault(tile.output, []).append(tile.box)
    return found


def worst_tile_error(
    found: Sequence[Array], truth: Sequence[Array], floor: Mapping[int, float], at: Sequence[int]
) -> float:
    """Return the largest relative L2 error of any tile, infinite when an element is not finite.

    `floor` gives, per tile, the norm to use where the truth's norm is zero.
    """
    return max(
        _relative_error(one, other, floor[number])
        for one, other, number in zip(found, truth, at, strict=True)
    )


def norm_floors(tiles: Sequence[OutputTile], truth: Sequence[Array]) -> dict[int, float]:
    """Return per tile the norm that it would have if its elements were as large as those of its output."""
    squares: dict[int, float] = {}
    counts: dict[int, int] = {}
    for tile, array in zip(tiles, truth, strict=True):
        squares[tile.output] = squares.get(tile.output, 0.0) + _l2_norm(array) ** 2
        counts[tile.output] = counts.get(tile.output, 0) + array.size
    return {
        at: sqrt(squares[tile.output] / counts[tile.output] * array.size)
        for at, (tile, array) in enumerate(zip(tiles, truth, strict=True))
    }


def _relative_error(found: Array, truth: Array, floor: float) -> float:
    with np.errstate(all="ignore"):
        wrong = _l2_norm(found.astype(np.float64) - truth.astype(np.float64))
    scale = _l2_norm(truth) or floor
    return wrong / scale if isfinite(wrong) and scale else inf


def _l2_norm(array: Array) -> float:
    return float(np.linalg.norm(array.astype(np.float64).reshape(-1)))


def _draw_boxes(shape: tuple[int, ...], generator: np.random.Generator) -> list[Box]:
    if prod(shape) <= MAX_WHOLE_ELEMENTS:
        return [tuple((0, size) for size in shape)]
    extent = ((1,) * len(shape) + _SHAPE)[-len(shape) :]
    extent = tuple(min(size, part) for size, part in zip(shape, extent, strict=True))
    room = np.subtract(shape, extent)
    starts = [np.zeros_like(room), room, *generator.integers(room + 1, size=(POOL_SIZE - 2, len(shape)))]
    return [tuple((int(a), int(a) + b) for a, b in zip(start, extent, strict=True)) for start in starts]


def _make_generator(data: bytes) -> np.random.Generator:
    return np.random.default_rng(list(hashlib.sha256(data).digest()))
