"""Intermediates that move to PSUM: which, in what order, while there are banks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.program.ir import Program
from tests.nki_sim.compiler.oracle import TRN1, agrees

Build = Callable[..., Program]


def in_psum(building: Build, body: Callable[[Any], None]) -> list[str]:
    """The declarations of SBUF that moved, as they are numbered."""
    program = building(body, target="trn1")
    made = agrees(program, TRN1, [np.ones((128, 64), np.float32)]).program
    old = {site.name for site in program.sites if site.buffer == "psum"}
    return [site.name for site in made.sites if site.buffer == "psum" and site.name not in old]


def tile(b: Any, name: str, width: int = 64) -> Any:
    return b.recorder.declare((128, width), "float32", "sbuf", name)


def loaded(b: Any) -> Any:
    made = tile(b, "loaded")
    isa.dma_copy(made, b.x)
    return made


def scaled(b: Any, source: Any, name: str, value: float = 2.0) -> Any:
    """What ScalarE computes."""
    made = tile(b, name)
    isa.tensor_scalar(made, source, nl.multiply, value)
    return made


def total(b: Any, left: Any, right: Any, name: str) -> Any:
    made = tile(b, name)
    isa.tensor_tensor(made, left, right, nl.add)
    return made


def test_what_only_tensor_tensor_reads_moves_first_made_first(building: Build) -> None:
    def body(b: Any) -> None:
        source = loaded(b)
        for place in range(6):
            first = scaled(b, source, f"scaled{place}", place + 2.0)
            isa.dma_copy(b.out, total(b, first, source, f"total{place}"))

    # Of four, each with two of eight banks; what DMA reads stays in SBUF.
    assert in_psum(building, body) == ["scaled0", "scaled1", "scaled2", "scaled3"]


def test_banks_of_products_are_taken(building: Build) -> None:
    def body(b: Any) -> None:
        source = loaded(b)
        for place in range(2):
            bank = b.recorder.declare((64, 64), "float32", "psum", f"bank{place}")
            isa.nc_matmul(bank, source, source)
            copied = tile(b, f"copied{place}")
            isa.tensor_copy(copied[0:64, :], bank)
            isa.dma_copy(b.out[0:64, :], copied[0:64, :])
        for place in range(4):
            first = scaled(b, source, f"scaled{place}", place + 2.0)
            isa.dma_copy(b.out, total(b, first, source, f"total{place}"))

    assert in_psum(building, body) == ["scaled0", "scaled1"]


def test_both_inputs_of_an_instruction_are_never_there(building: Build) -> None:
    def body(b: Any) -> None:
        source = loaded(b)
        left, right = scaled(b, source, "left"), scaled(b, source, "right", 3.0)
        isa.dma_copy(b.out, total(b, left, right, "made"))
        square = scaled(b, source, "square", 4.0)
        isa.dma_copy(b.out, total(b, square, square, "squared"))

    assert in_psum(building, body) == ["left"]


def test_tiles_of_which_many_live_together_stay(building: Build) -> None:
    def body(b: Any) -> None:
        source = loaded(b)
        tiles = [scaled(b, source, "many", place + 2.0) for place in range(3)]
        for one in tiles:
            isa.dma_copy(b.out, total(b, one, source, "made"))

    assert in_psum(building, body) == []


def test_accesses_say_where_in_their_bank_they_begin(building: Build) -> None:
    def body(b: Any) -> None:
        source, made = loaded(b), tile(b, "made")
        both = tile(b, "both", 128)
        isa.tensor_scalar(both[:, 64:128], source, nl.multiply, 2.0)
        isa.tensor_tensor(made, both[:, 64:128], source, nl.add)
        isa.dma_copy(b.out, made)

    assert in_psum(building, body) == ["both"]


def test_nothing_moves_where_the_kernel_places_banks_itself(building: Build) -> None:
    def body(b: Any) -> None:
        source = loaded(b)
        bank = b.recorder.declare((64, 64), "float32", "psum", "bank", address=(0, 0))
        isa.nc_matmul(bank, source, source)
        first = scaled(b, source, "scaled")
        isa.dma_copy(b.out, total(b, first, source, "made"))

    assert in_psum(building, body) == []
