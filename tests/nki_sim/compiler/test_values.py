"""Tiles whose values get places of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.program.ir import Program
from tests.nki_sim.compiler.oracle import TRN1, agrees

Build = Callable[..., Program]
DATA = [np.arange(128 * 64, dtype=np.float32).reshape(128, 64)]


def count_tiles(building: Build, body: Callable[[Any], None]) -> int:
    """Tiles named t that are left, of a kernel that declares one; the results must not change."""
    made = agrees(building(body, target="trn1", dialect="nki"), TRN1, DATA).program
    return sum(made.site(tensor).name == "t" for tensor in np.unique(made.tensors).tolist())


def test_a_tile_that_is_written_anew_has_a_place_for_each_value(building: Build) -> None:
    def body(b: Any) -> None:
        tile = b.recorder.declare((128, 64), "float32", "sbuf", "t")
        for step in range(4):
            isa.dma_copy(tile, b.x)
            isa.tensor_scalar(tile, tile, nl.add, float(step))
            isa.dma_copy(b.out, tile)

    assert count_tiles(building, body) == 4


def test_a_tile_that_carries_a_value_on_keeps_its_place(building: Build) -> None:
    def body(b: Any) -> None:
        tile = b.recorder.declare((128, 64), "float32", "sbuf", "t")
        isa.dma_copy(tile, b.x)
        for step in range(4):
            isa.tensor_scalar(tile, tile, nl.add, float(step))
            isa.dma_copy(b.out, tile)

    assert count_tiles(building, body) == 1


@pytest.mark.parametrize(("again", "wanted"), [((0, 32), 2), ((0,), 1)])
def test_values_end_where_all_parts_are_written_anew(
    again: tuple[int, ...], wanted: int, building: Build
) -> None:
    def body(b: Any) -> None:
        tile = b.recorder.declare((128, 64), "float32", "sbuf", "t")
        for columns in ((0, 32), again):
            for column in columns:
                isa.dma_copy(tile[:, column : column + 32], b.x[:, column : column + 32])
            isa.dma_copy(b.out, tile)

    assert count_tiles(building, body) == wanted


def test_an_access_with_gaps_ends_no_value(building: Build) -> None:
    def body(b: Any) -> None:
        tile = b.recorder.declare((128, 64), "float32", "sbuf", "t")
        isa.dma_copy(tile, b.x)
        isa.dma_copy(b.out, tile)
        isa.memset(tile[:, 0:64:2], 1.0)
        isa.dma_copy(b.out, tile)

    assert count_tiles(building, body) == 1
