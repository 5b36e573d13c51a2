"""Operators on arrays, and what they refuse."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nki_sim import functions
from nki_sim.operators import OPERATORS as INSTRUCTIONS
from targets.nki.knobs import ops
from targets.nki.knobs.errors import WorkloadError
from targets.nki.knobs.functions import ACTIVATIONS, BINARY, REDUCTIONS
from targets.nki.knobs.operators import OPERATORS, Instruction
from tests.support.workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_computes_on_arrays(name: str) -> None:
    workload = WORKLOADS[name]
    inputs = workload.inputs()
    assert workload.error(workload.function(*inputs.values()), inputs) < workload.tolerance


def test_results_have_the_type_of_the_operands_and_columns_are_float32() -> None:
    x = np.ones((4, 8), ml_dtypes.bfloat16)
    assert ops.NKIActivation(op="exp")(data=x).dtype == ml_dtypes.bfloat16
    total = ops.NKITensorReduce(op="add")(data=x)
    assert (total.shape, total.dtype) == ((4,), np.float32)


def test_settings_stand_in_either_bracket_and_have_two_spellings() -> None:
    x, y = np.full((2, 3), 2.0, np.float32), np.full((2, 3), 5.0, np.float32)
    wanted = ops.NKITensorTensor(op="maximum")(data1=x, data2=y)
    np.testing.assert_array_equal(ops.NKITensorTensor()(x, y, op="max"), wanted)
    np.testing.assert_array_equal(ops.NKITensorScalar(op="sub")(src=x, operand0=1.0), np.full((2, 3), 1.0))


def test_every_function_is_one_that_instructions_take() -> None:
    assert set(ACTIVATIONS) <= functions.ACTIVATIONS
    assert set(BINARY) <= functions.ALU
    assert set(REDUCTIONS) <= functions.REDUCE


def test_every_instruction_of_the_table_is_known_on_its_engine() -> None:
    for entry in OPERATORS.values():
        settings: dict[str, Any] = {key: "add" if key in entry.functions else None for key in entry.settings}
        settings |= {"reverse0": False, "reverse1": False}
        first, *_ = entry.emit(settings, False)
        assert entry.engine in {*INSTRUCTIONS[first.name].engines, "dma"}, entry.name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.NKIActivation(op="expo")(data=x), "NKIActivation's op 'expo' is unknown; known are"),
        (lambda x: ops.NKIActivation()(data=x), "NKIActivation needs op=, one of abs, copy"),
        (lambda x: ops.NKITensorScalar(op0="add")(data=x), "NKITensorScalar needs the operand operand0="),
        (lambda x: ops.NKITranspose(axes=2)(data=x), "NKITranspose takes no 'axes' = 2; it takes data"),
        (lambda x: ops.NKITranspose()(data=x, other=x), "NKITranspose takes no operand 'other'"),
        (lambda x: ops.NKITranspose()(x, x), "NKITranspose takes the operands data and no more"),
        (
            lambda x: ops.NKITensorScalar(op0="add")(data=x, operand0=1.0, operand1=2.0),
            "NKITensorScalar's operand1 needs op1=",
        ),
        (lambda x: ops.NKITensorReduce(op="add", axis=0)(data=x), "axis 0: only axis 1"),
        (
            lambda x: ops.NKIActivation(op="exp", scale="2")(data=x),
            "scale is '2'; it is a number or a column",
        ),
    ],
)
def test_what_is_wrong_with_a_call_is_said(call: Any, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        call(np.ones((2, 2), np.float32))
    assert message in str(caught.value)


def test_an_instruction_that_the_simulator_lacks_is_refused_by_name():
    with pytest.raises(ValueError, match=r"nisa\.select is not in nki_sim/operators/.* select_reduce"):
        Instruction("select", ())
