"""Products of the tensor engine: what they compute, and on what they accumulate."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec, targets
from nki_sim.errors import KernelError
from nki_sim.operators import OPERATORS

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


# -- modes of the tensor engine ----------------------------------------------------------------------


def product(shape: tuple[int, int], call: str, *, dtype: str = "nl.float32", prepare: str = "") -> str:
    return f"""
    @nki.jit
    def kernel(a, b):
        sa = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        sb = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(sa, a)
        nisa.dma_copy(sb, b)
        acc = nl.ndarray({shape}, dtype={dtype}, buffer=nl.psum)
        {prepare}
        nisa.nc_matmul(acc, sa, sb, {call})
        r = nl.ndarray({shape}, dtype={dtype}, buffer=nl.sbuf)
        nisa.tensor_copy(r, acc)
        out = nl.ndarray({shape}, dtype={dtype}, buffer=nl.shared_hbm)
        nisa.dma_copy(out, r)
        return out
    """


E4, E5 = np.dtype(ml_dtypes.float8_e4m3), np.dtype(ml_dtypes.float8_e5m2)
DOUBLE = "perf_mode=nisa.matmul_perf_mode.double_row"


@FEW
@given(
    k=st.integers(1, 128), m=st.integers(1, 128), n=st.integers(1, 512), seed=st.integers(0, 99),
    types=st.tuples(*[st.sampled_from([E4, E5])] * 2),
)  # fmt: skip
def test_double_rows_contract_partitions_and_pairs(
    k: int, m: int, n: int, seed: int, types: Any, *, simulate: Any
) -> None:
    a, b = draw(seed, (k, 2, m), types[0]), draw(seed + 1, (k, 2, n), types[1])
    (found,) = simulate(product((m, n), DOUBLE), a, b)
    wanted = np.zeros((m, n))
    for row in range(k):
        for pair in range(2):
            wanted += np.outer(a[row, pair].astype(float), b[row, pair].astype(float))
    close(found, wanted, bits=16)


def test_double_rows_take_the_time_of_one(tracing: Any) -> None:
    a, b = draw(0, (128, 2, 128), E4), draw(1, (128, 2, 512), E4)
    fast = tracing(product((128, 512), DOUBLE), a, b)
    plain = tracing(product((128, 512), ""), a[:, 0], b[:, 0])
    costs = [
        OPERATORS[form.op].cost(form, targets.load("trn2"))
        for program in (fast, plain)
        for form in program.forms
        if form.op == "nc_matmul"
    ]
    assert costs[0] == costs[1]


F32, F16 = np.dtype(np.float32), np.dtype(np.float16)
WRONG_PRODUCTS = [
    ("matmul_dtype", (64, 2, 8), BF16, DOUBLE, "trn2"),
    ("double_row_shape", (64, 4, 4), E4, DOUBLE, "trn2"),
    ("generation", (64, 2, 8), E4, DOUBLE, "trn1"),
    ("double_row", (64, 2, 8), E4, f"{DOUBLE}, is_transpose=True", "trn2"),
    ("double_row", (64, 2, 8), E4, f"{DOUBLE}, tile_position=(0, 0), tile_size=(64, 64)", "trn2"),
    ("matmul_tile", (64, 16), F32, "tile_size=(64, 64)", "trn2"),
    ("matmul_tile", (64, 16), F32, "tile_position=(0, 0)", "trn2"),
    ("matmul_tile", (64, 16), F32, "tile_position=(0, 0), tile_size=(32, 32)", "trn2"),
    ("matmul_tile", (64, 16), F32, "tile_position=(32, 0), tile_size=(64, 64)", "trn2"),
    ("matmul_tile", (64, 16), F32, "tile_position=(64, 128), tile_size=(64, 64)", "trn2"),
    ("matmul_tile", (64, 16), F32, "tile_position=(0, 0), tile_size=(64, 48)", "trn2"),
    ("matmul_tile", (32, 16), F32, "tile_position=(0, 0), tile_size=(32, 32)", "trn1"),
]
RIGHT_PRODUCTS = [
    ((64, 2, 8), E4, DOUBLE, "trn2"),
    ((64, 2, 8), E5, f"{DOUBLE}, tile_position=(64, 0), tile_size=(64, 128)", "trn2"),
    ((64, 16), F32, "tile_position=(64, 64), tile_size=(64, 64)", "trn1"),
    ((64, 16), F32, "tile_position=(0, 96), tile_size=(64, 32)", "trn2"),
    ((32, 16), F32, "tile_position=(96, 96), tile_size=(32, 32)", "trn2"),
    ((32, 16), F32, "perf_mode=nisa.matmul_perf_mode.none", "trn1"),
]


@pytest.mark.parametrize(("code", "case"), [(code, case) for code, *case in WRONG_PRODUCTS])
def test_modes_have_rules(code: str, case: list[Any], tracing: Any) -> None:
    shape, dtype, call, target = case
    a = draw(0, shape, dtype)
    size = (shape[-1],) * 2 if shape[1] != 4 else (8, 8)
    with pytest.raises(KernelError) as caught:
        tracing(product(size, call), a, a, target=target)
    assert caught.value.code == code


@pytest.mark.parametrize(("shape", "dtype", "call", "target"), RIGHT_PRODUCTS)
def test_modes_within_the_rules_multiply(
    shape: Any, dtype: Any, call: str, target: str, simulate: Any
) -> None:
    a = draw(0, shape, dtype)
    (found,) = simulate(product((shape[-1],) * 2, call), a, a, target=target)
    flat = a.astype(float).reshape(-1, shape[-1])
    close(found, flat.T @ flat, bits=16)


@pytest.mark.parametrize(
    ("left", "right", "legal"),
    [
        ("float32", "float32", True), ("bfloat16", "float8_e5m2", True), ("float16", "bfloat16", True),
        ("tfloat32", "float32", True), ("float32", "bfloat16", False), ("float16", "tfloat32", False),
        ("int8", "int8", False), ("float8_e4m3fn", "float8_e4m3fn", False), ("bool_", "bfloat16", False),
    ],
)  # fmt: skip
def test_types_that_products_take(left: str, right: str, legal: bool, tracing: Any) -> None:
    specs = ArraySpec((16, 8), left), ArraySpec((16, 8), right)
    if legal:
        tracing(product((8, 8), ""), *specs)
    else:
        with pytest.raises(KernelError) as caught:
            tracing(product((8, 8), ""), *specs)
        assert caught.value.code == "matmul_dtype"


def spoilt(dtype: Any) -> Any:
    x = draw(5, (24, 16), dtype)
    x[3, 2], x[7, 2], x[5, 9] = np.nan, np.inf, -np.inf
    return x


@pytest.mark.parametrize("data_moves", [True, False])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_transpose_mode_moves_every_bit(data_moves: bool, dtype: Any, simulate: Any) -> None:
    x, identity = spoilt(dtype), np.eye(24, dtype=np.float32).astype(dtype)
    shape = (24, 16) if data_moves else (16, 24)
    name = "nl.bfloat16" if dtype == BF16 else "nl.float32"
    pair = (identity, x) if data_moves else (x, identity)
    (found,) = simulate(product(shape, "is_transpose=True", dtype=name), *pair)
    wanted = x if data_moves else np.ascontiguousarray(x.T)
    assert found.tobytes() == wanted.tobytes()


def test_transpose_mode_keeps_narrow_types_from_the_third_generation_on(tracing: Any) -> None:
    x = np.eye(16, dtype=np.float32).astype(BF16)
    text = product((16, 16), "is_transpose=True", dtype="nl.bfloat16")
    tracing(text, x, x, target="trn2")
    for wrong, target in ((text, "trn1"), (text.replace("is_transpose=True", ""), "trn2")):
        with pytest.raises(KernelError) as caught:
            tracing(wrong, x, x, target=target)
        assert caught.value.code == "matmul_dtype"


def test_a_column_that_is_computed_again_is_the_same_beside_wide_products(simulate: Any) -> None:
    """Gates compare a column with a maximum over columns, while the same rows are multiplied by weights."""
    text = """
    @nki.jit
    def kernel(a, b, c):
        sa, sb, sc = (nl.ndarray(one.shape, dtype=one.dtype, buffer=nl.sbuf) for one in (a, b, c))
        nisa.dma_copy(sa, a)
        nisa.dma_copy(sb, b)
        nisa.dma_copy(sc, c)
        alone = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=alone, stationary=sa, moving=sb[:, 3:4])
        beside = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=beside, stationary=sa, moving=sb)
        wide = nl.ndarray((128, 96), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=wide, stationary=sa, moving=sc)
        r = nl.ndarray((128, 105), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(r[:, 0:1], alone)
        nisa.tensor_copy(r[:, 1:9], beside)
        nisa.tensor_copy(r[:, 9:105], wide)
        out = nl.ndarray((128, 105), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, r)
        return out
    """
    normal = np.random.default_rng(5).standard_normal
    a, b, c = (normal((128, n)).astype(np.float32) for n in (128, 8, 96))
    found = simulate(text, a, b, c)[0]
    np.testing.assert_array_equal(found[:, 0], found[:, 4])
    close(found[:, 9:], a.T @ c, bits=12)
