"""Tiles that are read back: what of them comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nki_sim.compiler.compiled_program import RELOAD, SAVE
from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.program.ir import Program
from tests.nki_sim.compiler.oracle import agrees, moved, small

Build = Callable[..., Program]
WIDTH = 64
Use = Callable[[Any, Any], Any]


def halves(out: Any, tile: Any) -> None:
    isa.dma_copy(out[:, 0:16], tile[:, 8:24])
    isa.dma_copy(out[:, 16:24], tile[:, 32:40])


def changed(out: Any, tile: Any) -> None:
    isa.memset(tile[:, 0:8], 1.0)
    isa.dma_copy(out[:, 0:16], tile[:, 8:24])


USES: dict[str, tuple[Use, int]] = {
    "columns": (lambda out, tile: isa.dma_copy(out[:, 0:16], tile[:, 8:24]), 16),
    "two stretches": (halves, 32),
    "all": (isa.dma_copy, WIDTH),
    "a change too": (changed, WIDTH),
    "backwards": (
        lambda out, tile: isa.dma_copy(out[:, 0:8], tile.ap(pattern=[[WIDTH, 128], [-1, 8]], offset=63)), 8,
    ),
    "as another type": (
        lambda out, tile: isa.dma_copy(
            out[:, 0:4], tile.view("int32")[:, 4:8]
        ), WIDTH,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_the_columns_that_are_read_come_back(name: str, building: Build) -> None:
    use, width = USES[name]

    def body(b: Any) -> None:
        tiles = [b.recorder.declare((128, WIDTH), "float32", "sbuf", f"t{i}") for i in range(4)]
        for place, tile in enumerate(tiles):
            isa.dma_copy(tile, b.x)
            isa.tensor_scalar(tile, tile, nl.add, float(place))
        for tile in tiles:
            use(b.out, tile)

    x = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    made = agrees(building(body, target="trn1"), small(3 * 4 * WIDTH), [x])
    assert moved(made, SAVE) == 128 * WIDTH * 4
    assert moved(made, RELOAD) == 128 * width * 4
