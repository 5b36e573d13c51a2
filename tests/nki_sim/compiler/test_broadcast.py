"""Rows that are repeated over all partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from nki_sim.frontend import isa
from nki_sim.program.ir import Program
from tests.nki_sim.compiler.oracle import TRN1, agrees, issued

Build = Callable[..., Program]
QUADRANTS = (0, 32, 64, 96)


def repeat(b: Any, row: Any, name: str, tops: Sequence[int] = QUADRANTS, width: int = 64) -> Any:
    made = b.recorder.declare((128, width), row.dtype, "sbuf", name)
    isa.memset(made, 0)
    for top in tops:
        isa.nc_stream_shuffle(made[top : top + 32, :], row, shuffle_mask=[0] * 32)
    return made


def row(b: Any, width: int = 64, dtype: str = "float32") -> Any:
    made = b.recorder.declare((1, width), dtype, "sbuf", "row")
    isa.memset(made, 3)
    return made


def run(building: Build, body: Callable[[Any], Any]) -> Any:
    program = building(body, target="trn1")
    return agrees(program, TRN1, [np.ones((128, 64), np.float32)])


def test_a_row_becomes_products_with_ones_and_copies(building: Build) -> None:
    def body(b: Any) -> None:
        source = row(b)
        for name in ("one", "two"):
            isa.dma_copy(b.out, repeat(b, source, name))

    made = run(building, body)
    counts = issued(made)
    assert (counts["nc_stream_shuffle"], counts["nc_matmul"], counts["tensor_copy"]) == (0, 2, 2)
    ones = [site for site in made.program.sites if site.name == "ones"]
    assert [(site.shape, site.buffer) for site in ones] == [((1, 128), "sbuf")]
    copies = [form for form in made.program.forms if form.op == "tensor_copy"]
    assert {(form.engine, form["src"].buffer) for form in copies} == {("scalar", "psum")}


def test_a_long_row_takes_a_product_for_each_bank(building: Build) -> None:
    def body(b: Any) -> None:
        made = repeat(b, row(b, 1200), "long", width=1200)
        isa.dma_copy(b.out, made[:, 1136:1200])

    counts = issued(run(building, body))
    assert (counts["nc_matmul"], counts["tensor_copy"]) == (3, 3)


def test_rows_for_some_partitions_alone_are_shuffled(building: Build) -> None:
    counts = issued(run(building, lambda b: isa.dma_copy(b.out, repeat(b, row(b), "made", (0, 32)))))
    assert (counts["nc_stream_shuffle"], counts["nc_matmul"]) == (2, 0)


def test_the_same_quadrant_twice_is_not_all_of_them(building: Build) -> None:
    body = lambda b: isa.dma_copy(b.out, repeat(b, row(b), "made", (0, 32, 64, 64)))  # noqa: E731
    assert issued(run(building, body))["nc_stream_shuffle"] == 4


@pytest.mark.parametrize("dtype", ["int32"])
def test_products_do_not_take_integers(dtype: str, building: Build) -> None:
    def body(b: Any) -> None:
        isa.dma_copy(b.out, repeat(b, row(b, dtype=dtype), "made"))

    assert issued(run(building, body))["nc_matmul"] == 0
