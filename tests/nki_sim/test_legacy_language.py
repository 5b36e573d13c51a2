"""The legacy `nki.language`: functions with masks and operators, constants, types, memories."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki_sim
from nki_sim import ArraySpec
from nki_sim.errors import KernelError
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from tests.nki_sim.legacy_kernels import NAMES, evaluate, traced

FEW = settings(max_examples=8)
BF16 = np.dtype(ml_dtypes.bfloat16)


def draw(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).uniform(0.25, 2.0, shape).astype(dtype)


def close(found: Any, wanted: Any, *, rtol: float = 4e-6) -> None:
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=rtol, atol=rtol
    )


MASK = "i, j = nl.mgrid[0:32, 0:24]; t = nl.full((32, 24), -7.0, dtype=nl.float32); t[i, j] = "
CALLS: dict[str, Any] = {
    "nl.exp(a[i, j], mask={mask})": np.exp,
    "nl.add(a[i, j], 1, mask={mask})": lambda a: a + 1,
    "nl.multiply(a[i, j], a[i, j], mask={mask})": np.square,
    "nl.multiply(a[i, j], a[:, 0:1], mask={mask})": lambda a: a * a[:, :1],
    "nl.copy(a[i, j], mask={mask})": lambda a: a,
    "nl.where(a[i, j] > 1, a[i, j], 0.0, mask={mask})": lambda a: np.where(a > 1, a, 0),
    "nl.floor(a[i, j], mask={mask})": np.floor,
}


@pytest.mark.parametrize("call", CALLS)
@FEW
@given(cut=st.integers(0, 32), edge=st.integers(0, 24), seed=st.integers(0, 99))
def test_masks_leave_the_rest_of_the_goal_alone(call: str, cut: int, edge: int, seed: int) -> None:
    a = draw(seed, (32, 24))
    before = MASK + call.format(mask=f"(i < {cut}) & (j >= {edge})")
    wanted = np.full(a.shape, -7.0)
    wanted[:cut, edge:] = CALLS[call](a.astype(np.float64))[:cut, edge:]
    close(evaluate("t", a, before=before), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "call",
    ["nl.broadcast_to(a[0:1, :], shape=(100, 24))", "nl.rand((100, 24), dtype=nl.float32) * 0 + a[0:1, :]"],
)
def test_a_result_of_several_instructions_is_assigned_whole(call: str) -> None:
    a = draw(1, (32, 24))
    before = f"t = nl.ndarray((100, 24), dtype=nl.float32); t[...] = {call}"
    np.testing.assert_array_equal(evaluate("t", a, before=before), np.broadcast_to(a[:1], (100, 24)))


@FEW
@given(width=st.integers(1, 40), seed=st.integers(0, 99))
def test_masked_products_have_fewer_columns(width: int, seed: int) -> None:
    x, y = draw(seed, (40, 24)), draw(seed + 1, (40, 40))
    before = (
        "t = nl.full((24, 40), -7.0, dtype=nl.float32); k, n = nl.mgrid[0:40, 0:40]; "
        f"t[...] = nl.matmul(a, b[k, n], transpose_x=True, mask=(n < {width}))"
    )
    wanted = np.full((24, 40), -7.0)
    wanted[:, :width] = (x.astype(np.float64).T @ y)[:, :width]
    close(evaluate("t", x, y, before=before), wanted, rtol=1e-5)


def test_masked_loads_and_stores_move_no_more_than_they_may() -> None:
    text = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(a):
    n, f = a.shape
    out = nl.ndarray((n, f), dtype=a.dtype, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:128, 0:f]
    for i in nl.affine_range((n + 127) // 128):
        rows = i * 128 + i_p
        tile = nl.load(a[rows, i_f], mask=(rows < n))
        nl.store(out[rows, i_f], value=nl.exp(tile, mask=(rows < n)), mask=(rows < n))
    return out
"""
    a = draw(1, (300, 20))
    program = nki_sim.trace(text, args=[ArraySpec(a.shape, "float32")])
    close(numerics.run(program, [a])[0], np.exp(a))
    assert sum(program.forms[form]["src"].elements for form in program.form_ids[::3]) == a.size


OPERATORS: dict[str, Any] = {
    "a + b": lambda a, b: a + b,
    "a - 1": lambda a, b: a - 1,
    "1 - a": lambda a, b: 1 - a,
    "2 * a / b": lambda a, b: 2 * a / b,
    "a ** 2": lambda a, b: a**2,
    "-a": lambda a, b: -a,
    "abs(a - b)": lambda a, b: np.abs(a - b),
    "nl.maximum(a, 1) * b[:, 0:1]": lambda a, b: np.maximum(a, 1) * b[:, :1],
    "a.broadcast_to((32, 24)) + b": lambda a, b: a + b,
}  # fmt: skip


@pytest.mark.parametrize("text", OPERATORS)
def test_operators_are_the_functions(text: str) -> None:
    a, b = draw(1, (32, 24)), draw(2, (32, 24))
    close(evaluate(text, a, b), OPERATORS[text](a.astype(np.float64), b.astype(np.float64)), rtol=1e-5)


def test_comparisons_and_logic_give_booleans() -> None:
    a, b = (np.random.default_rng(seed).integers(0, 3, (8, 6)).astype(np.float32) for seed in (1, 2))
    for text, wanted in {
        "a < b": a < b, "nl.equal(a, 1)": a == 1, "nl.logical_not(a)": a == 0,
        "nl.logical_and(a > 0, b > 0)": (a > 0) & (b > 0),
        "nl.all(a, axis=1)": (a != 0).all(1, keepdims=True),
    }.items():  # fmt: skip
        found = evaluate(text, a, b)
        assert found.dtype == np.bool_, text
        np.testing.assert_array_equal(found, wanted, err_msg=text)


def test_an_assignment_of_a_result_costs_no_copy() -> None:
    a = draw(1, (32, 24))
    for body in ("nl.exp(a)", "nl.add(a, 1)", "nl.multiply(a, a)", "nl.sum(a, axis=1, keepdims=True)"):
        before = (
            f"t = nl.ndarray({(32, 1) if 'sum' in body else (32, 24)}, dtype=nl.float32); t[...] = {body}"
        )
        assert "tensor_copy" not in {form.op for form in traced("t", a, before=before).forms}, body


def test_reductions_and_norms() -> None:
    a, w = draw(1, (32, 24)), draw(2, (1, 24))
    close(evaluate("nl.sum(a, axis=[1])", a), a.sum(1, keepdims=True), rtol=1e-5)
    close(evaluate("nl.max(a, axis=1, keepdims=True)", a), a.max(1, keepdims=True))
    close(evaluate("nl.mean(a, axis=(1,))", a), a.mean(1, keepdims=True))
    close(evaluate("nl.var(a, axis=1)", a), a.var(1, keepdims=True), rtol=1e-5)
    wide = a.astype(np.float64)
    norm = wide / np.sqrt(np.square(wide).sum(1, keepdims=True) / 24 + 1e-6) * w
    close(evaluate("nl.rms_norm(a, b, axis=1, n=24)", a, w), norm, rtol=1e-5)
    powers = np.exp(wide - wide.max(1, keepdims=True))
    close(evaluate("nl.softmax(a, axis=1)", a), powers / powers.sum(1, keepdims=True), rtol=1e-5)


def test_every_function_is_an_op_value_too() -> None:
    a = draw(1, (32, 24))
    close(evaluate("nisa.activation(op=nl.exp, data=a)", a), np.exp(a))
    close(evaluate("nisa.tensor_scalar(a, op0=nl.add, operand0=1.0)", a), a + 1)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint32])
def test_constants_are_part_of_the_program(dtype: Any) -> None:
    body = f"nl.load(nl.shared_constant(np.arange(12, dtype=np.{np.dtype(dtype).name}).reshape(4, 3)))"
    program = traced(body, draw(1, (1, 1)))
    found = numerics.run(Program.from_bytes(program.to_bytes()), [draw(1, (1, 1))])[0]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.arange(12).reshape(4, 3))


def test_constants_convert_and_equal_ones_are_one() -> None:
    body = "nl.load(nl.shared_constant(np.identity(8, dtype=np.int8), dtype=nl.bfloat16))"
    found = evaluate(body, draw(1, (1, 1)))
    assert found.dtype == BF16
    np.testing.assert_array_equal(found, np.identity(8))
    before = "x = [nl.shared_identity_matrix(8, dtype=nl.float32) for _ in range(3)]"
    program = traced("nl.load(x[2])", draw(1, (1, 1)), before=before)
    assert len(program.constants) == 1


def test_numbers_and_arrays_are_cast_while_tracing() -> None:
    a = draw(1, (4, 3))
    assert evaluate("nl.add(a, nl.static_cast(2, np.float16), dtype=np.float32)", a).shape == (4, 3)
    assert evaluate("nl.static_cast(a, nl.bfloat16)", a).dtype == BF16
    found = evaluate("nl.add(a, nl.fp32.min + float(nl.finfo(nl.float16).max))", a)
    assert (found < -3e38).all()


def test_gathered_and_random_tiles() -> None:
    a = draw(1, (32, 40))
    index = np.random.default_rng(2).integers(0, 40, (32, 6)).astype(np.uint32)
    found = evaluate("nl.gather_flattened(data=a, indices=b)", a, index)
    np.testing.assert_array_equal(found, np.take_along_axis(a, index.astype(np.int64), 1))
    drawn = evaluate("nl.rand((16, 30), dtype=nl.float32)", a, before="nl.random_seed(seed=3)")
    assert 0 <= drawn.min() < drawn.max() < 1
    assert (evaluate("nl.dropout(a, rate=1.0)", a) == 0).all()


def test_atomic_updates_of_one_row_all_count() -> None:
    text = """
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(a, values, rows):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(a))
    nl.atomic_rmw(out[nl.load(rows), nl.arange(20)[None, :]], value=nl.load(values), op=np.add)
    return out
"""
    a, values = draw(1, (64, 20)), draw(2, (8, 20))
    rows = np.array([3, 60, 3, 0, 3, 60, 1, 2], dtype=np.int32)[:, None]
    specs = [ArraySpec(array.shape, NAMES[array.dtype]) for array in (a, values, rows)]
    wanted = a.astype(np.float64)
    np.add.at(wanted, rows[:, 0], values)
    close(numerics.run(nki_sim.trace(text, args=specs), [a, values, rows])[0], wanted)


@pytest.mark.parametrize(
    ("name", "code"), [("all_reduce", "unsupported"), ("gemm_grid", "unknown_name"), ("lod", "unknown_name")]
)
def test_what_is_not_there_is_refused_by_name(name: str, code: str) -> None:
    with pytest.raises(KernelError, match=f"nl.{name}") as refused:
        evaluate(f"nl.{name}(a)", draw(1, (4, 3)))
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("nl.exp(3.0)", "argument_type"),
        ("nl.sum(a, axis=0)", "reduce_axis"),
        ("nl.exp(a, mask='x')", "unsupported_expression_in_mask"),
        ("nl.left_shift(a, 1)", "bitvec_dtype"),
        ("nl.transpose(a, mask='x')", "unsupported_expression_in_mask"),
    ],
)
def test_what_is_wrong_is_refused(body: str, code: str) -> None:
    with pytest.raises(KernelError) as refused:
        evaluate(body, draw(1, (8, 6)))
    assert refused.value.code == code
