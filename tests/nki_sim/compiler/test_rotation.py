"""The places that tiles of a declaration rotate through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nki_sim.frontend import isa
from nki_sim.program.ir import Program
from tests.nki_sim.compiler.oracle import TRN1, agrees, small

Build = Callable[..., Program]
WIDTH = 64


def places(building: Build, target: Any, together: int = 1) -> int:
    """Tiles of one declaration that are left of nine, `together` of which live at the same time."""

    def body(b: Any) -> None:
        for place in range(0, 9, together):
            tiles = []
            for one in range(together):
                tile = b.recorder.declare((128, WIDTH), "float32", "sbuf", "made")
                isa.memset(tile, float(place + one))
                tiles.append(tile)
            for tile in tiles:
                isa.dma_copy(b.out, tile)

    program = building(body, target="trn1")
    made = agrees(program, target, [np.ones((128, 64), np.float32)]).program
    return sum(made.site(tensor).name == "made" for tensor in np.unique(made.tensors).tolist())


@pytest.mark.parametrize(("together", "wanted"), [(1, 2), (3, 3)])
def test_a_declaration_has_two_places_or_what_lives_together(
    together: int, wanted: int, building: Build
) -> None:
    assert TRN1.legacy_rotation == 2
    assert places(building, TRN1, together) == wanted


def test_places_are_fewer_where_memory_is_short(building: Build) -> None:
    assert places(building, small(2 * 4 * WIDTH)) == 2
    assert places(building, small(2 * 4 * WIDTH - 1)) == 1
    assert places(building, replace(TRN1, legacy_rotation=4)) == 4


def test_each_core_has_places_of_its_own(building: Build) -> None:
    def body(b: Any) -> None:
        for place in range(6):
            b.recorder.core = place % 2
            tile = b.recorder.declare((128, WIDTH), "float32", "sbuf", "made")
            isa.memset(tile, float(place))
            isa.dma_copy(b.out, tile)
        b.recorder.core = 0

    made = agrees(building(body, target="trn1"), TRN1, [np.ones((128, 64), np.float32)]).program
    cores: dict[int, set[int]] = {}
    for tensor, at in zip(made.cells.tensor.tolist(), made.cells.instruction.tolist(), strict=True):
        if made.site(tensor).name == "made":
            cores.setdefault(tensor, set()).add(int(made.cores[at]))
    assert sorted(cores.values(), key=min) == [{0}, {0}, {1}, {1}]
