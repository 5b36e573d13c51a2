"""Every operator against an independent statement of its documented arithmetic, on drawn shapes and types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError
from nki_sim.functions import ACTIVATIONS, ALU, REDUCE
from nki_sim.operators import OPERATORS
from nki_sim.semantics import SEMANTICS
from nki_sim.semantics.activations import UNARY
from nki_sim.semantics.common import BINARY, BITS, REDUCTIONS

BF16 = np.dtype(ml_dtypes.bfloat16)
SIZES = st.tuples(st.sampled_from([1, 7, 32, 64, 128]), st.integers(1, 70))
FEW = settings(max_examples=15)


def draw(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).uniform(0.25, 2.0, shape).astype(dtype)


def close(found: Any, wanted: Any, *, bits: int = 20) -> None:
    """Equal within the rounding of a type with that many bits of mantissa, nothing undefined."""
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=2.0**-bits, atol=2.0**-bits
    )


def test_every_operator_has_arithmetic_and_every_function_a_meaning() -> None:
    assert SEMANTICS.keys() == OPERATORS.keys()
    assert UNARY.keys() == ACTIVATIONS
    assert BINARY.keys() | BITS.keys() == ALU
    assert REDUCTIONS.keys() == REDUCE | {"abs_max", "abs_min"}


@FEW
@given(size=SIZES, seed=st.integers(0, 99), scale=st.floats(-2, 2), tiled=st.booleans())
def test_activation_scales_biases_and_sums(
    size: tuple[int, int], seed: int, scale: float, tiled: bool, *, simulate: Any, texts: Any
) -> None:
    x, b, s = draw(seed, size), draw(seed + 1, (size[0], 1)), draw(seed + 2, (size[0], 1))
    body = f"""
    nisa.activation(dst=r[:, 0:f], op=nl.tanh, data=sx, bias=sb, scale={"ss" if tiled else scale},
                    reduce_op=nl.add, reduce_res=r[:, f:f + 1], reduce_cmd=nisa.reduce_cmd.reset_reduce)
    """
    (found,) = simulate(texts.on_chip(["x", "b", "s"], body, shape="(p, f + 1)"), x, b, s)
    wanted = np.tanh(x.astype(np.float64) * (s.astype(np.float64) if tiled else np.float32(scale)) + b)
    close(found, np.hstack([wanted, wanted.sum(1, keepdims=True)]), bits=17)


def test_activation_reduce_is_activation_and_its_sum(simulate: Any, texts: Any) -> None:
    x = draw(3, (128, 33))
    body = (
        "nisa.activation_reduce(dst=r[:, 1:], op=nl.square, data=sx, reduce_op=nl.add, reduce_res=r[:, :1])"
    )
    (found,) = simulate(texts.on_chip(["x"], body, shape="(p, f + 1)"), x)
    close(found, np.hstack([(x * x).sum(1, keepdims=True), x * x]), bits=18)


SCALAR: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
}


@FEW
@given(
    size=SIZES, seed=st.integers(0, 99), ops=st.tuples(*[st.sampled_from(sorted(SCALAR))] * 2),
    reverse=st.tuples(st.booleans(), st.booleans()), tile=st.booleans(),
)  # fmt: skip
def test_tensor_scalar_applies_two_operations_in_order(
    size: tuple[int, int], seed: int, ops: tuple[str, str], reverse: tuple[bool, bool], tile: bool,
    *, simulate: Any, texts: Any,
) -> None:  # fmt: skip
    x, y = draw(seed, size), draw(seed + 1, (size[0], 1))
    body = (
        f"nisa.tensor_scalar(dst=r, data=sx, op0=nl.{ops[0]}, operand0={'sy' if tile else 1.5}, "
        f"reverse0={reverse[0]}, op1=nl.{ops[1]}, operand1=3.0, reverse1={reverse[1]})"
    )
    (found,) = simulate(texts.on_chip(["x", "y"], body), x, y)
    wanted = x.astype(np.float64)
    for op, back, value in zip(ops, reverse, (y.astype(np.float64) if tile else 1.5, 3.0), strict=True):
        function = np.vectorize(SCALAR[op])
        wanted = function(value, wanted) if back else function(wanted, value)
    close(found, wanted, bits=14)


@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
def test_scalar_tensor_tensor(reverse0: bool, reverse1: bool, simulate: Any, texts: Any) -> None:
    x, y, c = draw(6, (128, 21)), draw(7, (128, 21)), draw(8, (128, 1))
    body = (
        "nisa.scalar_tensor_tensor(r, sx, nl.subtract, operand0=sc, op1=nl.subtract, operand1=sy, "
        f"reverse0={reverse0}, reverse1={reverse1})"
    )
    (found,) = simulate(texts.on_chip(["x", "y", "c"], body), x, y, c)
    apart = c - x if reverse0 else x - c
    close(found, y - apart if reverse1 else apart - y, bits=18)


@pytest.mark.parametrize("tiled", [False, True])
def test_a_scan_starts_from_each_partitions_own_value(tiled: bool, simulate: Any, texts: Any) -> None:
    x, y, c = draw(20, (32, 5)), draw(21, (32, 5)), draw(22, (32, 1))
    body = (
        f"nisa.tensor_tensor_scan(dst=r, data0=sx, data1=sy, initial={'sc' if tiled else 0.25}, "
        "op0=nl.subtract, op1=nl.maximum, reverse0=True)"
    )
    (found,) = simulate(texts.on_chip(["x", "y", "c"], body), x, y, c)
    state, wanted = c[:, 0] if tiled else np.full(32, np.float32(0.25)), np.empty((32, 5), np.float32)
    for i in range(5):
        state = np.maximum(state - x[:, i], y[:, i])
        wanted[:, i] = state
    close(found, wanted, bits=18)


def test_an_immediate_power_of_data_is_vectors(simulate: Any, texts: Any) -> None:
    x = draw(23, (64, 9))
    body = "nisa.tensor_scalar(r, sx, nl.add, 1.0, op1=nl.power, operand1=-0.5)"
    (found,) = simulate(texts.on_chip(["x"], body), x)
    close(found, 1.0 / np.sqrt(x.astype(np.float64) + 1.0), bits=18)


def test_zeros_keep_their_sign_and_constants_their_type(simulate: Any, texts: Any) -> None:
    """Calls that differ in no more than a zero's sign are two instructions."""
    x = draw(24, (4, 2))
    body = "nisa.memset(r[:, 0:1], 0.0)\nnisa.memset(r[:, 1:2], -0.0)"
    (found,) = simulate(texts.on_chip(["x"], body), x)
    assert np.signbit(found).tolist() == [[False, True]] * 4
    with pytest.raises(KernelError, match="must be a number, not bool"):
        simulate(texts.on_chip(["x"], "nisa.memset(r[:, 0:1], 1.0)\nnisa.memset(r[:, 1:2], True)"), x)


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
def test_tensor_scalar_reduce(name: str, simulate: Any, texts: Any) -> None:
    x = draw(9, (32, 11))
    body = f"""
    nisa.tensor_scalar_reduce(dst=r[:, 0:f], data=sx, op0=nl.add, operand0=0.5, reduce_op=nl.{name},
                              reduce_res=r[:, f:f + 1])
    """
    (found,) = simulate(texts.on_chip(["x"], body, shape="(p, f + 1)"), x)
    moved = x.astype(np.float64) + 0.5
    functions = {"add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min}
    close(found, np.hstack([moved, functions[name](moved, axis=1, keepdims=True)]), bits=18)


@FEW
@given(
    shape=st.tuples(st.sampled_from([1, 32, 128]), st.integers(1, 5), st.integers(1, 9)),
    inner=st.booleans(), negate=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_tensor_reduce_over_inner_axes(
    shape: tuple[int, int, int], inner: bool, negate: bool, seed: int, *, simulate: Any, texts: Any
) -> None:
    x = draw(seed, shape)
    axes, kept = ("2", "(a, b)") if inner else ("(1, 2)", "(a, 1)")
    text = f"""
    @nki.jit
    def kernel(x):
        a, b, c = x.shape
        sx = nl.ndarray((a, b, c), dtype=nl.float32, buffer=nl.sbuf)
        r = nl.ndarray({kept}, dtype=nl.float32, buffer=nl.sbuf)
        out = nl.ndarray({kept}, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=sx, src=x)
        nisa.tensor_reduce(dst=r, op=nl.max, data=sx, axis={axes}, negate={negate})
        nisa.dma_copy(dst=out, src=r)
        return out
    """
    (found,) = simulate(text, x)
    wanted = x.max(axis=2) if inner else x.max(axis=(1, 2)).reshape(-1, 1)
    close(found, -wanted if negate else wanted)


def test_tensor_tensor_scan_is_a_recurrence(simulate: Any, texts: Any) -> None:
    x, y = draw(10, (32, 12)), draw(11, (32, 12))
    body = "nisa.tensor_tensor_scan(dst=r, data0=sx, data1=sy, initial=0.5, op0=nl.multiply, op1=nl.add)"
    (found,) = simulate(texts.on_chip(["x", "y"], body), x, y)
    state, wanted = np.full(32, 0.5), np.empty((32, 12))
    for i in range(12):
        state = x[:, i] * state + y[:, i]
        wanted[:, i] = state
    close(found, wanted, bits=16)


def test_reciprocal_and_memset(simulate: Any, texts: Any) -> None:
    x = draw(12, (128, 6))
    body = "nisa.memset(dst=r, value=-2.0)\nnisa.reciprocal(dst=r[0:64, 0:3], data=sx[0:64, 3:6])"
    (found,) = simulate(texts.on_chip(["x"], body), x)
    wanted = np.full((128, 6), -2.0)
    wanted[:64, :3] = 1.0 / x[:64, 3:]
    close(found, wanted)


def test_memset_takes_infinity(simulate: Any, texts: Any) -> None:
    (found,) = simulate(texts.on_chip(["x"], "nisa.memset(dst=r, value=float('-inf'))"), draw(0, (4, 4)))
    assert np.all(np.isneginf(found))


@pytest.mark.parametrize(("engine", "p", "f"), [("tensor", 128, 128), ("tensor", 17, 90), ("vector", 32, 20)])
def test_nc_transpose_is_exact(engine: str, p: int, f: int, simulate: Any) -> None:
    text = f"""
    @nki.jit
    def kernel(x):
        p, f = x.shape
        sx = nl.ndarray((p, f), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=sx, src=x)
        flipped = nl.ndarray((f, p), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=flipped, data=sx, engine=nisa.engine.{engine})
        r = nl.ndarray((f, p), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=r, src=flipped)
        out = nl.ndarray((f, p), dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=r)
        return out
    """
    x = draw(14, (p, f))
    (found,) = simulate(text, x)
    assert np.array_equal(found, x.T)


def test_dma_transpose_is_exact(simulate: Any, texts: Any) -> None:
    x = draw(15, (48, 80), BF16)
    text = """
    @nki.jit
    def kernel(x):
        r = nl.ndarray((80, 48), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(dst=r, src=x, axes=(1, 0))
        out = nl.ndarray((80, 48), dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=r)
        return out
    """
    (found,) = simulate(text, x)
    assert np.array_equal(found, x.T)


@FEW
@given(seed=st.integers(0, 99), dtype=st.sampled_from(["bfloat16", "float16", "float8_e4m3", "float8_e5m2"]))
def test_copies_round_to_nearest_even(seed: int, dtype: str, simulate: Any, texts: Any) -> None:
    x = draw(seed, (32, 24))
    (found,) = simulate(texts.on_chip(["x"], "nisa.tensor_copy(dst=r, src=sx)", dtype=f"nl.{dtype}"), x)
    scale = {"bfloat16": 8, "float16": 11, "float8_e4m3": 4, "float8_e5m2": 3}[dtype]
    mantissa, exponent = np.frexp(x.astype(np.float64))
    close(found, np.ldexp(np.rint(np.ldexp(mantissa, scale)), exponent - scale), bits=40)


def test_integers_round_to_even_and_saturate(simulate: Any, texts: Any) -> None:
    x = np.array([[0.5, 1.5, 2.5, -0.5, 300.0, -300.0, 127.4, float("inf")]], np.float32)
    (found,) = simulate(texts.on_chip(["x"], "nisa.tensor_copy(dst=r, src=sx)", dtype="nl.int8"), x)
    assert found.tolist() == [[0, 2, 2, 0, 127, -128, 127, 127]]


def test_same_type_copies_are_bit_exact(simulate: Any, texts: Any) -> None:
    x = np.random.default_rng(0).integers(0, 2**32, (16, 16), dtype=np.uint32)
    (found,) = simulate(texts.on_chip(["x"], "nisa.tensor_copy(dst=r, src=sx)", dtype="nl.uint32"), x)
    assert np.array_equal(found, x)
