"""Tiles that leave SBUF and come back: against an account use by use, and on cases by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.checks import program as checks
from nki_sim.checks.warnings import find_warnings
from nki_sim.compiler.compiled_program import LOAD_AGAIN, RELOAD, SAVE, TRACED
from nki_sim.compiler.pass_pipeline import compile_program
from nki_sim.frontend import isa, language
from nki_sim.program.ir import Program
from nki_sim.timing.schedule import schedule
from tests.nki_sim.compiler.oracle import TRN1, agrees, moved, small
from tests.support.sweeps import scale_examples

Build = Callable[..., Program]
WIDTH = 64
BYTES = 128 * 4 * WIDTH
THREE = small(3 * 4 * WIDTH)
"""Room for three tiles."""


def uses(order: str, *, loaded: bool) -> Callable[[Any], None]:
    """Tiles, each made by its first letter and changed or, when loaded, read by others."""

    def body(b: Any) -> None:
        tiles: dict[str, Any] = {}
        for place, name in enumerate(order):
            if name not in tiles:
                tiles[name] = b.recorder.declare((128, WIDTH), "float32", "sbuf", name)
                if loaded:
                    isa.dma_copy(
                        tiles[name], b.recorder.declare_argument(f"h{name}", (128, WIDTH), "float32")
                    )
                else:
                    isa.memset(tiles[name], float(place))
            elif not loaded:
                isa.tensor_scalar(tiles[name], tiles[name], language.add, 1.0)
            isa.dma_copy(b.out, tiles[name])

    return body


def traffic(program: Program) -> tuple[int, int, int]:
    """Tiles saved, read back, loaded again; of each what it moves over HBM, in tiles."""
    made = compile_program(program, THREE)
    return tuple(moved(made, origin) // BYTES for origin in (SAVE, RELOAD, LOAD_AGAIN))


@pytest.mark.parametrize(
    ("order", "loaded", "wanted"),
    [
        ("abcabc", False, (0, 0, 0)),
        ("abcdabcd", False, (1, 1, 0)),
        ("abcdabcd", True, (0, 0, 1)),
        ("aabbccdd", False, (0, 0, 0)),
        # d is not needed any more when a is.
        ("abcda", False, (0, 0, 0)),
        # c is used last of all: it leaves for d, and nobody for c.
        ("abcdabdc", False, (1, 1, 0)),
    ],
)
def test_tiles_leave_and_come_back(
    order: str, loaded: bool, wanted: tuple[int, ...], building: Build
) -> None:
    assert traffic(building(uses(order, loaded=loaded), target="trn1")) == wanted


def account(order: str) -> tuple[int, int, int]:
    """Three tiles fit; the one used again last leaves; what is not needed any more leaves for nothing."""
    here: set[str] = set()
    known: set[str] = set()
    saved = reloaded = 0
    for place, name in enumerate(order):
        rest = order[place:]
        here = {item for item in here if item in rest}
        if name not in here and len(here) == 3:
            here.remove(max(here, key=rest.index))
            saved += 1
        reloaded += name in known and name not in here
        here.add(name)
        known.add(name)
    return saved, reloaded, 0


@settings(max_examples=scale_examples(50), deadline=None)
@given(order=st.text(alphabet="abcde", min_size=1, max_size=16))
def test_what_moves_is_that_of_an_account_use_by_use(order: str, building: Build) -> None:
    """Every use changes the tile, so that leaving always means saving."""
    assert traffic(building(uses(order, loaded=False), target="trn1")) == account(order)


def test_a_tile_that_did_not_change_is_saved_once(building: Build) -> None:
    def body(b: Any) -> None:
        tiles = [b.recorder.declare((128, WIDTH), "float32", "sbuf", f"t{i}") for i in range(4)]
        for place, tile in enumerate(tiles):
            isa.memset(tile, float(place))
        for _ in range(6):
            for tile in tiles:
                isa.dma_copy(b.out, tile)

    saved, reloaded, _ = traffic(building(body, target="trn1"))
    assert saved <= len("abcd") < reloaded


def test_a_load_that_took_the_place_of_another_is_done_again_alone(building: Build) -> None:
    """Also what is loaded only later, or was loaded before, into the same tile."""

    def body(b: Any) -> None:
        tiles = [b.recorder.declare((128, WIDTH), "float32", "sbuf", f"t{i}") for i in range(4)]
        sources = [b.recorder.declare_argument(f"h{i}", (128, WIDTH), "float32") for i in range(3)]
        for source in sources:
            for tile in tiles:
                isa.dma_copy(tile, source)
            for tile in tiles:
                isa.dma_copy(b.out, tile)
            for tile in tiles:
                isa.dma_copy(b.out, tile)

    program = building(body, target="trn1")
    arrays = [np.full((128, WIDTH), float(i), np.float32) for i in range(4)]
    made = agrees(program, THREE, arrays)
    again = int((made.origins == LOAD_AGAIN).sum())
    assert moved(made, LOAD_AGAIN) == again * BYTES
    assert 0 < again <= 6


def test_a_tile_that_nobody_has_written_is_not_saved(building: Build) -> None:
    def body(b: Any) -> None:
        tiles = [b.recorder.declare((128, WIDTH), "float32", "sbuf", f"t{min(i, 1)}") for i in range(4)]
        for tile in tiles[1:]:
            isa.memset(tile, 1.0)
        for tile in (tiles[0], *tiles[1:], tiles[0]):
            isa.dma_copy(b.out, tile)

    made = agrees(building(body, target="trn1"), THREE, [np.ones((128, 64), np.float32)])
    assert moved(made, RELOAD) == moved(made, LOAD_AGAIN) == 0


def test_one_byte_too_many_and_an_array_is_not_kept(building: Build) -> None:
    """An array of many computed tiles passes through, of loaded ones streams, where it does not fit whole."""

    def body(b: Any, loaded: bool) -> None:
        tiles = []
        for place in range(9):
            tile = b.recorder.declare((128, WIDTH), "float32", "sbuf", "array")
            if loaded:
                isa.dma_copy(tile, b.recorder.declare_argument(f"h{place}", (128, WIDTH), "float32"))
            else:
                isa.memset(tile, float(place))
            tiles.append(tile)
        for _ in range(2):
            for tile in tiles:
                isa.dma_copy(b.out, tile)

    fits, not_quite = small(9 * 4 * WIDTH), small(9 * 4 * WIDTH - 1)
    for loaded, origin in ((False, RELOAD), (True, LOAD_AGAIN)):
        program = building(lambda b, loaded=loaded: body(b, loaded), target="trn1")
        whole, split = compile_program(program, fits), compile_program(program, not_quite)
        assert set(whole.origins.tolist()) == {TRACED}
        assert moved(split, origin) == 18 * BYTES


def test_programs_that_do_not_fit_spill_whatever_their_namespace(building: Build) -> None:
    def body(b: Any) -> None:
        tiles = [b.recorder.declare((128, 30_000), "float32", "sbuf", name) for name in "ab"]
        for tile in tiles:
            isa.memset(tile, 0.0)
        for tile in tiles:
            isa.dma_copy(b.out, tile[:, 0:64])

    legacy, current = (building(body, target="trn1", dialect=name) for name in ("neuronxcc", "nki"))
    assert checks.check(legacy, TRN1) == checks.check(current, TRN1) == []
    assert find_warnings(legacy, TRN1) == []
    assert [item.code for item in find_warnings(current, TRN1)] == ["sbuf_spill"]
    for program in (legacy, current):
        assert SAVE in compile_program(program, TRN1).origins.tolist()


def test_a_tile_larger_than_sbuf_is_scheduled_all_the_same(building: Build) -> None:
    def body(b: Any) -> None:
        tile = b.recorder.declare((128, TRN1.sbuf_usable_bytes // 3), "float32", "sbuf", "huge")
        isa.memset(tile[:, 0:60_000], 0.0)
        isa.tensor_scalar(tile[:, 0:60_000], tile[:, 0:60_000], language.add, 1.0)
        isa.dma_copy(b.out, tile[:, 0:64])

    program = building(body, target="trn1")
    timeline = schedule(compile_program(program, TRN1).program, TRN1)
    assert timeline.start_ns[1] >= timeline.end_ns[0]
    assert checks.check(program, TRN1) == []
