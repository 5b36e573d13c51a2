"""What is loaded or computed twice, and what nobody reads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from nki_sim.compiler.hoist import hoist_computation
from nki_sim.compiler.pass_pipeline import compile_program
from nki_sim.compiler.program_draft import ProgramDraft
from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.program.ir import Program
from tests.nki_sim.compiler.oracle import TRN1, issued, small

Build = Callable[..., Program]
BYTES = 64 * 4 // 2
"""Of a partition, for a tile of 64 rows: two share a place."""


def out(b: Any, row: int = 0) -> Any:
    return b.out[row : row + 64, :]


def tile(b: Any, name: str, rows: int = 64) -> Any:
    return b.recorder.declare((rows, 64), "float32", "sbuf", name)


def load(b: Any, name: str, row: int = 0) -> Any:
    made = tile(b, name)
    isa.dma_copy(made, b.x[row : row + 64, :])
    return made


def copies(program: Program, target: Any = TRN1) -> int:
    """DMA of what is compiled, without the two stores of the body and the copy that ends every program."""
    return issued(compile_program(program, target))["dma_copy"]


def twice(first: str, second: str) -> Callable[[Any], None]:
    """Each of two iterations loads the same twice, into tiles of these declarations."""

    def build(b: Any) -> None:
        def body(_: int) -> None:
            isa.dma_copy(out(b), load(b, first))
            isa.dma_copy(out(b, 64), load(b, second))

        b.loop(2, body)

    return build


def test_loads_of_one_iteration_are_merged(building: Build) -> None:
    """Also in a later iteration than the first one, which has loaded the same."""
    program = building(twice("same", "same"), target="trn1")
    draft = ProgramDraft(program)
    left = hoist_computation(draft, computed=False)
    assert (len(left), len(draft)) == (1, 2 + 4 + 1)
    assert copies(program) == 1 + 4 + 1


def test_what_two_declarations_load_is_loaded_twice(building: Build) -> None:
    assert copies(building(twice("first", "second"), target="trn1")) == 2 + 4 + 1


def test_loads_stay_for_later_iterations_while_all_of_a_declaration_fit(building: Build) -> None:
    def body(b: Any) -> None:
        def iteration(_: int) -> None:
            for row in (0, 16, 32, 48):
                isa.dma_copy(out(b), load(b, "part", row))

        b.loop(3, iteration)

    program = building(body, target="trn1")
    assert copies(program, small(4 * BYTES)) == 4 + 12 + 1
    assert copies(program, small(4 * BYTES - 4)) == 12 + 12 + 1


def test_nothing_is_hoisted_where_arrays_stream(building: Build) -> None:
    def body(b: Any) -> None:
        tiles = [load(b, "array", 4 * place) for place in range(9)]

        def iteration(_: int) -> None:
            made = tile(b, "made")
            isa.memset(made, 1.0)
            for one in tiles:
                total = tile(b, "total")
                isa.tensor_tensor(total, one, made, nl.add)
                isa.dma_copy(out(b), total)

        b.loop(2, iteration)

    program = building(body, target="trn1")
    assert issued(compile_program(program, TRN1))["memset"] == 1
    assert issued(compile_program(program, small(8 * BYTES)))["memset"] == 2


def test_an_enclosing_iteration_counts_as_the_same(building: Build) -> None:
    def body(b: Any) -> None:
        def outer(_: int) -> None:
            isa.dma_copy(out(b), load(b, "same"))
            b.loop(2, lambda _: isa.dma_copy(out(b, 64), load(b, "same")))

        b.loop(1, outer)

    draft = ProgramDraft(building(body, target="trn1"))
    assert hoist_computation(draft, computed=False) == {}
    assert len(draft) == 1 + 3 + 1


def test_what_is_loaded_between_two_stores_to_its_source_is_loaded_again(building: Build) -> None:
    def body(b: Any) -> None:
        table = b.recorder.declare((64, 64), "float32", "private_hbm", "table")

        def round_(number: int) -> None:
            filled = tile(b, "filled")
            isa.memset(filled, float(number))
            isa.dma_copy(table, filled)
            read = tile(b, "read")
            isa.dma_copy(read, table)
            isa.dma_copy(out(b), read)

        b.loop(3, round_)

    assert copies(building(body, target="trn1")) == 3 * 3 + 1


def test_computation_that_does_not_change_leaves_its_loop(building: Build) -> None:
    def body(b: Any) -> None:
        source = load(b, "source")

        def iteration(_: int) -> None:
            made = tile(b, "made")
            isa.tensor_scalar(made, source, nl.add, 1.0)
            isa.dma_copy(out(b), made)

        b.loop(5, iteration)

    assert issued(compile_program(building(body, target="trn1"), TRN1))["tensor_scalar"] == 1


def test_what_follows_from_a_tile_that_changes_is_computed_each_time(building: Build) -> None:
    def body(b: Any) -> None:
        source = load(b, "source")

        def iteration(_: int) -> None:
            made = tile(b, "made")
            isa.tensor_scalar(made, source, nl.add, 1.0)
            isa.dma_copy(out(b), made)
            isa.tensor_scalar(source, source, nl.multiply, 2.0)

        b.loop(5, iteration)

    # The last change is read by nobody.
    assert issued(compile_program(building(body, target="trn1"), TRN1))["tensor_scalar"] == 5 + 4


@pytest.mark.parametrize("other", ["-0.0", "0.0"])
def test_zeros_of_either_sign_are_two_values(other: str, building: Build) -> None:
    def body(b: Any) -> None:
        for row, value in ((0, 0.0), (64, float(other))):
            made = tile(b, "made")
            isa.memset(made, value)
            isa.dma_copy(out(b, row), made)

    assert issued(compile_program(building(body, target="trn1"), TRN1))["memset"] == (
        2 if other == "-0.0" else 1
    )


def test_random_numbers_and_engine_state_are_never_merged(building: Build) -> None:
    def body(b: Any) -> None:
        for row in (0, 64):
            made = b.recorder.declare((64, 64), "uint32", "sbuf", f"made{row}")
            isa.rng(made)
            isa.dma_copy(out(b, row), made)

    assert issued(compile_program(building(body, target="trn1"), TRN1))["rng"] == 2


def test_results_that_nobody_reads_are_not_computed(building: Build) -> None:
    def body(b: Any) -> None:
        source = load(b, "source")
        chain = [source, *(tile(b, f"dead{i}") for i in range(3))]
        for data, made in pairwise(chain):
            isa.tensor_scalar(made, data, nl.add, 1.0)
        placed = b.recorder.declare((64, 64), "float32", "psum", "placed", address=(0, 0))
        isa.tensor_copy(placed, source)

    made = compile_program(building(body, target="trn1"), TRN1)
    # What the kernel places itself may be read under another name.
    assert issued(made) == {"dma_copy": 2, "tensor_copy": 1}
