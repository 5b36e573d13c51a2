"""Loads cut down to a part of their tile: against copies element by element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.compiler.tile_cuts import TileBox, access_box, can_narrow, cut_load, narrow_access
from nki_sim.forms import Dims, Operand, Site
from tests.support.sweeps import scale_examples

ROWS, ROW = 16, 48
SOURCE = 4096


def places(dims: Dims, offset: int) -> Any:
    """The elements of an access pattern in the order it walks them."""
    found = np.array([offset])
    for step, count in dims:
        found = (found[:, None] + step * np.arange(count)[None, :]).reshape(-1)
    return found


def copied(dst: Operand, to: int, src: Operand, start: int) -> dict[int, int]:
    """Where each element of the tile comes from."""
    pairs = zip(places(dst.dims, to).tolist(), places(src.dims, start).tolist(), strict=True)
    return dict(pairs)


def operand(role: str, dims: Dims, start: int = 0) -> Operand:
    return Operand(role, dims, "float32", "sbuf" if role == "dst" else "hbm", ROW, start)


@st.composite
def loads(draw: Any) -> tuple[Operand, int, Operand, int]:
    """A load of rows of up to two dimensions from a source of any steps, with its offsets."""
    start = draw(st.integers(0, ROWS - 1))
    rows = draw(st.integers(1, ROWS - start))
    outer, inner = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    gap = draw(st.integers(0, 2)) if outer > 1 else 0
    pairs = [(inner + gap, outer), (1, inner)]
    column = draw(st.integers(0, ROW - (inner + gap) * (outer - 1) - inner))
    dims = [(ROW, rows), *(pairs if gap or draw(st.booleans()) else [(1, inner * outer)])]
    walk = [(draw(st.sampled_from([0, 1, 3, 50, -40])), rows)]
    if draw(st.booleans()) or gap:
        walk += [(draw(st.sampled_from([8, 1, 20])), outer), (draw(st.sampled_from([1, 2, 6])), inner)]
    else:
        walk += [(draw(st.sampled_from([1, 5])), inner * outer)]
    return operand("dst", tuple(dims), start), start * ROW + column, operand("src", tuple(walk)), SOURCE


@settings(max_examples=scale_examples(150), deadline=None)
@given(load=loads(), data=st.data())
def test_a_cut_load_brings_what_the_whole_one_does_to_the_part(
    load: tuple[Operand, int, Operand, int], data: Any
) -> None:
    dst, to, src, start = load
    top, left = data.draw(st.integers(0, ROWS - 1)), data.draw(st.integers(0, ROW - 1))
    box = TileBox(top, data.draw(st.integers(top + 1, ROWS)), left, data.draw(st.integers(left + 1, ROW)))
    if access_box(dst, to).intersect(box).is_empty:
        return
    found = cut_load(dst, src, to, box)
    if found is None:
        return
    near, far, place, moved = found
    whole = {
        divmod(element, ROW)[0] * box.width + element % ROW - box.left: source
        for element, source in copied(dst, to, src, start).items()
        if box.top <= element // ROW < box.bottom and box.left <= element % ROW < box.right
    }
    assert copied(near, place, far, start + moved) == whole


@pytest.mark.parametrize(
    ("dims", "walk", "box"),
    [
        # Columns of a plain load, one slice of a load of three dimensions, and several whole ones.
        (((ROW, 16), (1, 48)), ((100, 16), (1, 48)), TileBox(3, 9, 7, 40)),
        (((ROW, 16), (12, 4), (1, 12)), ((100, 16), (12, 4), (1, 12)), TileBox(0, 16, 14, 20)),
        (((ROW, 16), (12, 4), (1, 12)), ((7, 16), (200, 4), (2, 12)), TileBox(0, 16, 12, 36)),
        # The source has more dimensions than the tile.
        (((ROW, 16), (1, 48)), ((7, 16), (200, 4), (2, 12)), TileBox(0, 16, 24, 36)),
    ],
)
def test_what_one_pattern_covers_is_cut(dims: Dims, walk: Dims, box: TileBox) -> None:
    assert cut_load(operand("dst", dims), operand("src", walk), 0, box) is not None


def test_a_part_across_slices_is_not_cut() -> None:
    dims = ((ROW, 16), (12, 4), (1, 12))
    walk = ((7, 16), (200, 4), (2, 12))
    assert cut_load(operand("dst", dims), operand("src", walk), 0, TileBox(0, 16, 6, 18)) is None


def test_accesses_of_indices_other_types_and_repeated_rows_are_not_narrowed() -> None:
    site = Site("t", (16, ROW), "float32", "sbuf", 1)
    item = operand("dst", ((ROW, 16), (-2, 5)))
    assert can_narrow(item, site)
    small = narrow_access(item)
    assert (small.row, small.dims, access_box(item, 3 * ROW + 20)) == (
        9,
        ((9, 16), (-2, 5)),
        TileBox(3, 19, 12, 21),
    )
    assert not can_narrow(replace(item, index_step=1), site)
    assert not can_narrow(replace(item, dtype="bfloat16"), site)
    assert not can_narrow(replace(item, dims=((0, 16), (1, 5))), site)
