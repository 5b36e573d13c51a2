"""Instructions have equal numbers exactly where they compute the same from the same data."""

from __future__ import annotations

from typing import Any

import pytest

from nki_sim import ArraySpec
from nki_sim.flow.instruction_values import number_instructions

KERNEL = """
@nki.jit
def kernel(x, y):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    def tile():
        return nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    a, b, c, d = tile(), tile(), tile(), tile()
    nisa.dma_copy(a, x)
    nisa.dma_copy(b, {source})
    {between}
    nisa.tensor_scalar(c, a, op0=nl.add, operand0=1.0)
    nisa.tensor_scalar(d, b{window}, op0=nl.add, operand0={number})
    nisa.tensor_tensor(d, c, d, nl.add)
    nisa.dma_copy(out, d)
    return out
"""


@pytest.mark.parametrize(("changed", "same"), [
    ({}, True),
    ({"source": "y"}, False),
    ({"source": "out", "between": "nisa.dma_copy(out, a); nisa.dma_copy(b, out)"}, False),
    ({"number": "2.0"}, False),
    ({"between": "nisa.memset(b[:, 0:8], 0.0)"}, False),
    ({"between": "nisa.memset(b, 0.0); nisa.dma_copy(b, x)"}, True),
    ({"between": "nisa.memset(a[0:32], 0.0); nisa.memset(b[0:32], 0.0)"}, True),
    ({"between": "nisa.memset(a[0:32], 0.0); nisa.memset(b[32:64], 0.0)"}, False),
    ({"between": "nisa.dropout(a, a, 0.5); nisa.dropout(b, b, 0.5)"}, False),
])  # fmt: skip
def test_equal_numbers_are_equal_values(changed: dict[str, str], same: bool, tracing: Any) -> None:
    given = {"source": "x", "between": "pass", "window": "", "number": "1.0"} | changed
    program = tracing(KERNEL.format(**given), *[ArraySpec((128, 64), "float32")] * 2)
    values = number_instructions(program)
    sums = [
        number for number, form in enumerate(program.form_ids) if program.forms[form].op == "tensor_scalar"
    ]
    first, second = (values[number] for number in sums)
    assert (first == second) is same
