"""Tiles that kernels place themselves: bounds, alignment, sharing, what sharing orders and what it breaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.timing import tile_placement
from nki_sim.timing.dependences import find_dependences
from nki_sim.timing.schedule import schedule
from tests.support.sweeps import scale_examples

TRN2 = targets.load("trn2")
X = ArraySpec((128, 512), "float32")


def kernel(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return f"""
def tile(columns, address, rows=128, buffer=nl.sbuf, dtype=nl.float32):
    return nl.ndarray((rows, columns), dtype=dtype, buffer=buffer, address=address)

@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
{lines}
    return out
"""


def found(tracing: Any, body: str) -> list[tuple[str, int | str]]:
    return [(item.code, item.value) for item in checks.check(tracing(kernel(body), X), TRN2)]


END = TRN2.sbuf_usable_bytes


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        (f"4, (0, {END - 16})", []),
        (f"4, (0, {END - 12})", [("placement_bounds", END + 4)]),
        ("4, (64, 0), 64", []),
        ("4, (96, 0), 64", [("placement_bounds", 160), ("placement_alignment", 96)]),
        ("4, (32, 0), 33", [("placement_alignment", 32)]),
        ("4, (32, 0), 32", []),
        ("4, (0, 6)", [("placement_alignment", 6)]),
        ("4, (0, 6), 128, nl.sbuf, nl.bfloat16", []),
        ("4, (0, 2048), 128, nl.psum", []),
        ("4, (0, 1024), 128, nl.psum", [("placement_alignment", 1024)]),
        ("512, (0, 14336), 128, nl.psum", []),
        ("513, (0, 14336), 128, nl.psum", [("placement_bounds", 16388)]),
    ],
)
def test_places_lie_inside_and_begin_where_they_may(place: str, wanted: list[Any], tracing: Any) -> None:
    assert found(tracing, f"t = tile({place})\nnisa.memset(t, 0.0)") == wanted


@pytest.mark.parametrize(("buffer", "mixed"), [("sbuf", True), ("psum", False)])
def test_a_memory_is_allocated_in_one_way(buffer: str, mixed: bool, tracing: Any) -> None:
    """By memory: placing in SBUF leaves PSUM to the compiler."""
    body = f"""
a = tile(8, (0, 0))
b = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.{buffer})
nisa.memset(a, 0.0)
nisa.memset(b, 0.0)
"""
    assert [code for code, _ in found(tracing, body)] == (["mixed_allocation"] if mixed else [])


TWO = """
a = tile(8, (0, 0))
b = tile(8, (0, {place}))
c = tile(8, (0, 1024))
nisa.memset(a, 1.0)
{first}
{second}
"""
WRITE, READ = "nisa.memset(b{part}, 2.0)", "nisa.tensor_copy(c, a)"


@pytest.mark.parametrize(
    ("place", "part", "late", "wrong"),
    [(0, "", True, True), (0, "", False, False), (32, "", True, False), (28, "", True, True),
     (28, "[:, 1:8]", True, False)],
)  # fmt: skip
def test_a_tile_is_not_read_after_another_was_written_over_it(
    place: int, part: str, late: bool, wrong: bool, tracing: Any
) -> None:
    write = WRITE.format(part=part)
    first, second = (write, READ) if late else (READ, write)
    body = TWO.format(place=place, first=first, second=second)
    codes = [item.code for item in checks.check(tracing(kernel(body), X), TRN2)]
    assert codes == (["overwritten_by_overlap"] if wrong else [])


def test_a_tile_that_is_written_again_may_be_read_again(tracing: Any) -> None:
    body = TWO.format(place=0, first="nisa.memset(b, 2.0)\nnisa.memset(a, 3.0)", second=READ)
    assert found(tracing, body) == []


def test_sharing_a_place_orders_what_goes_through_it(tracing: Any) -> None:
    """The second tile waits for the readers of the first; tiles side by side wait for nothing."""
    for place, waits in ((0, {2}), (32, set())):
        program = tracing(kernel(TWO.format(place=place, first=READ, second="nisa.memset(b, 2.0)")), X)
        assert waits <= set(find_dependences(program).predecessors[3])
        assert bool(find_dependences(program).predecessors[3]) == bool(waits)


def test_placed_tiles_take_no_room_from_the_pool(tracing: Any) -> None:
    """More bytes than there are, one after the other in one place: no violation, and a schedule."""
    body = """
for i in range(4):
    t = tile(50000, (0, 0))
    nisa.memset(t, 0.0)
"""
    program = tracing(kernel(body), X)
    assert checks.check(program, TRN2) == []
    timeline = schedule(program, TRN2)
    starts, ends = timeline.start_ns[1:], timeline.end_ns[1:]
    assert np.all(starts[1:] >= ends[:-1])


TILES = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 4), st.sampled_from([0, 32])), min_size=2, max_size=5
)
STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8)


@settings(max_examples=scale_examples(60))
@given(tiles=TILES, steps=STEPS)
def test_overwriting_is_what_an_account_byte_by_byte_says(tiles: Any, steps: Any, tracing: Any) -> None:
    """Against a dictionary of words: every tile is written once, then some are copied onto others."""
    lines = [f"t{i} = tile({size}, ({part}, {4 * at}), 32)" for i, (at, size, part) in enumerate(tiles)]
    lines += [f"nisa.memset(t{i}, 0.0)" for i in range(len(tiles))]
    steps = [(a % len(tiles), b % len(tiles)) for a, b in steps]
    lines += [f"nisa.tensor_copy(t{a}[:, 0:1], t{b}[:, 0:1])" for a, b in steps]
    owner: dict[tuple[int, int], int] = {}
    for i, (at, size, part) in enumerate(tiles):
        owner.update({(part, word): i for word in range(at, at + size)})
    wrong = False
    for a, b in steps:
        wrong |= owner[tiles[b][2], tiles[b][0]] != b
        owner[tiles[a][2], tiles[a][0]] = a
    codes = {code for code, _ in found(tracing, "\n".join(lines))}
    assert codes == ({"overwritten_by_overlap"} if wrong else set())


def test_spaces_join_what_overlaps_also_by_way_of_others(tracing: Any) -> None:
    body = """
a, b, c, d = tile(4, (0, 0)), tile(4, (0, 8)), tile(4, (0, 20)), tile(4, (0, 64))
for t in (c, a, b, d):
    nisa.memset(t, 0.0)
"""
    program = tracing(kernel(body), X)
    spaces = tile_placement.overlap_spaces(program).tolist()
    names = [program.site(number).name for number in range(len(spaces))]
    tensors = [number for number, name in enumerate(names) if name not in {"x", "out"}]
    assert len({spaces[number] for number in tensors[:3]}) == 1
    assert spaces[tensors[3]] == tensors[3]
