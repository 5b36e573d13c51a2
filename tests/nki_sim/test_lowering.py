"""The `nl.*` functions that compute, against NumPy: values, shapes, types, masks, what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki_sim.errors import KernelError
from tests.nki_sim.lowered import BF16, FEW, KERNEL, close, draw

ARITHMETIC = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "maximum": np.maximum, "minimum": np.minimum, "power": np.power,
}  # fmt: skip
SHAPES = (
    ((64, 24), (64, 24)), ((64, 24), (64, 1)), ((64, 1), (64, 24)), ((32, 3, 8), (32, 1)),
    ((32, 3, 8), (32, 8)), ((16, 1, 8), (16, 3, 1)), ((5, 1), (5, 1)), ((96, 6), (1, 6)), ((1, 1), (40, 6)),
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(ARITHMETIC))
@FEW
@given(
    shapes=st.sampled_from(SHAPES),
    seed=st.integers(0, 99),
    types=st.tuples(*[st.sampled_from([np.float32, BF16])] * 2),
)
def test_functions_of_two_tiles_broadcast(
    name: str, shapes: Any, seed: int, types: Any, *, evaluate: Any
) -> None:
    a, b = (
        draw(seed + at, shape, dtype) for at, (shape, dtype) in enumerate(zip(shapes, types, strict=True))
    )
    found = evaluate(f"fn['{name}'](a, b)", a, b)
    rank = max(a.ndim, b.ndim)
    wide = [x.reshape(x.shape[0], *(1,) * (rank - x.ndim), *x.shape[1:]).astype(np.float64) for x in (a, b)]
    assert found.dtype == (BF16 if types == (BF16, BF16) else np.float32)
    close(found, ARITHMETIC[name](*wide), rtol=2e-2 if found.dtype == BF16 else 4e-6)


@pytest.mark.parametrize("name", sorted(ARITHMETIC))
@pytest.mark.parametrize("text", ["(a, 1.5)", "(1.5, a)"])
def test_functions_of_a_tile_and_a_number(name: str, text: str, evaluate: Any) -> None:
    a = draw(3, (33, 5, 3))
    x, y = eval(text)
    close(evaluate(f"fn['{name}']{text}", a), ARITHMETIC[name](x, y), rtol=4e-6)


UNARY: dict[str, Any] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: x**-0.5, "square": np.square,
    "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "silu": lambda x: x / (1 + np.exp(-x)),
    "abs": np.abs, "relu": lambda x: np.maximum(x, 0), "negative": np.negative,
    "reciprocal": np.reciprocal, "copy": lambda x: x,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "sign": np.sign, "arctan": np.arctan,
}  # fmt: skip
POSITIVE = {"log", "sqrt", "rsqrt"}


@pytest.mark.parametrize("name", sorted(UNARY))
@FEW
@given(
    shape=st.sampled_from([(7, 5), (64, 2, 9), (128, 33)]),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([np.float32, BF16]),
)
def test_functions_of_one_tile(name: str, shape: Any, seed: int, dtype: Any, *, evaluate: Any) -> None:
    a = draw(seed, shape, dtype, low=0.2 if name in POSITIVE else -3.0, high=3.0)
    a[a == 0] = 1
    found = evaluate(f"fn['{name}'](a)", a)
    assert found.dtype == dtype
    wanted = UNARY[name](a.astype(np.float64))
    if name in {"sin", "cos", "tan"}:
        scale = 1 + np.square(wanted)
        close(found.astype(np.float64) / scale, wanted / scale, rtol=1e-2 if dtype == BF16 else 4e-5)
    else:
        close(found, wanted, rtol=1e-2 if dtype == BF16 else 4e-6)


@FEW
@given(size=st.floats(0.001, 1000.0), seed=st.integers(0, 999))
def test_sines_hold_far_beyond_the_engine_s_range(size: float, seed: int, *, evaluate: Any) -> None:
    """Within what rounding the argument to float32 does to it."""
    a = draw(seed, (16, 64), low=-size, high=size)
    a[0, :4] = np.float32(np.pi) * np.array([1, -1, 3, -3], np.float32)
    for name in ("sin", "cos"):
        wanted = UNARY[name](a.astype(np.float64))
        np.testing.assert_allclose(evaluate(f"fn['{name}'](a)", a), wanted, atol=(size + 10) * 2.0**-22)


@FEW
@given(exponent=st.integers(-30, 20), seed=st.integers(0, 999))
def test_integral_parts_are_exact_at_every_size(exponent: int, seed: int, *, evaluate: Any) -> None:
    a = (draw(seed, (8, 16), low=-1, high=1) * np.float32(2.0**exponent)).astype(np.float32)
    a[0, :4] = np.array([np.inf, -np.inf, np.nan, 2.0**24], np.float32)
    for name in ("floor", "ceil", "trunc"):
        np.testing.assert_array_equal(evaluate(f"fn['{name}'](a)", a), UNARY[name](a))


@FEW
@given(exponent=st.integers(-40, 126), seed=st.integers(0, 999))
def test_arctangents_hold_at_every_size(exponent: int, seed: int, *, evaluate: Any) -> None:
    a = (draw(seed, (8, 16), low=-1, high=1) * np.float32(2.0**exponent)).astype(np.float32)
    a[0, :3] = np.array([np.inf, -np.inf, 0.0], np.float32)
    np.testing.assert_allclose(evaluate("fn['arctan'](a)", a), np.arctan(a.astype(np.float64)), rtol=1e-6)


REDUCTIONS: dict[str, Any] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "mean": np.mean, "var": np.var,
}  # fmt: skip
AXES = [
    ((9, 7), (1,)),
    ((9, 4, 3), (1,)),
    ((9, 4, 3), (2,)),
    ((9, 4, 3), (1, 2)),
    ((9, 2, 3, 4), (1, 3)),
    ((9, 7), (-1,)),
]


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize("keepdims", [False, True])
@FEW
@given(case=st.sampled_from(AXES), seed=st.integers(0, 99))
def test_reductions_over_any_free_axes(
    name: str, keepdims: bool, case: Any, seed: int, *, evaluate: Any
) -> None:
    shape, axes = case
    a = draw(seed, shape)
    found = evaluate(f"fn['{name}'](a, axis={list(axes)}, keepdims={keepdims})", a)
    wanted = REDUCTIONS[name](a.astype(np.float64), axis=axes, keepdims=keepdims)
    close(found, wanted if wanted.ndim > 1 else wanted[:, None], rtol=1e-5)


def test_means_of_integers_are_float32(evaluate: Any) -> None:
    a = np.arange(12, dtype=np.int32).reshape(4, 3)
    found = evaluate("fn['mean'](a, 1)", a)
    assert found.dtype == np.float32
    close(found, a.mean(axis=1, keepdims=True))


@pytest.mark.parametrize("axis", ["0", "(0, 1)", "3", "1.5", "()"])
def test_only_free_axes_are_reduced(axis: str, evaluate: Any) -> None:
    with pytest.raises(KernelError, match="reduce_axis"):
        evaluate(f"fn['sum'](a, {axis})", draw(0, (8, 8)))


def test_all_tells_where_no_element_is_zero(evaluate: Any) -> None:
    a = np.ones((4, 6), np.float32)
    a[1, 3] = 0
    np.testing.assert_array_equal(evaluate("fn['all'](a, 1)", a)[:, 0], [1, 0, 1, 1])


@FEW
@given(shape=st.sampled_from([(8, 12), (8, 3, 4)]), seed=st.integers(0, 99))
def test_softmax_and_rms_norm(shape: Any, seed: int, *, evaluate: Any) -> None:
    a = draw(seed, shape, low=-8, high=8)
    powers = np.exp(a.astype(np.float64) - a.max(-1, keepdims=True))
    close(evaluate("fn['softmax'](a, -1)", a), powers / powers.sum(-1, keepdims=True), rtol=1e-5)
    w = draw(seed + 1, shape)
    root = np.sqrt(np.square(a.astype(np.float64)).sum(-1, keepdims=True) / 24 + 1e-3)
    close(evaluate("fn['rms_norm'](a, b, -1, 24, 1e-3)", a, w), a / root * w, rtol=1e-5)


@FEW
@given(
    m=st.sampled_from([1, 17, 40, 128]),
    k=st.sampled_from([3, 40, 128]),
    n=st.sampled_from([1, 96, 512]),
    seed=st.integers(0, 99),
)
def test_matmul_transposes_its_left_operand_unless_told(
    m: int, k: int, n: int, seed: int, *, evaluate: Any
) -> None:
    x, y = draw(seed, (m, k)), draw(seed + 1, (k, n))
    wanted = x.astype(np.float64) @ y
    close(evaluate("fn['matmul'](a, b)", x, y) / k, wanted / k, rtol=1e-5)
    turned = np.ascontiguousarray(x.T)
    close(evaluate("fn['matmul'](a, b, transpose_x=True)", turned, y) / k, wanted / k, rtol=1e-5)


def test_matmul_takes_operands_from_psum(evaluate: Any) -> None:
    x, y = draw(1, (40, 60)), draw(2, (50, 60))
    wanted = x.astype(np.float64) @ y.T
    close(evaluate("fn['matmul'](a, fn['transpose'](b))", x, y) / 60, wanted / 60, rtol=1e-5)
    both = "fn['matmul'](fn['transpose'](a), fn['transpose'](b), transpose_x=True)"
    close(evaluate(both, x, y) / 60, wanted / 60, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("shape", [(20, 30), (32, 32), (128, 64), (33, 128)])
def test_transpose(shape: Any, dtype: Any, evaluate: Any) -> None:
    a = draw(5, shape, dtype)
    np.testing.assert_array_equal(evaluate("fn['transpose'](a)", a), a.T)


MASKED = """
from nki_sim.frontend.lowering import FUNCTIONS as fn


@nki.jit
def kernel(a):
    a = fn["load"](a)
    r = {body}
    out = nl.ndarray(r.shape, dtype=r.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(r.shape, dtype=r.dtype, buffer=nl.sbuf)
    nisa.memset(dst=t, value=-7.0)
    for box in {boxes}:
        at = tuple(slice(*span) for span in box)
        nisa.tensor_copy(dst=t[at], src=r[at])
    fn["store"](out, t)
    return out
"""


@FEW
@given(
    cuts=st.tuples(st.integers(0, 31), st.integers(0, 19)), seed=st.integers(0, 99),
    name=st.sampled_from(["exp", "cos", "floor"]),
)  # fmt: skip
def test_masks_leave_the_rest_alone(cuts: Any, seed: int, name: str, *, simulate: Any) -> None:
    a = draw(seed, (32, 20))
    boxes = [((0, 32), (cuts[1], 20))] if cuts[1] < 20 else []
    (found,) = simulate(MASKED.format(body=f"fn['{name}'](a, where={boxes})", boxes=boxes), a)
    wanted = np.full(a.shape, -7.0)
    wanted[:, cuts[1] :] = UNARY[name](a.astype(np.float64))[:, cuts[1] :]
    close(found, wanted, rtol=1e-4)


def test_masked_reductions_join_what_is_left(simulate: Any) -> None:
    a = draw(1, (32, 20))
    body = "fn['mean'](a, 1, where=[((0, 16), (0, 7))])"
    (found,) = simulate(MASKED.format(body=body, boxes=[((0, 16), (0, 1))]), a)
    close(found[:16], a[:16, :7].sum(axis=1, keepdims=True) / 20, rtol=1e-5)
    assert (found[16:] == -7).all()


def test_a_mask_that_reduces_twice_into_one_element_is_refused(simulate: Any) -> None:
    boxes = [((0, 32), (0, 4)), ((0, 32), (8, 12))]
    with pytest.raises(KernelError, match="unsupported_expression_in_mask"):
        simulate(MASKED.format(body=f"fn['sum'](a, 1, where={boxes})", boxes=[]), draw(1, (32, 20)))


def test_an_empty_mask_emits_nothing(tracing: Any) -> None:
    empty = tracing(MASKED.format(body="fn['exp'](a, where=[])", boxes=[]), draw(1, (32, 20)))
    assert "activation" not in {form.op for form in empty.forms}


COMPARE = {
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(COMPARE))
def test_comparisons_give_ones_and_zeros_of_the_type_of_their_operands(name: str, evaluate: Any) -> None:
    a, b = (np.random.default_rng(seed).integers(0, 4, (16, 12)).astype(np.float32) for seed in (1, 2))
    found = evaluate(f"fn['{name}'](a, b)", a, b)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, COMPARE[name](a, b))
    assert evaluate(f"fn['{name}'](a, 2, dtype=nl.uint8)", a).dtype == np.uint8
    np.testing.assert_array_equal(evaluate(f"fn['{name}'](2.0, b)", a, b), COMPARE[name](2.0, b))


INTEGERS: dict[str, Any] = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift, "right_shift": np.right_shift,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(INTEGERS))
@pytest.mark.parametrize("dtype", [np.uint8, np.uint32])
def test_functions_of_bits_are_exact(name: str, dtype: Any, evaluate: Any) -> None:
    a = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, (16, 12)).astype(dtype)
    b = np.random.default_rng(2).integers(0, 7, (16, 12)).astype(dtype)
    np.testing.assert_array_equal(evaluate(f"fn['{name}'](a, b)", a, b), INTEGERS[name](a, b))
    wanted = INTEGERS[name](a, dtype(3))
    np.testing.assert_array_equal(evaluate(f"fn['{name}'](a, 3, dtype=a.dtype)", a), wanted)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint32])
def test_invert_turns_every_bit(dtype: Any, evaluate: Any) -> None:
    a = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, (16, 12)).astype(dtype)
    np.testing.assert_array_equal(evaluate("fn['invert'](a)", a), ~a)


def test_logic_is_of_zero_and_the_rest(evaluate: Any) -> None:
    a, b = (np.random.default_rng(seed).integers(0, 2, (16, 12)).astype(np.uint8) for seed in (1, 2))
    np.testing.assert_array_equal(evaluate("fn['logical_not'](a)", a), np.logical_not(a))
    for name in ("logical_and", "logical_or", "logical_xor"):
        np.testing.assert_array_equal(evaluate(f"fn['{name}'](a, b)", a, b), getattr(np, name)(a, b))


@pytest.mark.parametrize("name", ["mod", "fmod"])
def test_remainders_have_the_sign_of_divisor_or_dividend(name: str, evaluate: Any) -> None:
    a = draw(1, (16, 12), low=-9, high=9)
    for divisor in (2.5, -2.5):
        wanted = getattr(np, name)(a.astype(np.float64), divisor)
        close(evaluate(f"fn['{name}'](a, {divisor})", a), wanted, rtol=1e-5)


PROMOTIONS = [
    (np.int32, np.float16, np.float16), (np.float32, BF16, np.float32), (np.float16, BF16, np.float32),
    (np.int16, np.int32, np.int32), (np.uint8, np.uint16, np.uint16), (np.uint16, np.int32, np.int32),
    (np.int8, np.uint8, np.int16), (np.int8, np.uint16, np.int32), (np.int32, np.uint32, np.float32),
    (ml_dtypes.float8_e4m3, np.float16, np.float16), (ml_dtypes.float8_e4m3, BF16, BF16),
    (ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2, BF16), (np.uint8, np.uint8, np.uint8),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "wanted"), PROMOTIONS)
def test_types_are_promoted_as_documented(left: Any, right: Any, wanted: Any, evaluate: Any) -> None:
    a, b = np.ones((4, 3), left), np.ones((4, 3), right)
    for pair in ((a, b), (b, a)):
        found = evaluate("fn['maximum'](a, b)", *pair)
        assert found.dtype == np.dtype(wanted)
        assert (found.astype(np.float32) == 1).all()


@pytest.mark.parametrize(
    ("dtype", "value", "wanted"),
    [
        (np.int8, "2", np.int32), (np.float16, "1.5", np.float32),
        (np.float16, "np.float16(1.5)", np.float16),
        (np.int16, "np.int8(2)", np.int16), (np.float16, "2", np.float16),
        (np.int8, "True", np.int16),
    ],
)  # fmt: skip
def test_numbers_count_as_the_widest_type_of_their_kind(
    dtype: Any, value: str, wanted: Any, simulate: Any
) -> None:
    text = "import numpy as np\n" + KERNEL.format(names="a", body=f"fn['multiply'](a, {value})")
    assert simulate(text, np.ones((4, 3), dtype))[0].dtype == np.dtype(wanted)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("fn['add'](1, 2)", "argument_type"),
        ("fn['add'](a, 'x')", "argument_type"),
        ("fn['exp'](3.0)", "argument_type"),
        ("fn['add'](a, a[:, 0:3])", "shape_mismatch"),
        ("fn['broadcast_to'](a, (16, 24))", "broadcast"),
        ("fn['broadcast_to'](a, (8,))", "broadcast"),
        ("fn['gather_flattened'](a, a, axis=1)", "unsupported_argument"),
    ],
)
def test_what_is_refused_says_so(body: str, code: str, evaluate: Any) -> None:
    with pytest.raises(KernelError) as refused:
        evaluate(body, draw(1, (8, 12)))
    assert refused.value.code == code
