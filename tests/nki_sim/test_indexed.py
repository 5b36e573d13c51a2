"""Addresses that depend on data: what they may touch, what they are made of, what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.checks.coverage import examine_coverage
from nki_sim.errors import KernelError
from nki_sim.forms import Form, Operand
from nki_sim.operators import OPERATORS
from nki_sim.operators.rules import shapes as rules
from nki_sim.program.ir import Program
from nki_sim.timing.dependences import find_dependences

TRN2 = targets.load("trn2")
X = ArraySpec((128, 512), "float32")


def kernel(body: str, dtype: str = "int32") -> str:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return f"""
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    rows = nl.ndarray((128, 1), dtype=nl.{dtype}, buffer=nl.sbuf)
    nisa.memset(rows, 3)
    t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    u = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    h = nl.ndarray((256, 512), dtype=nl.float32, buffer=nl.private_hbm)
{lines}
    nisa.dma_copy(dst=out, src=x)
    return out
"""


GATHER = (
    "nisa.dma_copy(dst=t, src={name}.ap(pattern=[[512, 128], [1, 512]], vector_offset=rows, indirect_dim=0))"
)
SCATTER = (
    "nisa.dma_copy(dst={name}.ap(pattern=[[512, 128], [1, 512]], vector_offset=rows, indirect_dim=0), src=t)"
)
FILL = "nisa.memset(t, 1.0)\nnisa.dma_copy(dst=h[{rows}], src=t)"


def unproven(program: Program) -> set[str]:
    assert checks.check(program, TRN2) == []
    return {program.site(tensor).name for tensor in examine_coverage(program).unproven}


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (GATHER.format(name="x"), set()),
        (f"{FILL.format(rows='0:128')}\n{GATHER.format(name='h')}", {"h"}),
        (f"{FILL.format(rows='0:128')}\n{FILL.format(rows='128:256')}\n{GATHER.format(name='h')}", set()),
        (f"nisa.memset(t, 1.0)\n{SCATTER.format(name='h')}\nnisa.dma_copy(dst=u, src=h[0:128])", {"h"}),
    ],
)
def test_what_data_decide_is_left_to_the_run(body: str, left: set[str], tracing: Any) -> None:
    assert unproven(tracing(kernel(body), X)) == left


def test_a_gather_from_what_nobody_wrote_is_an_error_at_once(tracing: Any) -> None:
    (violation,) = checks.check(tracing(kernel(GATHER.format(name="h")), X), TRN2)
    assert (violation.code, violation.tensor) == ("uninitialised_read", "h")


def test_an_indexed_access_waits_for_all_that_it_may_touch(tracing: Any) -> None:
    """It may touch any row: a scatter waits for a read of rows that its base pattern does not cover."""
    read = "nisa.dma_copy(dst=u, src=h[128:256])"
    fill = f"{FILL.format(rows='0:128')}\nnisa.dma_copy(dst=h[128:256], src=t)"
    program = tracing(kernel(f"{fill}\n{read}\n{SCATTER.format(name='h')}"), X)
    ops = [program.forms[form] for form in program.form_ids.tolist()]
    scatter = next(i for i, form in enumerate(ops) if form["dst"].index_step)
    waits = find_dependences(program).predecessors
    assert {scatter - 1, scatter - 3} <= set(waits[scatter])
    assert 0 in waits[scatter], "the indices were written by the first instruction"


@pytest.mark.parametrize(("dtype", "refused"), [("int32", False), ("uint32", False), ("int16", True)])
def test_indices_are_words(dtype: str, refused: bool, tracing: Any) -> None:
    text = kernel(GATHER.format(name="x"), dtype)
    if not refused:
        assert checks.check(tracing(text, X), TRN2) == []
        return
    with pytest.raises(KernelError) as caught:
        tracing(text, X)
    assert caught.value.code == "index_dtype"


def test_gathers_cost_the_making_of_descriptors(tracing: Any) -> None:
    program = tracing(kernel(GATHER.format(name="x")), X)
    costs = [OPERATORS[form.op].cost(form, TRN2) for form in program.forms if form.op == "dma_copy"]
    assert sorted(cost.descriptor_ns for cost in costs) == [
        TRN2.dma_descriptor_ns, TRN2.dma_software_descriptor_ns,
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "engine", "codes"), [
    (128, "vector", ["indirect_access"]), (1, "vector", []), (128, "dma", []),
])  # fmt: skip
def test_engines_take_one_index_at_a_time(count: int, engine: str, codes: list[str]) -> None:
    dims = ((0 if count > 1 else 8, 128), (1, 8))
    src = Operand("src", dims, "float32", "sbuf", 8, 0, index_step=8)
    index = Operand("src_index", ((1, count), (1, 1)), "int32", "sbuf", 1, 0)
    dst = Operand("dst", ((8, 128), (1, 8)), "float32", "sbuf", 8, 0)
    form = Form("tensor_copy", engine, (dst, src, index), ())
    assert [breach.code for breach in rules.index_operands(form, TRN2)] == codes
