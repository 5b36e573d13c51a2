"""The functions of instructions against their definitions, the numbers they compute in, where they run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError
from nki_sim.functions import (
    ACTIVATIONS,
    ALU_UNARY,
    ARITHMETIC,
    BITWISE,
    INTEGER_ALU,
    LANGUAGE_ALONE,
    V4_ALU,
    VALID_RANGES,
)

FEW = settings(max_examples=10)


def sigmoid(x: float) -> float:
    return math.exp(min(x, 0.0)) / (1.0 + math.exp(-abs(x)))


def normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def slope(function: Callable[[float], float]) -> Callable[[float], float]:
    """The derivative by central differences, good to about 1e-9."""
    return lambda x: (function(x + 1e-5) - function(x - 1e-5)) / 2e-5


def silu(x: float) -> float:
    return x * sigmoid(x)


def gelu(x: float) -> float:
    return x * normal(x)


def gelu_sigmoid(x: float) -> float:
    return x * sigmoid(1.702 * x)


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


MATH: dict[str, Callable[[float], float]] = {
    "copy": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "square": lambda x: x * x,
    "abs": abs,
    "sign": lambda x: float((x > 0) - (x < 0)),
    "exp": math.exp,
    "log": math.log,
    "tanh": math.tanh,
    "sigmoid": sigmoid,
    "silu": silu,
    "silu_dx": slope(silu),
    "gelu": gelu,
    "gelu_dx": slope(gelu),
    "gelu_apprx_tanh": lambda x: (
        0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu_apprx_sigmoid": gelu_sigmoid,
    "gelu_apprx_sigmoid_dx": slope(gelu_sigmoid),
    "softplus": softplus,
    "mish": lambda x: x * math.tanh(softplus(x)),
    "erf": math.erf,
    "erf_dx": slope(math.erf),
    "sqrt": math.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1.0 / x,
    "sin": math.sin,
    "arctan": math.atan,
}
POSITIVE = {"log", "sqrt", "rsqrt", "reciprocal"}


def draws(seed: int, shape: tuple[int, ...], least: float, most: float) -> Any:
    return np.random.default_rng(seed).uniform(least, most, shape).astype(np.float32)


def close(found: Any, wanted: Any, *, bits: int) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2.0**-bits, atol=2.0**-bits)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_compute_their_definition(name: str, simulate: Any, texts: Any) -> None:
    x = draws(1, (32, 40), 0.25 if name in POSITIVE else -1.5, 1.5)
    (found,) = simulate(texts.on_chip(["x"], f"nisa.activation(dst=r, op=nl.{name}, data=sx)"), x)
    close(found, np.vectorize(MATH[name], otypes=[float])(x.astype(np.float64)), bits=20)


@settings(max_examples=5)
@given(scale=st.floats(-1e4, 1e4, width=32))
@pytest.mark.parametrize("name", ["gelu", "sigmoid", "silu", "softplus", "tanh", "erf", "mish"])
def test_activations_hold_over_all_of_their_range(name: str, scale: float, simulate: Any, texts: Any) -> None:
    x = draws(2, (4, 16), -1.0, 1.0) * np.float32(scale)
    (found,) = simulate(texts.on_chip(["x"], f"nisa.activation(dst=r, op=nl.{name}, data=sx)"), x)
    wanted = np.vectorize(MATH[name], otypes=[float])(x.astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=2.0**-18, atol=2.0**-18 * max(1.0, abs(scale) * 2.0**-6))


@pytest.mark.parametrize("name", sorted(VALID_RANGES))
def test_beyond_its_range_an_activation_is_undefined(name: str, simulate: Any, texts: Any) -> None:
    """Documented: outside of it the engine gives invalid results. Just inside, it is right."""
    least, most = VALID_RANGES[name]
    inside = [most, max(least, 2.0**-80)]
    beyond = [most * 1.001, most * 4, *([least / 1.001] if least else [])]
    x = np.array([inside + beyond], np.float32)
    (found,) = simulate(texts.on_chip(["x"], f"nisa.activation(dst=r, op=nl.{name}, data=sx)"), x)
    wanted = [MATH[name](float(value)) for value in x[0, :2]]
    np.testing.assert_allclose(found[0, :2], wanted, rtol=2.0**-20, atol=1e-6)
    assert np.isnan(found[0, 2:]).all()


def test_ranges_end_at_zero_and_infinity_as_usual(simulate: Any, texts: Any) -> None:
    x = np.array([[0.0, np.inf]], np.float32)
    for name, wanted in (("sqrt", [0.0, np.inf]), ("rsqrt", [np.inf, 0.0]), ("log", [-np.inf, np.inf])):
        (found,) = simulate(texts.on_chip(["x"], f"nisa.activation(dst=r, op=nl.{name}, data=sx)"), x)
        assert found[0].tolist() == wanted


SCALAR: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
    "power": math.pow,
    "equal": lambda a, b: float(a == b),
    "not_equal": lambda a, b: float(a != b),
    "less": lambda a, b: float(a < b),
    "less_equal": lambda a, b: float(a <= b),
    "greater": lambda a, b: float(a > b),
    "greater_equal": lambda a, b: float(a >= b),
    "logical_and": lambda a, b: float(bool(a) and bool(b)),
    "logical_or": lambda a, b: float(bool(a) or bool(b)),
    "logical_xor": lambda a, b: float(bool(a) != bool(b)),
}
ONE: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "rsqrt": lambda a: a**-0.5,
    "reciprocal": lambda a: 1.0 / a,
    "logical_not": lambda a: float(not a),
}


def test_every_operator_is_stated_here() -> None:
    # What the language alone has is called by its functions: `test_lowering`.
    assert SCALAR.keys() | ONE.keys() == ARITHMETIC - LANGUAGE_ALONE
    assert MATH.keys() == ACTIVATIONS
    # The functions of NeuronCore-v4 are in `test_v4`.
    assert ONE.keys() | {"invert"} == ALU_UNARY - V4_ALU


@pytest.mark.parametrize(
    ("name", "engine"),
    [(name, "gpsimd") for name in sorted(SCALAR)]
    + [(name, "vector") for name in sorted(SCALAR.keys() - {"power"})],
)
def test_operators_of_two_tiles(name: str, engine: str, simulate: Any, texts: Any) -> None:
    least = 0.25 if name == "power" else -2.0
    x, y = draws(4, (64, 19), least, 2.0), draws(5, (64, 19), 0.25, 2.0)
    y[:, ::3] = x[:, ::3]
    x[:, 1::4] = 0.0 if name.startswith("logical") else x[:, 1::4]
    body = f"nisa.tensor_tensor(dst=r, data1=sx, data2=sy, op=nl.{name}, engine=nisa.engine.{engine})"
    (found,) = simulate(texts.on_chip(["x", "y"], body), x, y)
    wanted = np.vectorize(SCALAR[name], otypes=[float])(x.astype(np.float64), y.astype(np.float64))
    close(found, wanted, bits=18)


@pytest.mark.parametrize("name", sorted(ONE))
def test_operators_of_one_tile_and_nothing_else(name: str, simulate: Any, texts: Any) -> None:
    x = draws(6, (32, 9), 0.25 if name in POSITIVE else -2.0, 2.0)
    x[:, 2] = 1.0 if name in POSITIVE else 0.0
    for operand in ("", ", operand0=0.0"):
        body = f"nisa.tensor_scalar(r, sx, nl.{name}{operand})"
        (found,) = simulate(texts.on_chip(["x"], body), x)
        close(found, np.vectorize(ONE[name], otypes=[float])(x.astype(np.float64)), bits=20)


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


def words(seed: int, dtype: str, shape: tuple[int, int]) -> Any:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def bit_by_bit(name: str, a: int, b: int, width: int) -> int:
    """The operator on patterns of `width` bits, the result as an unsigned integer."""
    full = (1 << width) - 1
    a, b = a & full, b & full
    table = {
        "bitwise_and": a & b, "bitwise_or": a | b, "bitwise_xor": a ^ b, "invert": a ^ full,
        "left_shift": (a << b if b < width else 0) & full, "right_shift": a >> b if b < width else 0,
    }  # fmt: skip
    return table[name]


@FEW
@given(
    dtype=st.sampled_from(INTEGERS),
    name=st.sampled_from(sorted(BITWISE - {"invert"})),
    seed=st.integers(0, 99),
)
def test_bitwise_operators_see_bit_patterns(
    dtype: str, name: str, seed: int, *, simulate: Any, texts: Any
) -> None:
    width = 8 * np.dtype(dtype).itemsize
    x, y = words(seed, dtype, (16, 12)), words(seed + 1, dtype, (16, 12))
    if name.endswith("shift"):
        y = (y.astype(np.int64) % (width + 3)).astype(dtype)
    body = f"nisa.tensor_tensor(r, sx, sy, nl.{name})"
    (found,) = simulate(texts.on_chip(["x", "y"], body, dtype=f"nl.{dtype}"), x, y)
    wanted = [bit_by_bit(name, int(a), int(b), width) for a, b in zip(x.flat, y.flat, strict=True)]
    assert found.view(f"u{width // 8}").reshape(-1).tolist() == wanted


@FEW
@given(dtype=st.sampled_from(INTEGERS), seed=st.integers(0, 99), mask=st.integers(-128, 127))
def test_bitwise_operators_with_constants(
    dtype: str, seed: int, mask: int, *, simulate: Any, texts: Any
) -> None:
    width = 8 * np.dtype(dtype).itemsize
    x = words(seed, dtype, (4, 6))
    body = f"nisa.tensor_scalar(r, sx, nl.invert, op1=nl.bitwise_and, operand1={mask})"
    (found,) = simulate(texts.on_chip(["x"], body, dtype=f"nl.{dtype}"), x)
    wanted = [bit_by_bit("bitwise_and", ~int(a), mask, width) for a in x.flat]
    assert found.view(f"u{width // 8}").reshape(-1).tolist() == wanted


@FEW
@given(
    dtype=st.sampled_from(["int32", "uint32"]),
    name=st.sampled_from(sorted(INTEGER_ALU)),
    seed=st.integers(0, 99),
)
def test_integers_of_32_bits_are_exact_on_gpsimd(
    dtype: str, name: str, seed: int, *, simulate: Any, tracing: Any, texts: Any
) -> None:
    """And GpSimd is where they go unless the kernel says otherwise."""
    x, y = words(seed, dtype, (8, 8)), words(seed + 1, dtype, (8, 8))
    y[:, ::2] = x[:, ::2]
    body = f"nisa.tensor_tensor(r, sx, sy, nl.{name})"
    text = texts.on_chip(["x", "y"], body, dtype=f"nl.{dtype}")
    (found,) = simulate(text, x, y)
    wanted = [int(SCALAR[name](int(a), int(b))) % 2**32 for a, b in zip(x.flat, y.flat, strict=True)]
    assert found.view(np.uint32).reshape(-1).tolist() == wanted
    engines = {form.engine for form in tracing(text, x, y).forms if form.op == "tensor_tensor"}
    assert engines == {"gpsimd"}


def test_integers_on_the_vector_engine_pass_through_float32(simulate: Any, texts: Any) -> None:
    x = np.array([[2**24 + 1, 2**31 - 1, -5]], np.int32)
    body = "nisa.tensor_tensor(r, sx, sx, nl.maximum, engine=nisa.engine.vector)"
    (found,) = simulate(texts.on_chip(["x"], body, dtype="nl.int32"), x)
    assert found.tolist() == [[2**24, 2**31 - 1, -5]]


# What breaks a rule of functions and, next to it, what does not; sx is float32 [4, 8], si int32, sc [4, 1].
BREAKS = {
    "op": (
        ("tensor_tensor(r, sx, sx, nl.abs)", "tensor_tensor(r, sx, sx, nl.subtract)"),
        ("tensor_scalar(r, sx, nl.abs, 1.0)", "tensor_scalar(r, sx, nl.abs, 0.0)"),
        ("tensor_scalar(i, si, nl.bitwise_and, 1, op1=nl.add, operand1=1.0)",
         "tensor_scalar(i, si, nl.bitwise_and, 1, op1=nl.bitwise_or, operand1=1)"),
        ("scalar_tensor_tensor(i, si, nl.bitwise_or, 1, nl.bitwise_or, si)",
         "scalar_tensor_tensor(i, si, nl.add, 1.0, nl.add, si)"),
        ("tensor_reduce(o, nl.bitwise_or, si, 1, negate=True)", "tensor_reduce(o, nl.bitwise_or, si, 1)"),
    ),
    "engine": (
        ("tensor_tensor(i, si, si, nl.bitwise_or, engine=nisa.engine.gpsimd)",
         "tensor_tensor(i, si, si, nl.bitwise_or, engine=nisa.engine.vector)"),
        ("tensor_scalar(r, sx, nl.rsqrt, engine=nisa.engine.vector)", "tensor_scalar(r, sx, nl.rsqrt)"),
        ("tensor_scalar(r, sx, nl.subtract, 1.0, engine=nisa.engine.gpsimd)",
         "tensor_scalar(r, sx, nl.subtract, 1.0)"),
    ),
    "bitvec_dtype": (
        ("tensor_tensor(r, sx, sx, nl.bitwise_xor)", "tensor_tensor(i, si, si, nl.bitwise_xor)"),
        ("tensor_scalar(i, si, nl.left_shift, 0.5)", "tensor_scalar(i, si, nl.left_shift, 1.0)"),
        ("tensor_scalar(i, si, nl.left_shift, sc)", "tensor_scalar(i, si, nl.left_shift, so)"),
    ),
    "argument_pair": (
        ("tensor_scalar(r, sx, nl.add)", "tensor_scalar(r, sx, nl.add, 0.0)"),
    ),
    "reduce_op": (
        ("tensor_scalar_reduce(r, sx, nl.add, 1.0, nl.subtract, c)",
         "tensor_scalar_reduce(r, sx, nl.add, 1.0, nl.multiply, c)"),
        ("tensor_scalar_cumulative(r, sx, nl.add, nl.equal, 1.0)",
         "tensor_scalar_cumulative(r, sx, nl.add, nl.subtract, 1.0)"),
        ("tensor_partition_reduce(row, nl.multiply, sx)", "tensor_partition_reduce(row, nl.max, sx)"),
        ("activation_reduce(r, nl.exp, sx, nl.max, c)", "activation_reduce(r, nl.exp, sx, nl.add, c)"),
    ),
    "generation": (
        ("tensor_tensor(r, sx, sx, nl.abs_max)", "tensor_tensor(r, sx, sx, nl.maximum)"),
        ("tensor_scalar(r, sx, nl.relu, None)", "activation(r, nl.relu, sx)"),
    ),
    "activation_bias_invalid_type": (
        ("activation(r, nl.exp, sx, bias=tf)", "activation(r, nl.exp, sx, bias=half)"),
    ),
    "activation_scale_invalid_type": (
        ("activation(r, nl.exp, sx, scale=half)", "activation(r, nl.exp, sx, scale=sc)"),
    ),
    "operand_invalid_type": (
        ("tensor_scalar_cumulative(i, si, nl.add, nl.add, 1.0)",
         "tensor_scalar_cumulative(r, sx, nl.add, nl.add, 1.0)"),
    ),
}  # fmt: skip
TILES = {
    "sx": "(4, 8), nl.float32", "si": "(4, 8), nl.int32", "sc": "(4, 1), nl.float32",
    "so": "(4, 1), nl.int32", "half": "(4, 1), nl.bfloat16", "tf": "(4, 1), nl.tfloat32",
    "i": "(4, 8), nl.int32", "o": "(4, 1), nl.int32", "c": "(4, 1), nl.float32",
    "row": "(1, 8), nl.float32", "r": "(4, 8), nl.float32",
}  # fmt: skip


def kernel_of(call: str) -> str:
    lines = [f"{name} = nl.ndarray({spec}, buffer=nl.sbuf)" for name, spec in TILES.items()]
    lines += [f"nisa.memset({name}, 0)" for name in TILES]
    return "\n    ".join([
        "@nki.jit\ndef kernel(x):", *lines, f"nisa.{call}",
        "out = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.shared_hbm)",
        "nisa.dma_copy(out, r)", "return out",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("code", "wrong", "right"), [(code, *pair) for code, pairs in BREAKS.items() for pair in pairs]
)
def test_rules_of_functions(code: str, wrong: str, right: str, tracing: Any) -> None:
    x = np.zeros((4, 8), np.float32)
    with pytest.raises(KernelError) as caught:
        tracing(kernel_of(wrong), x)
    assert caught.value.code == code
    assert caught.value.line > 0
    tracing(kernel_of(right), x)


def test_reciprocal_takes_a_bias_from_the_third_generation_on(tracing: Any) -> None:
    x = np.zeros((4, 8), np.float32)
    call = "activation(r, nl.reciprocal, sx, bias=sc)"
    tracing(kernel_of(call), x, target="trn2")
    with pytest.raises(KernelError, match="reciprocal takes no bias on trn1"):
        tracing(kernel_of(call), x, target="trn1")
