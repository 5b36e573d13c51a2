"""Products of the tensor engine: what they compute, and on what they accumulate."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError

BF16 = np.dtype(ml_dtypes.bfloat16)
FEW = settings(max_examples=15)


def draw(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).uniform(0.25, 2.0, shape).astype(dtype)


def close(found: Any, wanted: Any, *, bits: int) -> None:
    """Equal within the rounding of a type with that many bits of mantissa, nothing undefined."""
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-bits, atol=2.0**-bits)


def products(goals: list[str]) -> str:
    """A matmul into each view of an accumulator [32, 8], with the columns of b that belong there."""
    lines = []
    for goal in goals:
        columns = goal[goal.index("[") : -1].split(", ")[1] if "[" in goal else "0:8"
        lines.append(f"nisa.nc_matmul(dst={goal}, stationary=sa, moving=sb[:, {columns}])")
    body = "\n".join(f"        {line}" for line in lines)
    return f"""
    @nki.jit
    def kernel(a, b):
        sa = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        sb = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(sa, a)
        nisa.dma_copy(sb, b)
        acc = nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.psum)
{body}
        r = nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(r, acc)
        out = nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, r)
        return out
    """


@pytest.mark.parametrize(
    ("calls", "factors"),
    [
        (["acc", "acc"], (2.0, 2.0)),
        (["acc.reshape(32, 2, 4)", "acc"], (2.0, 2.0)),
        (["acc", "acc.reshape(32, 4, 2)"], (2.0, 2.0)),
        (["acc", "acc[:, 0:4]"], (2.0, 1.0)),
        (["acc[:, 0:4]", "acc[:, 4:8]"], (1.0, 1.0)),
        (["acc[:, 0:4]", "acc[:, 4:8]", "acc"], (2.0, 2.0)),
        (["acc", "acc[:, 4:8]", "acc[:, 4:8]"], (1.0, 3.0)),
    ],
)
def test_products_accumulate_on_what_products_started(
    calls: list[str], factors: tuple[float, float], simulate: Any
) -> None:
    """Whatever view of the tile a matmul writes through; each half's factor counts the products in it."""
    a, b = draw(17, (16, 32)), draw(18, (16, 8))
    found = simulate(products(calls), a, b)[0]
    close(found, (a.T @ b) * np.repeat(factors, 4), bits=16)


def test_a_product_that_only_partly_accumulates_is_refused(simulate: Any) -> None:
    a, b = draw(17, (16, 32)), draw(18, (16, 8))
    with pytest.raises(KernelError) as caught:
        simulate(products(["acc[:, 0:4]", "acc"]), a, b)
    assert caught.value.code == "accumulate_overlap"


def test_accumulate_may_be_given_by_position(simulate: Any) -> None:
    a, b = draw(17, (16, 32)), draw(18, (16, 8))
    text = products(["acc", "acc"]).replace("moving=sb[:, 0:8]", "moving=sb")
    assert text.count("moving=sb)") == 2
    text = text.replace("stationary=sa, moving=sb)", "sa, sb, False, False, False, False)").replace(
        "dst=", ""
    )
    close(simulate(text, a, b)[0], a.T @ b, bits=16)


@FEW
@given(
    k=st.sampled_from([1, 40, 128]), m=st.integers(1, 128), n=st.integers(1, 512),
    dtype=st.sampled_from([np.dtype(np.float32), BF16]), groups=st.integers(1, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_nc_matmul_accumulates_in_float32(
    k: int, m: int, n: int, dtype: Any, groups: int, *, seed: int, simulate: Any
) -> None:
    a, b = draw(seed, (groups * k, m), dtype), draw(seed + 1, (groups * k, n), dtype)
    text = f"""
    @nki.jit
    def kernel(a, b):
        m, n = a.shape[1], b.shape[1]
        acc = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.psum)
        for g in range({groups}):
            sa = nl.ndarray(({k}, m), dtype=a.dtype, buffer=nl.sbuf)
            sb = nl.ndarray(({k}, n), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=sa, src=a[nl.ds(g * {k}, {k}), :])
            nisa.dma_copy(dst=sb, src=b[nl.ds(g * {k}, {k}), :])
            nisa.nc_matmul(dst=acc, stationary=sa, moving=sb)
        r = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=r, src=acc)
        out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=r)
        return out
    """
    (found,) = simulate(text, a, b)
    wanted = a.astype(np.float64).T @ b.astype(np.float64)
    assert np.linalg.norm(found - wanted) <= 1e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize("accumulate", [True, False])
def test_nc_matmul_accumulate_says_what_happens(accumulate: bool, simulate: Any) -> None:
    text = f"""
    @nki.jit
    def kernel(a):
        sa = nl.ndarray((32, 32), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=sa, src=a)
        acc = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=sa, moving=sa, accumulate=False)
        nisa.nc_matmul(dst=acc, stationary=sa, moving=sa, accumulate={accumulate})
        r = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=r, src=acc)
        out = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=r)
        return out
    """
    a = draw(13, (32, 32))
    (found,) = simulate(text, a)
    close(found, (a.T @ a) * (2.0 if accumulate else 1.0), bits=18)


@pytest.mark.parametrize("flag", ["is_stationary_onezero", "is_moving_onezero", "is_transpose"])
@pytest.mark.parametrize("honest", [True, False])
def test_a_broken_promise_of_ones_and_zeros_is_undefined(flag: str, honest: bool, simulate: Any) -> None:
    """The promise halves the passes of float32, so a kernel must not gain by it on other data."""
    text = f"""
    @nki.jit
    def kernel(a, b):
        sa = nl.ndarray((32, 32), dtype=a.dtype, buffer=nl.sbuf)
        sb = nl.ndarray((32, 32), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=sa, src=a)
        nisa.dma_copy(dst=sb, src=b)
        acc = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=sa, moving=sb, {flag}=True)
        r = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=r, src=acc)
        out = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=r)
        return out
    """
    identity, x = np.eye(32, dtype=np.float32), draw(16, (32, 32))
    spoilt = identity + np.float32(0.001)
    first, second = (identity, x) if flag == "is_stationary_onezero" else (x, identity)
    if not honest:
        first, second = (spoilt if item is identity else item for item in (first, second))
    (found,) = simulate(text, first, second)
    if honest:
        close(found, first.T @ second, bits=20)
    else:
        assert np.isnan(found).all()
