"""The legacy `nki.isa`: returned tiles, their shapes and types, NumPy functions as `op=`, masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError
from tests.nki_sim.legacy_kernels import evaluate, traced

FEW = settings(max_examples=10)
BF16 = np.dtype(ml_dtypes.bfloat16)
INTO = "r = nl.full(({shape}), -7.0, dtype={dtype}, buffer=nl.sbuf)\n    r[...] = {body}"


def draw(
    seed: int, shape: tuple[int, ...], dtype: Any = np.float32, low: float = 0.25, high: float = 2.0
) -> Any:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def close(found: Any, wanted: Any, *, rtol: float = 4e-6) -> None:
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=rtol, atol=rtol
    )


def wide(*arrays: Any) -> list[Any]:
    return [array.astype(np.float64) for array in arrays]


Statement = Callable[..., Any]


def scan(a: Any, b: Any) -> Any:
    out, state = np.empty_like(a), np.full(len(a), 0.5)
    for i in range(a.shape[1]):
        state = out[:, i] = a[:, i] * state + b[:, i]
    return out


# Call over a [P, F], b [P, F], c [P, 1] -> what it gives, stated on float64 arrays.
CALLS: dict[str, Statement] = {
    "nisa.activation(nl.exp, a, scale=0.5)": lambda a, b, c: np.exp(a * 0.5),
    "nisa.activation(op=np.square, data=a, bias=c, scale=c)": lambda a, b, c: np.square(a * c + c),
    "nisa.tensor_scalar(a, np.multiply, 2.0)": lambda a, b, c: a * 2,
    "nisa.tensor_scalar(a, np.subtract, c, True, np.add, 1)": lambda a, b, c: c - a + 1,
    "nisa.tensor_scalar(a, op0=nl.maximum, operand0=np.float32(1), op1=nl.multiply, operand1=c)": (
        lambda a, b, c: np.maximum(a, 1) * c
    ),
    "nisa.tensor_tensor(a, b, np.subtract)": lambda a, b, c: a - b,
    "nisa.tensor_tensor(a, b, op=nl.add, engine=nisa.gpsimd_engine)": lambda a, b, c: a + b,
    "nisa.scalar_tensor_tensor(data=a, op0=np.subtract, operand0=c, op1=np.multiply, operand1=b)": (
        lambda a, b, c: (a - c) * b
    ),
    "nisa.tensor_tensor_scan(a, b, initial=0.5, op0=np.multiply, op1=np.add)": lambda a, b, c: scan(a, b),
    "nisa.tensor_reduce(np.max, a, axis=[1])": lambda a, b, c: a.max(1, keepdims=True),
    "nisa.tensor_reduce(np.add, a, axis=(1,), negate=True, keepdims=True)": (
        lambda a, b, c: -a.sum(1, keepdims=True)
    ),
    "nisa.reciprocal(a)": lambda a, b, c: 1 / a,
    "nisa.tensor_copy(a, engine=nisa.vector_engine)": lambda a, b, c: a,
    "nisa.tensor_partition_reduce(np.add, a)": lambda a, b, c: a.sum(0, keepdims=True),
    "nisa.max8(src=a)": lambda a, b, c: -np.sort(-a, axis=1)[:, :8],
    "nisa.memset((5, 3), 2.5, np.float32)": lambda a, b, c: np.full((5, 3), 2.5),
    "nisa.dropout(a, 0.0)": lambda a, b, c: a,
    "nisa.dropout(a, prob=1.0)": lambda a, b, c: a * 0,
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
@FEW
@given(rows=st.sampled_from([32, 64, 128]), free=st.integers(8, 60), seed=st.integers(0, 99))
def test_instructions_return_what_is_documented(call: str, rows: int, free: int, seed: int) -> None:
    arrays = draw(seed, (rows, free)), draw(seed + 1, (rows, free)), draw(seed + 2, (rows, 1))
    close(evaluate(call, *arrays), CALLS[call](*wide(*arrays)), rtol=2e-5)


def test_a_result_has_the_type_of_its_data_unless_told() -> None:
    a, b, c = draw(1, (32, 16), BF16), draw(2, (32, 16)), draw(3, (32, 1), BF16)
    assert evaluate("nisa.activation(nl.exp, a)", a).dtype == BF16
    assert evaluate("nisa.activation(nl.exp, a, dtype=np.float32)", a).dtype == np.float32
    assert evaluate("nisa.tensor_tensor(a, b, np.add)", a, b).dtype == np.float32
    assert evaluate("nisa.tensor_scalar(b, np.add, a[:, 0:1])", a, b).dtype == np.float32
    found = evaluate("nisa.tensor_scalar(a, np.multiply, b, dtype=nl.float32)", b, c)
    close(found, b.astype(np.float64) * c.astype(np.float64))


def test_products_are_float32_in_psum() -> None:
    x, y = draw(1, (64, 32)), draw(2, (64, 48))
    program = traced("nisa.nc_matmul(a, b, is_moving_onezero=False)", x, y)
    form = next(form for form in program.forms if form.op == "nc_matmul")
    assert (form["dst"].buffer, form["dst"].dtype) == ("psum", "float32")
    close(evaluate("nisa.nc_matmul(a, b)", x, y), x.astype(np.float64).T @ y, rtol=1e-5)


def test_double_rows_contract_twice_the_partitions() -> None:
    fp8 = ml_dtypes.float8_e5m2
    x, y = draw(1, (64, 2, 32), fp8), draw(2, (64, 2, 48), fp8)
    found = evaluate("nisa.nc_matmul(a, b, perf_mode='double_row_gen3')", x, y)
    close(found, np.einsum("krm,krn->mn", *wide(x, y)), rtol=1e-5)
    with pytest.raises(KernelError, match="argument_value"):
        evaluate("nisa.nc_matmul(a, b, perf_mode='triple')", x, y)


@pytest.mark.parametrize("options", ["", ", engine=nisa.tensor_engine", ", engine=nisa.vector_engine"])
def test_transposes(options: str) -> None:
    a = draw(1, (32, 32))
    np.testing.assert_array_equal(evaluate(f"nisa.nc_transpose(a{options})", a), a.T)


def test_a_transpose_may_convert_at_the_price_of_a_copy() -> None:
    a = draw(1, (128, 64))
    found = evaluate("nisa.nc_transpose(a, dtype=nl.bfloat16)", a)
    np.testing.assert_array_equal(found, a.T.astype(BF16))


def test_statistics_of_each_partition() -> None:
    a = draw(1, (32, 96))
    found = evaluate("nisa.bn_aggr(nisa.bn_stats(a))", a)
    close(found, np.stack([a.mean(1), a.var(1)], axis=1), rtol=1e-5)


def test_search_and_replace() -> None:
    a = np.random.default_rng(4).permutation(64 * 32).reshape(32, 64).astype(np.float32)
    order = np.argsort(-a, axis=1)[:, :8]
    found = evaluate("nisa.nc_find_index8(data=a, vals=nisa.max8(src=a))", a)
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, order)
    replaced = a.copy()
    np.put_along_axis(replaced, order, -1, axis=1)
    body = "nisa.nc_match_replace8(data=a, vals=nisa.max8(src=a), imm=-1.0)"
    np.testing.assert_array_equal(evaluate(body, a), replaced)


@FEW
@given(
    shape=st.sampled_from([(1, 40), (128, 1), (64, 24)]),
    scale=st.tuples(st.integers(-3, 3), st.integers(-3, 3)),
    first=st.integers(-50, 50),
)
def test_iota_makes_a_tile_of_an_index_expression(shape: Any, scale: Any, first: int) -> None:
    rows, columns = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    before = f"p, f = nl.mgrid[0:{shape[0]}, 0:{shape[1]}]"
    body = f"nisa.iota({first} + {scale[0]} * p + {scale[1]} * f, dtype=nl.int32)"
    found = evaluate(body, draw(0, (1, 1)), before=before)
    np.testing.assert_array_equal(found, first + scale[0] * rows + scale[1] * columns)


@pytest.mark.parametrize(
    ("sign", "compare"), [("<", np.less), (">=", np.greater_equal), ("==", np.equal), (">", np.greater)]
)
def test_affine_select_keeps_where_the_predicate_holds(sign: str, compare: Any) -> None:
    a = draw(1, (64, 64))
    before = "i, j = nl.mgrid[0:64, 0:64]"
    body = f"nisa.affine_select(pred=(2 * j {sign} i + 3), on_true_tile=a, on_false_value=-9.0)"
    rows, columns = np.indices(a.shape)
    np.testing.assert_array_equal(
        evaluate(body, a, before=before), np.where(compare(2 * columns, rows + 3), a, np.float32(-9))
    )


def test_affine_select_takes_one_comparison() -> None:
    before = "i, j = nl.mgrid[0:64, 0:64]"
    body = "nisa.affine_select(pred=(i < j) & (i > 3), on_true_tile=a, on_false_value=-9.0)"
    with pytest.raises(KernelError, match="unsupported_expression_in_mask"):
        evaluate(body, draw(1, (64, 64)), before=before)


def test_range_select_keeps_a_range_of_each_row() -> None:
    a, low, high = (
        draw(1, (32, 40)),
        np.full((32, 1), 3, np.float32),
        np.arange(32, dtype=np.float32)[:, None],
    )
    body = (
        "nisa.range_select(on_true_tile=a, comp_op0=np.greater_equal, comp_op1=np.less, bound0=b, bound1=c, "
        "reduce_op=np.max, on_false_value=nl.fp32.min)"
    )
    at = np.arange(40)[None, :]
    wanted = np.where((at >= low) & (at < high), a, np.finfo(np.float32).min)
    np.testing.assert_array_equal(evaluate(body, a, low, high), wanted)


def test_shuffles_and_predicated_copies_write_the_tile_they_are_given() -> None:
    a, b = draw(1, (32, 12)), draw(2, (32, 12))
    np.testing.assert_array_equal(
        evaluate("b", a, b, before="nisa.nc_stream_shuffle(a, b, [31 - i for i in range(32)])"), a[::-1]
    )
    test = (draw(3, (32, 12)) > 1).astype(np.uint8)
    before = "nisa.tensor_copy_predicated(src=a, dst=b, predicate=c)"
    np.testing.assert_array_equal(evaluate("b", a, b, test, before=before), np.where(test, a, b))


def test_select_reduce_chooses_and_keeps_the_largest() -> None:
    a, test = draw(1, (32, 12)), (draw(3, (32, 12)) > 1).astype(np.uint8)
    before = (
        "d = nl.ndarray((32, 12), dtype=nl.float32); m = nl.ndarray((32, 1), dtype=nl.float32); "
        "nisa.select_reduce(dst=d, predicate=b, on_true=a, on_false=-2.0, reduce_res=m, "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_op=np.max)"
    )
    wanted = np.where(test, a, np.float32(-2))
    np.testing.assert_array_equal(evaluate("d", a, test, before=before), wanted)
    np.testing.assert_array_equal(evaluate("m", a, test, before=before), wanted.max(1, keepdims=True))


def test_local_gather_returns_sixteen_indices_for_each_element() -> None:
    source, index = draw(1, (32, 20, 2)), np.random.default_rng(2).integers(0, 20, (32, 3)).astype(np.uint16)
    found = evaluate("nisa.local_gather(a, b, 2)", source, (index * 2).astype(np.uint16))
    assert found.shape == (32, 3, 16, 2)
    for core in range(2):
        rows = slice(16 * core, 16 * core + 16)
        flat = index[rows].flatten(order="F")
        np.testing.assert_array_equal(found[rows].reshape(16, 48, 2), source[rows][:, flat])


def test_dma_transposes_and_copies() -> None:
    a = draw(1, (64, 32), BF16)
    np.testing.assert_array_equal(evaluate("nisa.dma_transpose(a)", a), a.T)
    before = "t = nl.ndarray((64, 32), dtype=nl.float32); nisa.dma_copy(dst=t, src=a)"
    np.testing.assert_array_equal(evaluate("t", a, before=before), a.astype(np.float32))


MASKED = {
    "nisa.activation(nl.exp, a[i, j], mask={mask})": np.exp,
    "nisa.tensor_scalar(a[i, j], np.add, 1.0, mask={mask})": lambda a: a + 1,
    "nisa.tensor_tensor(a[i, j], a[i, j], np.multiply, mask={mask})": lambda a: a * a,
    "nisa.tensor_copy(a[i, j], mask={mask})": lambda a: a,
}


@pytest.mark.parametrize("call", MASKED)
@FEW
@given(cut=st.integers(0, 32), edge=st.integers(0, 24), seed=st.integers(0, 99))
def test_masks_leave_the_rest_of_the_goal_alone(call: str, cut: int, edge: int, seed: int) -> None:
    a = draw(seed, (32, 24))
    body = call.format(mask=f"(i < {cut}) & (j >= {edge})")
    before = "i, j = nl.mgrid[0:32, 0:24]; t = nl.full((32, 24), -7.0, dtype=nl.float32); t[i, j] = " + body
    wanted = np.full(a.shape, -7.0)
    wanted[:cut, edge:] = MASKED[call](a.astype(np.float64))[:cut, edge:]
    close(evaluate("t", a, before=before), wanted, rtol=1e-5)


def test_a_masked_reduction_joins_what_is_left() -> None:
    a = draw(1, (32, 24))
    body = "nisa.tensor_reduce(np.add, a[i, j], axis=[1], mask=(j < 5))"
    close(evaluate(body, a, before="i, j = nl.mgrid[0:32, 0:24]"), a[:, :5].sum(1, keepdims=True))


def test_masked_statistics_join_what_is_left() -> None:
    a = draw(1, (32, 24))
    body = "nisa.bn_aggr(nisa.bn_stats(a[i, j], mask=(j < 10)))"
    found = evaluate(body, a, before="i, j = nl.mgrid[0:32, 0:24]")
    close(found, np.stack([a[:, :10].mean(1), a[:, :10].var(1)], axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("nisa.builtin_custom_op('f', 'lib.so', 1, 1, [a], [a])", "unsupported"),
        ("nisa.activation(nl.exp, a, lut=3)", "unsupported_argument"),
        ("nisa.activation(3, a)", "op"),
        ("nisa.tensor_scalar(a, nl.exp, 1.0)", "op"),
        ("nisa.activation(nl.exp, a, 1, 2, 3, 4, 5, 6, 7, 8)", "too_many_arguments"),
        ("nisa.activation(nl.exp, op=nl.exp, data=a)", "argument_twice"),
        ("nisa.activation(nl.exp, 3.0)", "missing_argument"),
        ("nisa.iota(3, dtype=nl.int32)", "argument_type"),
        ("nisa.tensor_reduce(np.add, a, axis=[0])", "reduce_axis"),
    ],
)
def test_what_is_refused_says_so(body: str, code: str) -> None:
    with pytest.raises(KernelError) as refused:
        evaluate(body, draw(1, (32, 32)))
    assert refused.value.code == code
    assert refused.value.line


def test_generations_compare_by_age() -> None:
    a = draw(1, (32, 32))
    body = "nisa.tensor_scalar(a, np.add, 1.0 if nisa.get_nc_version() >= nisa.nc_version.gen3 else 2.0)"
    close(evaluate(body, a, target="trn1"), a + np.float32(2))
    close(evaluate(body, a, target="trn2"), a + np.float32(1))
