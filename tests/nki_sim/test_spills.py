"""What the legacy compiler saves and reloads: against an account tile by tile, and on cases by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.frontend import isa, language
from nki_sim.program.ir import Program
from nki_sim.timing.schedule import schedule
from nki_sim.timing.spills import Spills, spills

TRN1 = targets.load("trn1")
Build = Callable[..., Program]
THIRD = TRN1.sbuf_usable_bytes // 4 // 3
BYTES = 128 * 4 * THIRD


def uses(order: str, *, loaded: bool) -> Callable[[Any], None]:
    """Tiles of a third of SBUF, each made by its first letter and changed or, when loaded, read by others."""

    def body(b: Any) -> None:
        h = b.recorder.argument("h", (128, THIRD), "float32")
        tiles: dict[str, Any] = {}
        small = b.recorder.declare((128, 1), "float32", "psum", "small")
        for name in order:
            if name not in tiles:
                tiles[name] = b.recorder.declare((128, THIRD), "float32", "sbuf", name)
                _ = isa.dma_copy(tiles[name], h) if loaded else isa.memset(tiles[name], 0.0)
            elif loaded:
                isa.tensor_copy(small, tiles[name][:, 0:1])
            else:
                isa.tensor_scalar(tiles[name], tiles[name], language.add, 1.0)

    return body


@pytest.mark.parametrize(
    ("order", "loaded", "wanted"),
    [
        ("abcabc", False, Spills()),
        ("abcdabcd", False, Spills(BYTES, BYTES, 0)),
        ("abcdabcd", True, Spills(0, 0, BYTES)),
        ("aabbccdd", False, Spills()),
        ("abcda", False, Spills()),
    ],
)
def test_tiles_leave_and_come_back(order: str, loaded: bool, wanted: Spills, building: Build) -> None:
    assert spills(building(uses(order, loaded=loaded), target="trn1"), TRN1) == wanted


def account(order: str) -> Spills:
    """Three tiles fit; the one used again last leaves; what is not needed any more leaves for nothing."""
    here: set[str] = set()
    known: set[str] = set()
    saved = reloaded = 0
    for place, name in enumerate(order):
        rest = order[place:]
        here = {item for item in here if item in rest}
        if name not in here and len(here) == 3:
            here.remove(max(here, key=rest.index))
            saved += BYTES
        reloaded += BYTES * (name in known and name not in here)
        here.add(name)
        known.add(name)
    return Spills(saved, reloaded, 0)


@settings(max_examples=50)
@given(order=st.text(alphabet="abcde", min_size=1, max_size=16))
def test_spills_are_those_of_an_account_use_by_use(order: str, building: Build) -> None:
    """Every use changes the tile, so that leaving always means saving."""
    assert spills(building(uses(order, loaded=False), target="trn1"), TRN1) == account(order)


def test_legacy_programs_that_do_not_fit_are_counted_not_refused(building: Build) -> None:
    body = uses("abcdabcd", loaded=False)
    legacy, current = (building(body, target="trn1", dialect=name) for name in ("neuronxcc", "nki"))
    assert checks.check(legacy, TRN1) == []
    assert [item.code for item in checks.check(current, TRN1)] == ["sbuf_capacity"]
    assert spills(current, TRN1) == Spills()


def test_a_tile_larger_than_sbuf_is_scheduled_all_the_same(building: Build) -> None:
    def body(b: Any) -> None:
        tile = b.recorder.declare((128, 4 * THIRD), "float32", "sbuf", "huge")
        isa.memset(tile[:, 0:60_000], 0.0)
        isa.tensor_scalar(tile[:, 0:60_000], tile[:, 0:60_000], language.add, 1.0)

    program = building(body, target="trn1")
    timeline = schedule(program, TRN1)
    assert timeline.start_ns[1] >= timeline.end_ns[0]
    assert checks.check(program, TRN1) == []
