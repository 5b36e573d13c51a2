"""What the compilers leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nki_sim.compiler.compiled_program import TRACED
from nki_sim.compiler.pass_pipeline import compile_program
from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.program.ir import Program
from tests.nki_sim.compiler.oracle import TRN1, agrees, small

Build = Callable[..., Program]


def wasteful(b: Any) -> None:
    """Loads the same twice, computes what nobody reads, and needs more than there is."""
    tiles = [b.recorder.declare((128, 64), "float32", "sbuf", f"t{i}") for i in range(4)]
    for tile in tiles:
        isa.dma_copy(tile, b.x)
    for tile in tiles:
        isa.tensor_scalar(tile, tile, nl.add, 1.0)


def test_programs_of_the_current_namespace_keep_their_instructions(building: Build) -> None:
    program = building(wasteful, target="trn1", dialect="nki")
    made = compile_program(program, TRN1)
    assert np.array_equal(made.program.form_ids, program.form_ids)
    assert np.array_equal(made.program.tensors, program.tensors)
    assert made.sources.tolist() == list(range(len(program)))
    assert set(made.origins.tolist()) == {TRACED}


def test_loops_whose_bounds_depend_on_data_are_left_alone(building: Build) -> None:
    def body(b: Any) -> None:
        wasteful(b)
        register = b.register()
        b.emit("register_move", dst=register, src=0)
        b.emit("loop_begin", condition=register)
        b.emit("loop_end", condition=register)

    program = building(body, target="trn1")
    assert compile_program(program, small(512)).program is program


def test_a_program_without_tiles_compiles(building: Build) -> None:
    made = agrees(building(lambda _: None, target="trn1"), TRN1, [np.ones((128, 64), np.float32)])
    assert len(made.program) == 1


@pytest.mark.parametrize("place", [(0, 0), (0, 1024)])
def test_tiles_that_the_kernel_places_stay_where_they_are(place: tuple[int, int], building: Build) -> None:
    """Two of them in one place: what is written to one is read from the other."""

    def body(b: Any) -> None:
        first, second = (
            b.recorder.declare((128, 64), "float32", "sbuf", name, address=place) for name in ("one", "two")
        )
        for value in (1.0, 2.0, 1.0):
            isa.memset(first, value)
            total = b.recorder.declare((128, 64), "float32", "sbuf", "total", address=(0, 2048))
            isa.tensor_scalar(total, second, nl.add, 1.0)
            isa.dma_copy(b.out, total)

    program = building(body, target="trn1")
    made = compile_program(program, small(512)).program
    assert len(made) == len(program)
    assert {site.address for site in made.sites if site.buffer == "sbuf"} == {place, (0, 2048)}
    assert made.tensors.tolist() == program.tensors.tolist()
