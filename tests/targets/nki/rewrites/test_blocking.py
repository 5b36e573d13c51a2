"""Which iterations touch the same elements: what is said to stay apart never meets in any two iterations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from targets.nki.rewrites.blocking import _never_congruent
from targets.nki.rewrites.values import DimensionRange, make_affine

LOOPS = ("around", "loop", "inner", "innermost")
FACTORS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 63, 64, -1, -2)


def draw_window(random: Random) -> DimensionRange:
    terms = {name: random.choice(FACTORS) for name in LOOPS if random.random() < 0.7}
    start = make_affine(random.choice((0, 1, 2, 5, 8, 64)), terms)
    return DimensionRange(start, random.choice((1, 1, 2, 4)), random.choice((1, 1, 2)))


def list_starts(window: DimensionRange, trips: dict[str, int], at: dict[str, int]) -> Iterator[int]:
    """Where a window begins in an iteration of the outer loops, in all iterations of the others."""
    for numbers in product(*(range(trips[name]) for name in LOOPS[2:])):
        iteration = at | dict(zip(LOOPS[2:], numbers, strict=True))
        yield window.start.const + sum(factor * iteration[name] for name, factor in window.start.terms)


def ever_meet(first: DimensionRange, second: DimensionRange, trips: dict[str, int]) -> bool:
    """Whether windows of different iterations of `loop` meet, at the same iteration of the loop around it."""
    count = trips["loop"]
    return any(
        one < other + second.extent and other < one + first.extent
        for around, i, j in product(range(trips["around"]), range(count), range(count))
        if i != j
        for one in list_starts(first, trips, {"around": around, "loop": i})
        for other in list_starts(second, trips, {"around": around, "loop": j})
    )


def test_windows_that_stay_apart_never_meet():
    random, proven = Random(1), 0
    for _ in range(1500):
        trips = {name: random.randint(1, 4) for name in LOOPS}
        first, second = draw_window(random), draw_window(random)
        if random.random() < 0.6:
            second = DimensionRange(
                first.start + make_affine(random.choice((0, 1, 8))), first.size, first.step
            )
        kernel = cast("Any", SimpleNamespace(trips=trips))
        loop = cast("Any", SimpleNamespace(id="loop", trips=trips["loop"]))
        if _never_congruent(kernel, loop, first, second, around=frozenset({"around"})):
            proven += trips["loop"] > 1
            assert not ever_meet(first, second, trips)
    assert proven > 300


def test_a_block_of_rows_has_tiles_of_its_own_in_all_blocks_of_columns():
    trips = {"around": 1, "loop": 4, "inner": 4, "innermost": 16}
    kernel = cast("Any", SimpleNamespace(trips=trips))
    loop = cast("Any", SimpleNamespace(id="loop", trips=4))

    def stay_apart(apart: int) -> bool:
        start = make_affine(0, {"loop": 16, "inner": apart, "innermost": 1})
        window = DimensionRange(start, 1)
        return _never_congruent(kernel, loop, window, window, around=frozenset())

    assert stay_apart(64)
    assert not stay_apart(48)
