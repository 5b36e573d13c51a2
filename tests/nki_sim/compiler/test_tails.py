"""Products of masked tails run at the width of their line; those of the current namespace as they are."""

from __future__ import annotations

from typing import Any

import pytest

from nki_sim import ArraySpec, targets
from nki_sim.compiler.pass_pipeline import compile_program
from nki_sim.program.ir import Program
from nki_sim.timing.counters import profile_counters
from nki_sim.timing.forecast import forecast_program

TRN1 = targets.load("trn1")

# Two products of 512 columns at most; the tail of the second is masked off at COLUMNS.
TAILS = """import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray((128, {columns}), dtype=x.dtype, buffer=nl.shared_hbm)
    i, j = nl.arange(128)[:, None], nl.arange(512)[None, :]
    for n in nl.affine_range(2):
        tile = nl.ndarray((128, {room}), dtype=x.dtype, buffer=nl.sbuf)
        mask = 512 * n + j < {columns}
        tile[i, j] = nl.load(x[i, 512 * n + j], mask=mask)
        made = nl.zeros((128, 512), dtype=nl.float32, buffer=nl.psum)
        made[i, j] += nisa.nc_matmul(tile[i, nl.arange(128)[None, :]], tile[i, j], mask=mask)
        nl.store(out[i, 512 * n + j], nl.copy(made[i, j], mask=mask), mask=mask)
    return out
"""


def widths(program: Program) -> list[tuple[int, int, int]]:
    """Of each product the columns that it moves, writes, and that are read from it."""
    forms = [program.forms[form] for form in program.form_ids.tolist()]
    products = [form for form in forms if form.op == "nc_matmul"]
    readers = [form for form in forms if form.engine == "scalar"]
    return [
        (product["moving"].free, product["dst"].free, reader.tiles[-1].free)
        for product, reader in zip(products, readers, strict=True)
    ]


@pytest.mark.parametrize("columns", [1024, 704, 640])
def test_a_masked_tail_is_multiplied_whole_and_read_as_masked(columns: int, tracing: Any) -> None:
    program = tracing(
        TAILS.format(columns=columns, room=512), ArraySpec((128, columns), "float32"), target="trn1"
    )
    assert widths(compile_program(program, TRN1).program) == [(512, 512, 512), (512, 512, columns - 512)]


def test_flops_are_those_of_whole_products_and_bytes_of_dma_are_not(tracing: Any) -> None:
    program = tracing(TAILS.format(columns=704, room=512), ArraySpec((128, 704), "float32"), target="trn1")
    found = profile_counters(forecast_program(program, TRN1))
    assert found["hardware_flops"] == 2 * 2 * 128 * 128 * 512
    assert found["psum_read_bytes"] == found["hbm_write_bytes"] == 4 * 128 * 704


CURRENT = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 704), dtype=nl.float32, buffer=nl.shared_hbm)
    for start in (0, 512):
        n = min(512, 704 - start)
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[:, 0:n], src=x[:, start:start + n])
        made = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(made[:, 0:n], tile[:, 0:128], tile[:, 0:n])
        kept = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(kept[:, 0:n], nl.copy, made[:, 0:n])
        nisa.dma_copy(dst=out[:, start:start + n], src=kept[:, 0:n])
    return out
"""


def test_the_current_compiler_keeps_the_width(tracing: Any) -> None:
    program = tracing(CURRENT, ArraySpec((128, 704), "float32"), target="trn1")
    assert [width for width, _, _ in widths(compile_program(program, TRN1).program)] == [512, 192]
