"""Chooses the output elements on which identity is tested: boxes within the tiles of the numeric stage.

An element costs as much as everything it depends on, which differs between problems by a factor of thousands.
So there are as many and as large boxes as a limit on the work allows, down to one short row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nki_sim.program.ir import Program
from remote.judge import tiles
from remote.judge.tiles import OutputTile
from targets.nki.judge.identity import demand_analysis
from targets.nki.judge.identity.demand_analysis import DemandedStep, NotEvaluableError

MAX_WORK = 4_000_000
"""Elements computed for one evaluation, weighted by their operations, where boxes can be made smaller."""

MAX_SMALLEST_WORK = 20_000_000
"""The same, where they cannot."""

_LADDER = ((1, (1, 8)), (1, (4, 16)), (2, (1, 8)), (2, (4, 16)), (4, (1, 8)), (4, (4, 16)), (4, (8, 64)))
"""Number of boxes per output and their shape in its last dimensions, in ascending order of work."""

_FREE_ROWS_RATIO = 1.2
"""More rows that cost no more than this factor are always taken: they share what a single row needs."""

_ENDS = ("anywhere", "last", "first")


def select_boxes(
    program: Program, drawn: Sequence[OutputTile], generator: np.random.Generator
) -> tuple[list[OutputTile], list[DemandedStep]]:
    """Return boxes within the drawn tiles, and the steps of the program that they need.

    If there are several boxes, one ends where the last tile of its output ends, and one begins where the
    first begins.

    Raises:
        NotEvaluableError: the program cannot be followed, or the smallest box takes too much work.
    """
    seed = int(generator.integers(1 << 62))

    def rung(number: int) -> tuple[list[OutputTile], list[DemandedStep]]:
        boxes = _draw_boxes(drawn, *_LADDER[number], np.random.default_rng(seed))
        return boxes, demand_analysis.find_demanded_steps(program, tiles.boxes_by_output(boxes))

    found = rung(0)
    least = demand_analysis.count_work(found[1])
    if least > MAX_SMALLEST_WORK:
        raise NotEvaluableError("a single row of its outputs takes too much work")
    low, high = 1, len(_LADDER)
    while low < high:
        middle = (low + high) // 2
        tried = rung(middle)
        if demand_analysis.count_work(tried[1]) > max(MAX_WORK, _FREE_ROWS_RATIO * least):
            high = middle
        else:
            low, found = middle + 1, tried
    return found


def _draw_boxes(
    drawn: Sequence[OutputTile], count: int, shape: tuple[int, int], generator: np.random.Generator
) -> list[OutputTile]:
    found = []
    for number in sorted({tile.output for tile in drawn}):
        own = [tile for tile in drawn if tile.output == number]
        for end in (*_ENDS[:count], *("anywhere" for _ in range(count - len(_ENDS)))):
            tile = own[int(generator.integers(len(own)))]
            tile = own[0] if end == "first" else own[min(1, len(own) - 1)] if end == "last" else tile
            found.append(_draw_box_inside(tile, shape, end, generator=generator))
    return found


def _draw_box_inside(
    tile: OutputTile, shape: tuple[int, int], end: str, *, generator: np.random.Generator
) -> OutputTile:
    """A box of this shape in a tile: at its beginning, at its end, or anywhere."""
    extent = ((1,) * len(tile.box) + shape)[-len(tile.box) :]
    box = []
    for (first, last), size in zip(tile.box, extent, strict=True):
        room = max(0, last - first - size)
        start = first + {"first": 0, "last": room}.get(end, int(generator.integers(room + 1)))
        box.append((start, min(last, start + size)))
    return OutputTile(tile.output, tuple(box))
