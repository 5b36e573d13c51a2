"""Arrays of loaded tiles that do not fit: what is loaded where it is used, and into what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nki_sim.compiler.compiled_program import LOAD_AGAIN, CompiledProgram
from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.program.ir import Program
from tests.nki_sim.compiler.oracle import agrees, moved, small

Build = Callable[..., Program]
COUNT, WIDTH = 9, 64
Part = Callable[[Any], Any]


def array(b: Any, load: Callable[[Any, Any], None], shape: tuple[int, ...] = (128, WIDTH)) -> list[Any]:
    tiles = []
    for place in range(COUNT):
        tile = b.recorder.declare(shape, "float32", "sbuf", "array")
        load(tile, b.recorder.declare_argument(f"h{place}", (128, WIDTH), "float32"))
        tiles.append(tile)
    return tiles


def streamed(building: Build, body: Callable[[Any], None]) -> CompiledProgram:
    program = building(body, target="trn1")
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-4, 5, (128, WIDTH)).astype(np.float32) for _ in range(COUNT + 1)]
    return agrees(program, small(6 * 4 * WIDTH), arrays)


def loads(made: CompiledProgram) -> list[Any]:
    """The forms of what is loaded again."""
    return [made.program.forms[form] for form in made.program.form_ids[made.origins == LOAD_AGAIN].tolist()]


PARTS: dict[str, tuple[Part, Part, int]] = {
    "all": (lambda t: t, lambda o: o, WIDTH),
    "columns": (lambda t: t[:, 8:24], lambda o: o[:, 0:16], 16),
    "rows and columns": (lambda t: t[32:64, 8:24], lambda o: o[0:32, 0:16], 16),
    "backwards": (
        lambda t: t.ap(pattern=[[WIDTH, 128], [-1, 16]], offset=23), lambda o: o[:, 0:16], 16,
    ),
    "every second column": (lambda t: t[:, 8:24:2], lambda o: o[:, 0:8], 15),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_what_is_used_is_loaded_and_no_more(name: str, building: Build) -> None:
    part, goal, width = PARTS[name]

    def body(b: Any) -> None:
        tiles = array(b, isa.dma_copy)
        for tile in (*tiles, *tiles):
            isa.dma_copy(goal(b.out), part(tile))

    made = streamed(building, body)
    found = loads(made)
    assert len(found) == 2 * COUNT
    assert {form["dst"].row for form in found} == {width}
    assert {form["dst"].elements for form in found} == {width * part_rows(name)}


def part_rows(name: str) -> int:
    return 32 if name.startswith("rows") else 128


def test_a_slice_of_a_tile_of_three_dimensions_is_loaded_alone(building: Build) -> None:
    def body(b: Any) -> None:
        tiles = array(b, lambda t, h: isa.dma_copy(t, h.reshape_dim(1, (4, 16))), (128, 4, 16))
        for place, tile in enumerate((*tiles, *tiles)):
            isa.dma_copy(b.out[:, 0:16], tile[:, place % 4, :])

    assert moved(streamed(building, body), LOAD_AGAIN) == 2 * COUNT * 128 * 16 * 4


def test_a_part_that_no_pattern_loads_brings_its_whole_tile(building: Build) -> None:
    """A transposed load of slices, of which a part across two of them is used."""

    def body(b: Any) -> None:
        def load(tile: Any, h: Any) -> None:
            isa.dma_copy(tile, h.ap(pattern=[[WIDTH, 128], [1, 4], [4, 16]], offset=0))

        tiles = array(b, load, (128, 4, 16))
        for tile in (*tiles, *tiles):
            isa.dma_copy(b.out[:, 0:20], tile.ap(pattern=[[WIDTH, 128], [1, 20]], offset=8))

    assert moved(streamed(building, body), LOAD_AGAIN) == 2 * COUNT * 128 * WIDTH * 4


def test_a_part_is_put_together_from_the_loads_that_have_some_of_it(building: Build) -> None:
    def body(b: Any) -> None:
        def load(tile: Any, h: Any) -> None:
            for first in range(0, WIDTH, 16):
                isa.dma_copy(tile[:, first : first + 16], h[:, first : first + 16])

        tiles = array(b, load)
        for tile in (*tiles, *tiles):
            isa.dma_copy(b.out[:, 0:16], tile[:, 24:40])

    made = streamed(building, body)
    assert [form["dst"].free for form in loads(made)] == [8] * 4 * COUNT


def test_parts_used_again_soon_stay(building: Build) -> None:
    def body(b: Any) -> None:
        tiles = array(b, isa.dma_copy)
        for tile in (*tiles, *tiles):
            total = b.recorder.declare((128, WIDTH), "float32", "sbuf", "total")
            isa.tensor_tensor(total, tile, tile, nl.add)
            isa.tensor_tensor(total, total, tile, nl.maximum)
            isa.dma_copy(b.out, total)

    assert len(loads(streamed(building, body))) == 2 * COUNT


def test_a_tile_loaded_anew_is_not_what_it_was(building: Build) -> None:
    def body(b: Any) -> None:
        tiles = array(b, isa.dma_copy)
        for tile in tiles:
            isa.dma_copy(b.out, tile)
        for tile in tiles:
            isa.dma_copy(tile, b.x)
            isa.dma_copy(b.out, tile)

    made = streamed(building, body)
    assert len(loads(made)) == 2 * COUNT


def test_a_masked_product_still_says_what_it_was_written_for(building: Build) -> None:
    def body(b: Any) -> None:
        ones = b.recorder.declare((128, 32), "float32", "sbuf", "ones")
        isa.memset(ones, 1.0)
        tiles = array(b, isa.dma_copy)
        for tile in (*tiles, *tiles):
            bank = b.recorder.declare((32, 64), "float32", "psum", "bank")
            left, right = ones, tile[:, 0:48]
            b.emit(
                "nc_matmul", dst=bank[:, 0:48], stationary=left, moving=right, accumulate=False,
                hints=(("moving", 64),),
            )  # fmt: skip
            made = b.recorder.declare((32, 64), "float32", "sbuf", "made")
            isa.tensor_copy(made[:, 0:48], bank[:, 0:48])
            isa.dma_copy(b.out[0:32, 0:48], made[:, 0:48])

    made = streamed(building, body)
    forms = [made.program.forms[form] for form in made.program.form_ids.tolist()]
    products = [form for form in forms if form.op == "nc_matmul"]
    assert {(form["moving"].row, form.hint("moving")) for form in products} == {(48, 64)}
