"""Which engine an instruction gets whose kernel leaves the choice open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from nki_sim.compiler.pass_pipeline import compile_program
from nki_sim.frontend import isa
from nki_sim.frontend import language as nl
from nki_sim.program.ir import Program
from tests.nki_sim.compiler.oracle import TRN1

Build = Callable[..., Program]

STEPS: dict[str, Callable[..., Any]] = {
    "copy": isa.tensor_copy,
    "affine": lambda to, x, **engine: isa.tensor_scalar(
        to, x, nl.multiply, 2.0, op1=nl.add, operand1=1.0, **engine
    ),
    "maximum": lambda to, x, **engine: isa.tensor_scalar(to, x, nl.maximum, 2.0, **engine),
    "two tensors": lambda to, x, **engine: isa.tensor_tensor(to, x, x, nl.add, **engine),
}


def engines(building: Build, step: str, dtype: str, **engine: Any) -> Counter[str]:
    def body(b: Any) -> None:
        source = b.recorder.declare((128, 64), dtype, "sbuf", "source")
        isa.memset(source, 1, engine=isa.engine.gpsimd)
        made = b.recorder.declare((128, 64), dtype, "sbuf", "made")
        STEPS[step](made, source, **engine)
        isa.dma_copy(b.out, made)

    program = compile_program(building(body, target="trn1"), TRN1).program
    forms = [program.forms[number] for number in program.form_ids.tolist()]
    return Counter(form.engine for form in forms if form.op not in {"dma_copy", "memset"})


@pytest.mark.parametrize(
    ("step", "wanted"),
    [("copy", "scalar"), ("affine", "scalar"), ("maximum", "vector"), ("two tensors", "vector")],
)
def test_copies_and_affine_functions_go_to_scalar_engine(step: str, wanted: str, building: Build) -> None:
    assert engines(building, step, "float32") == {wanted: 1}


@pytest.mark.parametrize("step", ["copy", "affine"])
def test_an_engine_that_the_kernel_names_stays(step: str, building: Build) -> None:
    assert engines(building, step, "float32", engine=isa.engine.vector) == {"vector": 1}


def test_integers_stay_where_they_are_exact(building: Build) -> None:
    assert engines(building, "copy", "int32") == {"vector": 1}
