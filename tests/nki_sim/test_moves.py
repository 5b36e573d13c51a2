"""Transposes by engines and by DMA, and sums by DMA: exact, or to the documented rounding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
FEW = settings(max_examples=10)


def draw(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).uniform(0.25, 2.0, shape).astype(dtype)


def spoilt(dtype: Any) -> Any:
    x = draw(5, (24, 16), dtype)
    x[3, 2], x[7, 2], x[5, 9] = np.nan, np.inf, -np.inf
    return x


TURN = """
@nki.jit
def kernel(x):
    s = nl.ndarray((24, 16), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(s, x)
    t = nl.ndarray((16, 24), dtype=x.dtype, buffer=nl.psum)
    nisa.nc_transpose(t, s, engine=nisa.engine.{})
    r = nl.ndarray((16, 24), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(r, t)
    out = nl.ndarray((16, 24), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, r)
    return out
"""


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_transposes_are_exact_but_for_multiplied_infinities(dtype: Any, simulate: Any) -> None:
    """NeuronCore-v2's tensor engine multiplies with an identity, which spreads them along the contraction."""
    x = spoilt(dtype)
    for engine, target in (("tensor", "trn2"), ("vector", "trn2"), ("vector", "trn1")):
        (found,) = simulate(TURN.format(engine), x, target=target)
        assert found.tobytes() == np.ascontiguousarray(x.T).tobytes()
    (found,) = simulate(TURN.format("tensor"), x, target="trn1")
    wanted = x.T.astype(np.float32)
    wanted[[2, 9]] = np.nan
    np.testing.assert_array_equal(found.astype(np.float32), wanted)


def test_where_a_transpose_runs_follows_from_where_it_may(tracing: Any) -> None:
    x = draw(0, (24, 16))
    for buffer, engine in (("psum", "tensor"), ("sbuf", "vector")):
        text = TURN.replace(", engine=nisa.engine.{}", "").replace("buffer=nl.psum", f"buffer=nl.{buffer}")
        forms = [form for form in tracing(text, x).forms if form.op == "nc_transpose"]
        assert [form.engine for form in forms] == [engine]


# -- what DMA computes ---------------------------------------------------------------------------------------

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def turned(rank: int, call: str = "", *, source: str = "x") -> str:
    """A kernel that transposes x by DMA, out of HBM or (as `s`) out of SBUF."""
    axes = ", ".join(f"x.shape[{axis}]" for axis in AXES[rank])
    return f"""
    @nki.jit
    def kernel(x):
        s = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(s, x)
        r = nl.ndarray(({axes}), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(dst=r, src={source}{call})
        out = nl.ndarray(({axes}), dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, r)
        return out
    """


@FEW
@given(
    shape=st.lists(st.integers(1, 12), min_size=2, max_size=4), seed=st.integers(0, 99),
    dtype=st.sampled_from([F32, BF16, np.dtype(np.uint8)]), source=st.sampled_from(["x", "s"]),
)  # fmt: skip
def test_dma_transposes(shape: list[int], seed: int, dtype: Any, source: str, *, simulate: Any) -> None:
    x = (draw(seed, tuple(shape)) * 100).astype(dtype)
    axes = AXES[len(shape)]
    (found,) = simulate(turned(len(shape), f", axes={axes}", source=source), x)
    wanted = np.empty(tuple(shape[axis] for axis in axes), dtype)
    for place in np.ndindex(*shape):
        wanted[tuple(place[axis] for axis in axes)] = x[place]
    assert found.tobytes() == wanted.tobytes()


def test_dma_transposes_have_axes_of_their_own(tracing: Any) -> None:
    x = draw(0, (4, 3, 5))
    tracing(turned(3), x)
    with pytest.raises(KernelError) as caught:
        tracing(turned(3, ", axes=(1, 0, 2)"), x)
    assert caught.value.code == "transpose_axes"
    with pytest.raises(KernelError) as caught:
        tracing(turned(3).replace("r = nl.ndarray((x.shape[2]", "r = nl.ndarray((1 + x.shape[2]"), x)
    assert caught.value.code == "shape_mismatch"


SUM = """
@nki.jit
def kernel(x, y):
    out = nl.ndarray(x.shape, dtype=nl.{}, buffer=nl.shared_hbm)
    nisa.dma_compute({})
    return out
"""


@FEW
@given(count=st.integers(1, 16), seed=st.integers(0, 99), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_dma_compute_adds_in_float32(count: int, seed: int, dtype: str, *, simulate: Any) -> None:
    x, y = draw(seed, (8, 6), BF16), draw(seed + 1, (8, 6))
    names = ["x", *["y"] * (count - 1)]
    call = f"out, [{', '.join(names)}], nl.add, scales={[1.0] * count}"
    (found,) = simulate(SUM.format(dtype, call), x, y)
    wanted = x.astype(np.float64) + (count - 1) * y.astype(np.float64)
    np.testing.assert_allclose(
        found.astype(np.float64), wanted, rtol=2.0 ** -(18 if dtype == "float32" else 7)
    )


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("argument_value", "out, [x] * 17, nl.add"),
        ("argument_value", "out, [], nl.add"),
        ("argument_type", "out, x, nl.add"),
        ("argument_value", "out, [x, y], nl.add, scales=[1.0, 2.0]"),
        ("reduce_op", "out, [x, y], nl.multiply"),
        ("shape_mismatch", "out, [x, y[0:4]], nl.add"),
    ],
)
def test_dma_compute_has_rules(code: str, call: str, tracing: Any) -> None:
    x = draw(0, (8, 6))
    tracing(SUM.format("float32", "out, [x] * 16, nl.add"), x, x)
    with pytest.raises(KernelError) as caught:
        tracing(SUM.format("float32", call), x, x)
    assert caught.value.code == code


# -- rows that indices choose ----------------------------------------------------------------------

GATHERED = """
@nki.jit
def kernel(x, i, y):
    idx = nl.ndarray(i.shape, dtype=i.dtype, buffer=nl.sbuf)
    nisa.dma_copy(idx, i)
    rows = x.ap(pattern=[[64, {count}], [1, 64]], vector_offset=idx, indirect_dim=0)
    r = nl.ndarray({shape}, dtype={dtype}, buffer=nl.sbuf)
    nisa.dma_copy(r, y)
    {call}
    out = nl.ndarray({shape}, dtype={dtype}, buffer=nl.shared_hbm)
    nisa.dma_copy(out, r)
    return out
"""


def transposing(count: int = 32) -> str:
    return GATHERED.format(
        count=count, shape=f"(64, {count})", dtype="x.dtype", call="nisa.dma_transpose(r, rows, axes=(1, 0))"
    )


def adding(sources: str) -> str:
    return GATHERED.format(
        count=32, shape="(32, 64)", dtype="nl.float32", call=f"nisa.dma_compute(r, {sources})"
    )


def chosen(seed: int, count: int = 32, dtype: Any = np.uint32) -> Any:
    return np.random.default_rng(seed).permutation(100)[:count].astype(dtype).reshape(count, 1)


def test_gathered_rows_are_transposed(simulate: Any) -> None:
    x, index = draw(0, (100, 64), BF16), chosen(1)
    (found,) = simulate(transposing(), x, index, np.zeros((64, 32), BF16))
    assert found.tobytes() == np.ascontiguousarray(x[index[:, 0]].T).tobytes()


@pytest.mark.parametrize(
    ("dtype", "index", "count", "target"),
    [
        (F32, np.uint32, 32, "trn2"),
        (BF16, np.int32, 32, "trn2"),
        (BF16, np.uint32, 24, "trn2"),
        (BF16, np.uint32, 32, "trn1"),
    ],
)
def test_gathered_transposes_have_rules(
    dtype: Any, index: Any, count: int, target: str, tracing: Any
) -> None:
    x, y = draw(0, (100, 64), dtype), draw(1, (64, count), dtype)
    with pytest.raises(KernelError) as caught:
        tracing(transposing(count), x, chosen(1, count, index), y, target=target)
    assert caught.value.code == "indirect_transpose"


def test_gathered_rows_are_added_to_a_tile(simulate: Any, tracing: Any) -> None:
    x, index, y = draw(0, (100, 64), BF16), chosen(2), draw(3, (32, 64))
    (found,) = simulate(adding("[rows, r], nl.add"), x, index, y)
    np.testing.assert_allclose(found, x[index[:, 0]].astype(np.float64) + y, rtol=2.0**-20)
    for wrong in ("[rows, r, r], nl.add", "[rows, r], nl.add, unique_indices=False"):
        with pytest.raises(KernelError) as caught:
            tracing(adding(wrong), x, index, y)
        assert caught.value.code == "indirect_sources"
