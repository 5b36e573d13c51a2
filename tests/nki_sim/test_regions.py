"""Which boxes overlap, and which enclose others: few boxes and many are compared in different ways."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nki_sim.flow import regions

SIDES = st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(0, 6), st.integers(1, 4))


@given(sides=st.lists(SIDES, min_size=1, max_size=regions._FEW, unique=True))
def test_few_boxes_are_compared_as_many_are(sides: list[tuple[int, int, int, int]]) -> None:
    boxes = np.array([(row, row + height, column, column + width) for row, height, column, width in sides])
    few = regions.find_overlaps(boxes)
    with patch.object(regions, "_FEW", 0):
        many = regions.find_overlaps(boxes)
    for one, other in zip(few, many, strict=True):
        assert [set(items) for items in one] == [set(items) for items in other]
        assert all(at in items for at, items in enumerate(one))
