"""What NeuronCore-v4 adds besides MX: activate2, exponential, rand2, VectorE's functions, wide products."""

from __future__ import annotations

import textwrap
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import targets, xorwow
from nki_sim.operators import V4_INSTRUCTIONS
from tests.nki_sim.test_random import xorwow as recurrence

FEW = settings(max_examples=12)


def draw(seed: int, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def run(simulate: Any, source: str, *arrays: Any) -> Any:
    return simulate(source, *arrays, target="trn3")[0]


# -- ScalarE ---------------------------------------------------------------------------------------

STAGES = {
    ("multiply", "add"): lambda x, a, b: x * a + b,
    ("multiply", "subtract"): lambda x, a, b: x * a - b,
    ("multiply", "bypass"): lambda x, a, b: x * a,
    ("add", "bypass"): lambda x, a, b: x + a,
    ("subtract", "bypass"): lambda x, a, b: x - a,
    ("bypass", "bypass"): lambda x, a, b: x,
}
"""The pairs of operators that the documents list."""


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("pair", sorted(STAGES))
def test_activate2_scales_shifts_and_applies(
    pair: tuple[str, str], tiled: bool, simulate: Any, texts: Any
) -> None:
    x, a, b = draw(1, (32, 20)), draw(2, (32, 1)), draw(3, (32, 1))
    given_ = ("sa", "sb") if tiled else (0.75, -1.25)
    first, second = (a, b) if tiled else (np.float32(0.75), np.float32(-1.25))
    body = f"nisa.activate2(r, nl.tanh, sx, {given_[0]}, {given_[1]}, nl.{pair[0]}, nl.{pair[1]})"
    found = run(simulate, texts.on_chip(["x", "a", "b"], body), x, a, b)
    np.testing.assert_allclose(found, np.tanh(STAGES[pair](x, first, second)), rtol=2.0**-18, atol=2.0**-18)


def test_activate2_turns_its_operands_round(simulate: Any, texts: Any) -> None:
    x = draw(4, (32, 20))
    body = "nisa.activate2(r, nl.copy, sx, 3.0, 0.0, nl.subtract, nl.bypass, reverse0=True)"
    np.testing.assert_array_equal(run(simulate, texts.on_chip(["x"], body), x), np.float32(3.0) - x)
    body = "nisa.activate2(r, nl.copy, sx, 2.0, 5.0, nl.multiply, nl.subtract, reverse1=True)"
    np.testing.assert_array_equal(run(simulate, texts.on_chip(["x"], body), x), np.float32(5.0) - x * 2)


def test_activate2_has_a_slope_below_zero(simulate: Any, texts: Any) -> None:
    x, slope = draw(5, (32, 20)), draw(6, (32, 1))
    body = "nisa.activate2(r, nl.prelu, sx, 0.0, 0.0, nl.bypass, nl.bypass, relu_param=ss)"
    found = run(simulate, texts.on_chip(["x", "s"], body), x, slope)
    np.testing.assert_array_equal(found, np.where(x > 0, x, x * slope))


def farthest(row: Any, most: bool) -> float:
    """The documents' comparison of magnitudes, number after number: the later one of two equal ones."""
    held = np.float32(0.0 if most else np.inf)
    for value in row:
        held = held if (abs(held) > abs(value) if most else abs(held) < abs(value)) else value
    return float(held)


REDUCTIONS = {
    "add": lambda row: float(np.sum(row.astype(np.float64))),
    "max": lambda row: float(row.max()),
    "minimum": lambda row: float(row.min()),
    "abs_max": lambda row: farthest(row, True),
    "abs_min": lambda row: farthest(row, False),
}


@pytest.mark.parametrize("op", sorted(REDUCTIONS))
def test_activate2_reduces_as_it_is_told(op: str, simulate: Any, texts: Any) -> None:
    """Over two instructions; half-integers make magnitudes meet."""
    x = np.round(draw(7, (32, 40)) * 2) / 2
    call = "nisa.activate2(s[:, 0:{1}], nl.copy, sx[:, {0}:{2}], 0.0, 0.0, none, none, reduce_op=nl.{3}"
    body = "\n".join(
        [
            "none, s = nl.bypass, nl.ndarray((p, f), dtype=nl.float32, buffer=nl.sbuf)",
            call.format(0, 16, 16, op) + ", reduce_cmd=nisa.reduce_cmd.reset_reduce)",
            call.format(16, 24, 40, op) + ", reduce_cmd=nisa.reduce_cmd.reduce, reduce_res=r)",
        ]
    )
    found = run(simulate, texts.on_chip(["x"], body, shape="(p, 1)"), x)
    np.testing.assert_allclose(found[:, 0], [REDUCTIONS[op](row) for row in x], rtol=2.0**-20, atol=2.0**-20)


# -- VectorE ---------------------------------------------------------------------------------------


@FEW
@given(seed=st.integers(0, 99), size=st.integers(1, 40), tiled=st.booleans(), started=st.booleans())
def test_exponential_subtracts_and_sums(
    seed: int, size: int, tiled: bool, started: bool, *, simulate: Any, texts: Any
) -> None:
    x, m, start = draw(seed, (32, size)), draw(seed + 1, (32, 1)), draw(seed + 2, (32, 1))
    command = "load_reduce, reduce_init=ss" if started else "reset_reduce"
    body = f"""
    nisa.exponential(r[:, 0:f], sx, {"sm" if tiled else 0.5}, r[:, f:f + 1], nisa.reduce_cmd.{command})
    """
    source = texts.on_chip(["x", "m", "s"], body, shape="(p, f + 1)")
    found = run(simulate, source, x, m, start)
    wanted = np.exp(x.astype(np.float64) - (m if tiled else 0.5))
    total = wanted.sum(axis=1, keepdims=True) + (start if started else 0.0)
    np.testing.assert_allclose(found, np.hstack([wanted, total]), rtol=2.0**-18, atol=2.0**-18)


UNARY = {"square": np.square, "relu": lambda x: np.maximum(x, 0)}


@pytest.mark.parametrize("op", sorted(UNARY))
def test_vector_functions_of_one_operand(op: str, simulate: Any, texts: Any) -> None:
    x = draw(8, (32, 20))
    body = f"nisa.tensor_scalar(r, sx, nl.{op}, None, op1=nl.add, operand1=1.0)"
    found = run(simulate, texts.on_chip(["x"], body), x)
    np.testing.assert_array_equal(found, UNARY[op](x) + np.float32(1.0))


@pytest.mark.parametrize("most", [False, True])
def test_magnitudes_are_compared_with_their_signs_kept(most: bool, simulate: Any, texts: Any) -> None:
    x, y = (np.round(draw(seed, (32, 20)) * 2) / 2 for seed in (9, 10))
    name = "abs_max" if most else "abs_min"
    body = (
        f"nisa.tensor_copy(r[:, 0:f], nl.{name}(sx, sy))\nnisa.tensor_scalar(r[:, f:], sx, nl.{name}, -1.0)"
    )
    found = run(simulate, texts.on_chip(["x", "y"], body, shape="(p, 2 * f)"), x, y)
    kept = (np.abs(x) > np.abs(y)) if most else (np.abs(x) < np.abs(y))
    alone = (np.abs(x) > 1.0) if most else (np.abs(x) < 1.0)
    np.testing.assert_array_equal(found, np.hstack([np.where(kept, x, y), np.where(alone, x, -1.0)]))


def test_rand2_spreads_four_generators_over_the_range(simulate: Any, texts: Any) -> None:
    """Each lane has four states, which take turns; the numbers are their upper bits as a fraction."""
    seed, count = 77, 10
    body = f"""
    seed = nl.ndarray((1, 1), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.memset(seed, {seed})
    nisa.set_rng_seed(seed)
    nisa.rand2(r[:, 0:{count}], -2.0, 6.0)
    """
    found = run(simulate, texts.on_chip(["x"], body, shape=f"(p, {count})"), draw(1, (32, 1)))
    words = np.array(xorwow.seed_state(seed, xorwow.VECTOR_STATES)).reshape(xorwow.LANES, 4, xorwow.WORDS)
    for lane in range(32):
        drawn = [recurrence(state, 3) for state in words[lane].tolist()]
        bits = np.array([drawn[i % 4][i // 4] for i in range(count)])
        wanted = -2.0 + 8.0 * (bits >> 8) * 2.0**-24
        np.testing.assert_allclose(found[lane], wanted, rtol=0, atol=2.0**-21)
    assert found.min() >= -2.0
    assert found.max() <= 6.0


def test_states_of_the_vector_engine_are_saved_and_put_back(simulate: Any, texts: Any) -> None:
    body = """
    state = nl.ndarray((p, 24), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.rand_get_state(state, engine=nisa.engine.vector)
    nisa.rand2(r[:, 0:5], 0.0, 1.0)
    nisa.rand_set_state(state, engine=nisa.engine.vector)
    nisa.rand2(r[:, 5:10], 0.0, 1.0)
    """
    found = run(simulate, texts.on_chip(["x"], body, shape="(p, 10)"), draw(1, (32, 1)))
    np.testing.assert_array_equal(found[:, 0:5], found[:, 5:10])
    assert len(np.unique(found)) == 32 * 5


# -- the tensor engine -----------------------------------------------------------------------------

PRODUCT = """
@nki.jit
def kernel(x, y):
    k, m, n = x.shape[0], x.shape[1], y.shape[1]
    out = nl.ndarray((m, n), dtype=nl.{total}, buffer=nl.shared_hbm)
    sx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    sy = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.sbuf)
    nisa.dma_copy(sx, x)
    nisa.dma_copy(sy, y)
    acc = nl.ndarray((m, n), dtype=nl.{total}, buffer=nl.psum)
    for part in range(2):
        rows = nl.ds(part * 32, 32)
        nisa.nc_matmul(acc, sx[rows], sy[rows])
    r = nl.ndarray((m, n), dtype=nl.{total}, buffer=nl.sbuf)
    nisa.tensor_copy(r, acc)
    nisa.dma_copy(out, r)
    return out
"""


def test_products_fill_psum_in_one_instruction(simulate: Any) -> None:
    x, y = draw(11, (64, 8)), draw(12, (64, 2048))
    found = run(simulate, PRODUCT.format(total="float32"), x, y)
    np.testing.assert_allclose(found, x.T.astype(np.float64) @ y, rtol=1e-5, atol=1e-5)


def test_products_of_bfloat16_are_rounded_at_each_instruction(simulate: Any) -> None:
    x, y = (draw(seed, (64, size)).astype(ml_dtypes.bfloat16) for seed, size in ((13, 8), (14, 40)))
    found = run(simulate, PRODUCT.format(total="bfloat16"), x, y)
    total = np.zeros((8, 40), ml_dtypes.bfloat16)
    for part in (slice(0, 32), slice(32, 64)):
        product = x[part].astype(np.float32).T @ y[part].astype(np.float32)
        total = (total.astype(np.float32) + product).astype(total.dtype)
    np.testing.assert_array_equal(found.astype(np.float32), total.astype(np.float32))


# -- rules -----------------------------------------------------------------------------------------

PRELUDE = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    def tile(rows=32, columns=32, dtype=nl.float32, buffer=nl.sbuf):
        made = nl.ndarray((rows, columns), dtype=dtype, buffer=buffer)
        nisa.memset(made, 1)
        return made
    t, u, c, h = tile(), tile(), tile(columns=1), tile(dtype=nl.bfloat16)
    none, gpsimd, vector = nl.bypass, nisa.engine.gpsimd, nisa.engine.vector
    anew = nisa.reduce_cmd.reset_reduce
    fp8, ocp = tile(dtype=nl.float8_e4m3), tile(dtype=nl.float8_e4m3fn)
    def multiply(left, right, dtype=nl.float32):
        acc = nl.ndarray((left.shape[1], right.shape[1]), dtype=dtype, buffer=nl.psum)
        nisa.nc_matmul(acc, left, right)
{body}
    return out
"""

RULES = {
    "six pairs of operators": ("op", "nisa.activate2(t, nl.exp, u, 1.0, 1.0, nl.add, nl.add)",
                               "nisa.activate2(t, nl.exp, u, 1.0, 1.0, nl.multiply, nl.add)"),
    "what is reversed is there": (
        "argument_pair", "nisa.activate2(t, nl.exp, u, 1.0, 1.0, none, none, reverse0=True)",
        "nisa.activate2(t, nl.exp, u, 1.0, 1.0, nl.add, none, reverse0=True)",
    ),
    "constants of one type": (
        "operand_invalid_type", "nisa.activate2(t, nl.exp, u, c, h[:, 0:1], nl.multiply, nl.add)",
        "nisa.activate2(t, nl.exp, u, h[:, 1:2], h[:, 0:1], nl.multiply, nl.add)",
    ),
    "the slope goes with activate2": ("op", "nisa.activation(t, nl.prelu, u)",
                                      "nisa.activate2(t, nl.prelu, u, 0.0, 0.0, none, none, 0.1)"),
    "GpSimd sums nothing up": (
        "engine", "nisa.activation(t, nl.exp, u, None, 1.0, nl.add, c, anew, engine=gpsimd)",
        "nisa.activation(t, nl.exp, u, engine=gpsimd)",
    ),
    "a sum starts where it is told": ("argument_pair", "nisa.exponential(t, u, 0.0, reduce_init=1.0)",
                                      "nisa.exponential(t, u, 0.0, reduce_init=0.0)"),
    "three free dimensions": ("access_rank", "nisa.exponential(t.reshape((32, 2, 2, 2, 4)), u)",
                              "nisa.exponential(t.reshape((32, 2, 2, 8)), u)"),
    "a range begins below its end": ("rng_range", "nisa.rand2(t, 1.0, 1.0)", "nisa.rand2(t, 0.5, 1.0)"),
    "numbers have a documented type": ("operand_invalid_type", "nisa.rand2(ocp, 0.0, 1.0)",
                                       "nisa.rand2(fp8, 0.0, 1.0)"),
    "four states of a lane": (
        "rng_state", "nisa.rand_get_state(tile(columns=6, dtype=nl.uint32), engine=vector)",
        "nisa.rand_get_state(tile(columns=24, dtype=nl.uint32), engine=vector)",
    ),
    "new functions come first": ("op", "nisa.tensor_scalar(t, u, nl.add, 1.0, op1=nl.square)",
                                 "nisa.tensor_scalar(t, u, nl.square, None, op1=nl.add, operand1=1.0)"),
    "the two kinds of FP8 do not mix": ("matmul_dtype", "multiply(ocp, fp8)", "multiply(ocp, ocp)"),
    "sums of float32 or bfloat16": ("matmul_dtype", "multiply(h, h, nl.float16)",
                                    "multiply(h, h, nl.bfloat16)"),
}  # fmt: skip


def source(texts: Any, body: str) -> str:
    found: str = texts.source_of(PRELUDE.format(body=textwrap.indent(body, "    ")))
    return found


@pytest.mark.parametrize("what", sorted(RULES))
def test_a_rule_of_v4_is_broken_and_just_kept(what: str, refusals: Any, texts: Any) -> None:
    code, *bodies = RULES[what]
    assert [refusals(source(texts, body), "trn3") for body in bodies] == [{code}, set()]


OLDER = {
    "activate2": "nisa.activate2(t, nl.exp, t, 1.0, 1.0, nl.multiply, nl.add)",
    "exponential": "nisa.exponential(t, t)",
    "rand2": "nisa.rand2(t, 0.0, 1.0)",
    "nc_matmul_mx": "nisa.nc_matmul_mx(p, t, t, t[0:4], t[0:4])",
    "quantize_mx": "nisa.quantize_mx(t, t, t[0:4])",
}


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("name", sorted(V4_INSTRUCTIONS))
def test_older_targets_refuse_an_instruction_by_name(
    name: str, target: str, refusals: Any, texts: Any
) -> None:
    text = f"""
    @nki.jit
    def kernel(x):
        t = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
        p = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)
        nisa.memset(t, 1.0)
        {OLDER[name]}
        return x
    """
    assert refusals(texts.source_of(text), target) == {"generation"}


def test_memories_are_those_of_the_target() -> None:
    target = targets.load("trn3")
    assert target.partitions * target.sbuf_partition_bytes == 32 << 20
    assert target.partitions * target.psum_banks * target.psum_bank_bytes == 2 << 20
