"""What forms tell a compiler beyond what shows in a result: engines left open, masked products."""

from __future__ import annotations

from typing import Any

import pytest

from nki_sim.forms import Form
from nki_sim.program.ir import Program
from tests.nki_sim.legacy_kernels import ramp, traced


def form(program: Program, op: str) -> Form:
    return next(program.forms[number] for number in program.form_ids if program.forms[number].op == op)


@pytest.mark.parametrize(
    ("engine", "hint"),
    [
        ("", "open"),
        (", engine=nisa.unknown_engine", "open"),
        (", engine=nisa.vector_engine", None),
    ],
)
def test_an_engine_is_open_unless_the_kernel_names_it(engine: str, hint: str | None) -> None:
    program = traced(f"nisa.tensor_scalar(a, np.add, 1.0{engine})", ramp(32, 16), target="trn1")
    assert form(program, "tensor_scalar").hint("engine") == hint


def test_operators_of_one_engine_leave_none_open() -> None:
    program = traced("nisa.reciprocal(a)", ramp(32, 16), target="trn1")
    assert form(program, "reciprocal").hint("engine") is None


def test_kernels_of_the_current_namespace_get_the_default_engine(tracing: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out, src=t)
        return out
    """
    assert form(tracing(text, ramp(32, 16)), "tensor_scalar").hints == ()


@pytest.mark.parametrize(("columns", "hint"), [(16, None), (10, 16)])
def test_a_masked_product_says_what_it_was_written_for(columns: int, hint: int | None) -> None:
    before = "i, j, k = nl.arange(32)[:, None], nl.arange(16)[None, :], nl.arange(8)[None, :]"
    body = f"nisa.nc_matmul(a[i, k], a[i, j], mask=(j < {columns}))"
    program = traced(body, ramp(32, 16), before=before, target="trn1")
    product = form(program, "nc_matmul")
    assert (product["moving"].free, product.hint("moving")) == (columns, hint)
    assert Program.from_bytes(program.to_bytes()).forms == program.forms
