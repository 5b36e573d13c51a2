"""Data types: what each rounds to, what becomes of values out of range, which copies keep every bit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import ArraySpec
from nki_sim.dtypes import DTYPES, TRN3_DTYPES, DType, integer_limits
from nki_sim.errors import KernelError
from nki_sim.frontend.modules import MODULES
from nki_sim.running import numerics
from nki_sim.semantics.arrays import NUMPY

FEW = settings(max_examples=10)

# Bits of fraction, exponent of the largest value and of the least normal one, and the largest value.
FLOATS = {
    "bfloat16": (7, 127, -126, (2 - 2.0**-7) * 2.0**127),
    "float16": (10, 15, -14, 65504.0),
    "tfloat32": (10, 127, -126, (2 - 2.0**-10) * 2.0**127),
    "float8_e4m3": (3, 7, -6, 240.0),
    "float8_e4m3fn": (3, 8, -6, 448.0),
    "float8_e5m2": (2, 15, -14, 57344.0),
}


def rounded(value: float, dtype: str) -> float:
    """To nearest even, by the definition: a multiple of the last place of the value's exponent."""
    fraction, _, least, largest = FLOATS[dtype]
    if value == 0 or not math.isfinite(value):
        return value if dtype != "float8_e4m3fn" or value == 0 else math.nan
    place = max(math.frexp(value)[1] - 1, least) - fraction
    result = math.ldexp(round(math.ldexp(value, -place)), place)
    if abs(result) <= largest:
        return result
    return math.nan if dtype == "float8_e4m3fn" else math.copysign(math.inf, value)


def through(dtype: str, *, by: str = "nisa.tensor_copy(dst=s, src=sx)") -> str:
    """A kernel that puts x into a tile of the type, and that tile into float32."""
    return f"""
    @nki.jit
    def kernel(x):
        sx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=sx, src=x)
        s = nl.ndarray(x.shape, dtype=nl.{dtype}, buffer=nl.sbuf)
        {by}
        r = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=r, src=s)
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=r)
        return out
    """


def values(seed: int, dtype: str) -> Any:
    """Values of all sizes, those near the ends of the type among them, and halfway between neighbours."""
    rng = np.random.default_rng(seed)
    fraction, top, least, largest = FLOATS[dtype]
    near = np.clip(largest * (1 + np.arange(-3, 5) * 2.0 ** (-fraction - 2)), 0, 3.4028234e38)
    tiny = 2.0 ** float(least - fraction) * np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.5])
    halves = (1 + (rng.integers(0, 1 << fraction, 9) + 0.5) * 2.0**-fraction) * 2.0**3
    sizes = rng.uniform(1, 2, 8) * 2.0 ** rng.integers(least - fraction, top + 1, 8)
    found = np.concatenate([near, tiny, halves, sizes]).astype(np.float32)
    return np.stack([found, -found])


@FEW
@given(seed=st.integers(0, 999))
@pytest.mark.parametrize("dtype", sorted(FLOATS))
@pytest.mark.parametrize("by", ["nisa.tensor_copy(dst=s, src=sx)", "nisa.dma_copy(dst=s, src=sx)"])
def test_floats_round_to_nearest_even_and_overflow(dtype: str, by: str, seed: int, simulate: Any) -> None:
    x = values(seed, dtype)
    (found,) = simulate(through(dtype, by=by), x)
    wanted = np.vectorize(lambda value: rounded(float(value), dtype), otypes=[float])(x)
    np.testing.assert_array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("dtype", [name for name in sorted(FLOATS) if name != "float8_e4m3fn"])
def test_infinity_and_nan_pass_through(dtype: str, simulate: Any) -> None:
    x = np.array([[np.inf, -np.inf, np.nan]], np.float32)
    (found,) = simulate(through(dtype), x)
    np.testing.assert_array_equal(found, x)


@FEW
@given(data=st.data())
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_integers_round_to_even_and_saturate(dtype: str, data: Any, simulate: Any) -> None:
    least, most = integer_limits(DTYPES[dtype])
    size = st.floats(-1.0, 1.0).map(lambda part: part * 1.5 * most)
    x = np.array([data.draw(st.lists(st.one_of(size, st.floats(-4, 4)), min_size=1, max_size=8))], np.float32)
    x = np.hstack([x, np.array([[0.5, 1.5, 2.5, -0.5, np.inf, -np.inf, np.nan]], np.float32)])
    (found,) = simulate(through(dtype).replace("dtype=nl.float32", f"dtype=nl.{dtype}"), x)
    wanted = [
        0 if math.isnan(v) else most if v > most else least if v < least else round(v) for v in x[0].tolist()
    ]
    assert found[0].tolist() == wanted


def test_booleans_are_zero_and_one(simulate: Any) -> None:
    x = np.array([[0.0, -0.0, 0.25, -3.0]], np.float32)
    (found,) = simulate(through("bool_"), x)
    assert found.tolist() == [[0.0, 0.0, 1.0, 1.0]]


@pytest.mark.parametrize("dtype", sorted(DTYPES.keys() - {"int64"}))
@pytest.mark.parametrize("by", ["tensor_copy", "dma_copy"])
def test_copies_of_one_type_keep_every_bit(dtype: str, by: str, simulate: Any, tracing: Any) -> None:
    kind = NUMPY[dtype]
    text = f"""
    @nki.jit
    def kernel(x):
        a = nl.ndarray(x.shape, dtype=nl.{dtype}, buffer=nl.sbuf)
        b = nl.ndarray(x.shape, dtype=nl.{dtype}, buffer=nl.sbuf)
        out = nl.ndarray(x.shape, dtype=nl.{dtype}, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=a, src=x)
        nisa.{by}(dst=b, src=a)
        nisa.dma_copy(dst=out, src=b)
        return out
    """
    raw = (
        np.random.default_rng(0)
        .integers(0, 2 if dtype == "bool_" else 256, 64 * kind.itemsize)
        .astype(np.uint8)
    )
    x = raw.view(kind).reshape(4, 16)
    target = "trn3" if dtype in TRN3_DTYPES else "trn2"
    program = tracing(text, ArraySpec(x.shape, dtype), target=target)
    (found,) = numerics.run(program, [x])
    assert found.tobytes() == x.tobytes()


@FEW
@given(seed=st.integers(0, 99))
def test_products_of_tfloat32_see_ten_bits_of_fraction(seed: int, tracing: Any) -> None:
    """Also of what came from memory with more."""
    text = """
    @nki.jit
    def kernel(a, b):
        sa = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        sb = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(sa, a)
        nisa.dma_copy(sb, b)
        acc = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(acc, sa, sb)
        r = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(r, acc)
        out = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, r)
        return out
    """
    rng = np.random.default_rng(seed)
    a, b = (rng.uniform(0.5, 2, (16, 8)).astype(np.float32) for _ in range(2))
    program = tracing(text, ArraySpec(a.shape, "tfloat32"), ArraySpec(b.shape, "tfloat32"))
    (found,) = numerics.run(program, [a, b])
    cut = [np.vectorize(lambda v: rounded(float(v), "tfloat32"))(item) for item in (a, b)]
    np.testing.assert_allclose(found, cut[0].T @ cut[1], rtol=2.0**-20)


@pytest.mark.parametrize("dtype", sorted(TRN3_DTYPES))
def test_types_of_trn3_are_refused_by_name(dtype: str, tracing: Any) -> None:
    with pytest.raises(KernelError, match=f"nl.{dtype} is for NeuronCore-v4") as caught:
        tracing(through(dtype), np.zeros((4, 4), np.float32))
    assert caught.value.code == "dtype"


def test_engines_have_no_integers_of_64_bits(tracing: Any) -> None:
    x = np.zeros((4, 4), np.float32)
    with pytest.raises(KernelError, match="int64") as caught:
        tracing(through("int64"), x)
    assert caught.value.code == "dtype"
    tracing(through("int32"), x)


def test_memset_takes_what_a_boolean_may_be(tracing: Any) -> None:
    x = np.zeros((4, 4), np.float32)
    tracing(through("bool_", by="nisa.memset(s, 1)"), x)
    with pytest.raises(KernelError) as caught:
        tracing(through("bool_", by="nisa.memset(s, 2)"), x)
    assert caught.value.code == "memset_value"


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_numpy_takes_the_types_of_the_language(name: str) -> None:
    assert np.ones(2).astype(DTYPES[name]).dtype == NUMPY[name]
    assert np.zeros(2, DTYPES[name]).dtype == NUMPY[name]


def test_types_stay_whole_where_dataclasses_hold_them() -> None:
    @dataclasses.dataclass
    class Case:
        dtype: Any

    assert dataclasses.asdict(Case(DTYPES["bfloat16"])) == {"dtype": DTYPES["bfloat16"]}


def test_types_are_a_module_and_an_annotation_too() -> None:
    module = MODULES["nki.dtype"]
    assert module.float8_e4m3 is DTYPES["float8_e4m3"]
    assert MODULES["nki"].dtype is module
    assert module | None == DType | None
