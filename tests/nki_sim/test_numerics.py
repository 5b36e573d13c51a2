"""Running programs: whole kernels against NumPy, memory that nobody wrote, inputs left alone, limits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec
from nki_sim.errors import InputError, LimitError
from nki_sim.running import numerics
from nki_sim.running.work import WorkAllowance

RMSNORM = """
@nki.jit
def kernel(x, w):
    m, k = x.shape
    out = nl.ndarray((m, k), dtype=x.dtype, buffer=nl.shared_hbm)
    gain = nl.ndarray((128, k), dtype=w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=gain, src=w.reshape(1, k).broadcast(0, 128))
    for i in range(0, m, 128):
        rows = min(128, m - i)
        t = nl.ndarray((128, k), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t[0:rows], src=x[i:i + rows])
        junk = nl.ndarray((128, k), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=junk[0:rows], op=nl.square, data=t[0:rows], reduce_op=nl.add, reduce_res=total[0:rows],
            reduce_cmd=nisa.reduce_cmd.reset_reduce)
        scale = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=scale[0:rows], op=nl.rsqrt, data=total[0:rows], scale=1.0 / k)
        nisa.scalar_tensor_tensor(
            dst=t[0:rows], data=t[0:rows], op0=nl.multiply, operand0=scale[0:rows],
            op1=nl.multiply, operand1=gain[0:rows])
        nisa.dma_copy(dst=out[i:i + rows], src=t[0:rows])
    return out
"""


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(max_examples=8)
@given(m=st.integers(1, 2), k=st.integers(1, 3), n=st.integers(1, 2), seed=st.integers(0, 99))
def test_tiled_matmul(m: int, k: int, n: int, seed: int, *, simulate: Any, texts: Any) -> None:
    a, b = normal(seed, 128 * m, 128 * k), normal(seed + 1, 128 * k, 512 * n)
    (found,) = simulate(texts.matmul, a, b)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(found - wanted) < 2e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize("rows", [128, 200, 300])
def test_rmsnorm_with_a_ragged_tail(rows: int, simulate: Any) -> None:
    x, w = normal(1, rows, 96), normal(2, 96)
    (found,) = simulate(RMSNORM, x, w)
    exact = x.astype(np.float64)
    wanted = exact / np.sqrt((exact**2).mean(1, keepdims=True)) * w
    assert np.linalg.norm(found - wanted) < 2e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize(("width", "fresh"), [(128, True), (512, False)])
def test_elementwise_stream(width: int, fresh: bool, simulate: Any, texts: Any) -> None:
    x = normal(3, 256, 1024)
    (found,) = simulate(texts.stream(width=width, fresh=fresh), x)
    np.testing.assert_allclose(found, np.exp(x) + x, rtol=1e-6)


def test_memory_that_nobody_wrote_shows_in_the_result(simulate: Any, texts: Any) -> None:
    body = "nisa.tensor_copy(dst=r[:, 1:], src=sx[:, 1:])"
    (found,) = simulate(texts.on_chip(["x"], body), normal(4, 8, 4))
    assert np.isnan(found[:, 0]).all()
    assert not np.isnan(found[:, 1:]).any()
    (whole,) = simulate(texts.on_chip(["x"], body, dtype="nl.int16"), normal(4, 8, 4))
    assert (whole[:, 0] == 4).all()


def test_tiles_of_one_iteration_are_not_those_of_the_next(simulate: Any) -> None:
    """A tile declared in a loop starts unwritten each time: nothing leaks from the iteration before."""
    text = """
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        for i in range(2):
            t = nl.ndarray((1, 4), dtype=nl.float32, buffer=nl.sbuf)
            if i == 0:
                nisa.dma_copy(dst=t, src=x)
            nisa.dma_copy(dst=out[i:i + 1], src=t)
        return out
    """
    (found,) = simulate(text, np.ones((1, 4), np.float32))
    assert found[0].tolist() == [1, 1, 1, 1]
    assert np.isnan(found[1]).all()


def test_inputs_are_left_alone_and_results_repeat(tracing: Any, texts: Any) -> None:
    x = normal(5, 128, 512)
    program = tracing(texts.stream(), x)
    before = x.copy()
    first, second = numerics.run(program, [x]), numerics.run(program, [x])
    assert np.array_equal(x, before)
    assert np.array_equal(first[0], second[0])


def test_intermediate_results_are_rounded_to_the_tiles_type(simulate: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        t = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=t, src=x)
        nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.multiply)
        nisa.dma_copy(dst=out, src=t)
        return out
    """
    x = normal(6, 32, 32)
    (found,) = simulate(text, x)
    once = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(found, (once * once).astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ([], "takes 1 arrays, 0 given"),
        ([np.zeros((128, 256), np.float32)], "must be float32"),
        ([np.zeros((128, 512), np.float64)], "must be float32"),
    ],
)
def test_inputs_must_fit(arrays: list[Any], text: str, tracing: Any, texts: Any) -> None:
    program = tracing(texts.stream(), ArraySpec((128, 512), "float32"))
    with pytest.raises(InputError, match=text):
        numerics.run(program, arrays)


@pytest.mark.parametrize(
    ("limits", "code"),
    [({"max_bytes": 1000}, "limit_memory"), ({"allowance": WorkAllowance(1000)}, "limit_work")],
)
def test_work_and_memory_are_bounded(limits: dict[str, int], code: str, tracing: Any, texts: Any) -> None:
    program = tracing(texts.stream(), ArraySpec((128, 512), "float32"))
    with pytest.raises(LimitError) as caught:
        numerics.run(program, [np.zeros((128, 512), np.float32)], **limits)
    assert caught.value.code == code
