"""MX on NeuronCore-v4: packed types, quantisation and products against the formats' tables; their rules."""

from __future__ import annotations

import textwrap
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.dtypes import DTYPES, MX_DTYPES, PACKED_DTYPES, nki_dtype_name
from nki_sim.errors import KernelError
from nki_sim.forms import ArraySpec, Form, Operand
from nki_sim.operators import OPERATORS
from nki_sim.running import numerics
from nki_sim.semantics.arrays import NUMPY
from nki_sim.semantics.mx import pack_numbers, unpack_numbers
from nki_sim.timing.traffic import form_flops
from tests.nki_sim import ocp_mx

FEW = settings(max_examples=10)
FP8 = ("float8_e4m3fn_x4", "float8_e5m2_x4")
BFLOAT16 = ml_dtypes.bfloat16


def integers_of(packed: Any) -> Any:
    """Packed elements as integers."""
    return packed.view(f"u{packed.itemsize}")


# -- types -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(MX_DTYPES))
def test_packed_numbers_are_those_of_the_specification(name: str) -> None:
    bits = ocp_mx.FORMATS[name].bits
    codes = np.arange(1 << bits, dtype=np.uint64)
    words = sum(np.roll(codes, -3 * n) << np.uint64(bits * n) for n in range(4))
    packed = words.astype(f"u{bits // 2}").view(NUMPY[name])
    assert packed.itemsize == DTYPES[name].itemsize
    wanted = ocp_mx.unpack(name, integers_of(packed)[None])[0]
    np.testing.assert_array_equal(unpack_numbers(packed), wanted)


@settings(max_examples=60)
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4))
@pytest.mark.parametrize("name", sorted(MX_DTYPES))
def test_numbers_are_rounded_to_even_and_saturate(name: str, values: list[float]) -> None:
    bits = ocp_mx.FORMATS[name].bits
    (word,) = integers_of(pack_numbers(np.array([values], np.float32), NUMPY[name])).tolist()
    assert [word >> bits * n & (1 << bits) - 1 for n in range(4)] == [
        ocp_mx.encode(name, value) for value in values
    ]


@pytest.mark.parametrize("name", sorted(MX_DTYPES))
def test_every_midpoint_goes_to_the_even_neighbour(name: str) -> None:
    known = ocp_mx.magnitudes(name)
    middles = [(low + high) / 2 for low, high in pairwise(known)]
    middles += [0.0] * (-len(middles) % 4)
    packed = pack_numbers(np.array(middles, np.float32).reshape(-1, 4), NUMPY[name])
    wanted = [ocp_mx.decode(name, ocp_mx.encode(name, value)) for value in middles]
    np.testing.assert_array_equal(unpack_numbers(packed).reshape(-1), wanted)


def test_arrays_of_packed_types_have_their_names() -> None:
    for name in PACKED_DTYPES:
        assert nki_dtype_name(NUMPY[name]) == name
        assert NUMPY[name] not in [NUMPY[other] for other in DTYPES if other != name]


# -- kernels ---------------------------------------------------------------------------------------

QUANTISE = """
@nki.jit
def kernel(x):
    p, f = x.shape
    codes = nl.ndarray((p, f), dtype=nl.uint8, buffer=nl.shared_hbm)
    factors = nl.ndarray((p, f // 4), dtype=nl.uint8, buffer=nl.shared_hbm)
    s = nl.ndarray((p, f), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(s, x)
    q = nl.ndarray((p, f // 4), dtype=nl.{name}, buffer=nl.sbuf)
    scales = nl.ndarray((p, f // 4), dtype=nl.{scale}, buffer=nl.sbuf)
    nisa.memset(scales.view(nl.uint8), 0)
    nisa.quantize_mx(q, s, scales[{offset}:])
    nisa.dma_copy(codes, q.view(nl.uint8))
    nisa.dma_copy(factors, scales.view(nl.uint8))
    return codes, factors
"""

MULTIPLY = """
@nki.jit
def kernel(x, y, sx, sy):
    m, n = x.shape[1] // {left_bytes}, y.shape[1] // {right_bytes}
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    tiles = []
    for a in (x, y, sx, sy):
        tiles.append(nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf))
        nisa.dma_copy(tiles[-1], a)
    left, right = tiles[0].view(nl.{left}), tiles[1].view(nl.{right})
    acc = nl.ndarray((m, n), dtype=nl.{total}, buffer=nl.psum)
    for _ in range({times}):
        nisa.nc_matmul_mx(acc, left, right, tiles[2], tiles[3])
    r = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(r, acc)
    nisa.dma_copy(out, r)
    return out
"""


def drawn_groups(seed: int, rows: int, free: int, dtype: Any) -> Any:
    """Numbers of many sizes, with groups of zeros and of numbers that bfloat16 has no normal form for."""
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** rng.integers(-20, 12, (rows // 8, 1, free, 1))
    numbers = (rng.normal(size=(rows // 8, 8, free, 4)) * sizes).astype(dtype)
    numbers[0, :, 0] = 0
    numbers[-1, :, -1] = np.array(2.0**-24 if dtype is np.float16 else 2.0**-133, dtype)
    numbers[-1, 3, 0, 2] = ml_dtypes.finfo(dtype).max
    return numbers.reshape(rows, 4 * free)


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16])
@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize(("rows", "offset"), [(32, 0), (64, 0), (64, 8), (96, 12), (128, 4)])
def test_quantisation_is_that_of_the_documents(
    name: str, dtype: Any, rows: int, offset: int, simulate: Any
) -> None:
    x = drawn_groups(rows + offset, rows, 6, dtype)
    text = QUANTISE.format(name=name, offset=offset, scale="float8_e8m0fnu" if offset else "uint8")
    codes, factors = simulate(text, x, target="trn3")
    wanted, scales = ocp_mx.quantise(name, x)
    np.testing.assert_array_equal(codes.reshape(rows, -1, 4), wanted)
    np.testing.assert_array_equal(factors, ocp_mx.scale_rows(scales, rows, offset))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_group_that_is_not_finite_has_no_scale(value: float, simulate: Any) -> None:
    x = np.ones((32, 8), BFLOAT16)
    x[3, 5] = value
    codes, factors = simulate(QUANTISE.format(name=FP8[0], offset=0, scale="uint8"), x, target="trn3")
    assert factors[0].tolist() == [ocp_mx.scale_of(FP8[0], 1.0), 255]
    assert {ocp_mx.decode(FP8[0], int(code)) for code in codes[:8, :4].reshape(-1)} == {2.0**7}
    assert all(np.isnan(ocp_mx.decode(FP8[0], int(code))) for code in codes[:8, 4:].reshape(-1))


def drawn_operand(seed: int, name: str, rows: int, free: int) -> tuple[Any, Any, tuple[Any, Any]]:
    """Bytes of finite packed numbers, a tile of their scales, and both as numbers and codes."""
    rng = np.random.default_rng(seed)
    kind = ocp_mx.FORMATS[name]
    finite = [c for c in range(1 << kind.bits) if np.isfinite(ocp_mx.decode(name, c))]
    codes = rng.choice(finite, (rows, free, 4)).astype(np.uint64)
    words = sum(codes[:, :, n] << np.uint64(kind.bits * n) for n in range(4)).astype(f"u{kind.bits // 2}")
    scales = rng.integers(100, 150, (rows // 8, free))
    return words.view(np.uint8), ocp_mx.scale_rows(scales, rows), (ocp_mx.unpack(name, words), scales)


@pytest.mark.parametrize("right", sorted(MX_DTYPES))
@pytest.mark.parametrize("left", sorted(MX_DTYPES))
def test_products_are_exact_sums_rounded_once(left: str, right: str, simulate: Any) -> None:
    x, sx, one = drawn_operand(1, left, 64, 6)
    y, sy, two = drawn_operand(2, right, 64, 10)
    sizes = {"left_bytes": DTYPES[left].itemsize, "right_bytes": DTYPES[right].itemsize}
    text = MULTIPLY.format(left=left, right=right, total="float32", times=1, **sizes)
    (found,) = simulate(text, x, y, sx, sy, target="trn3")
    np.testing.assert_allclose(found, ocp_mx.multiply(one, two), rtol=2.0**-24)


@pytest.mark.parametrize("rows", [32, 96, 128])
def test_products_add_up_in_the_type_of_their_tile(rows: int, simulate: Any) -> None:
    x, sx, one = drawn_operand(3, FP8[0], rows, 4)
    y, sy, two = drawn_operand(4, FP8[1], rows, 5)
    wanted = ocp_mx.multiply(one, two)
    sums = {"float32": np.zeros_like(wanted), "bfloat16": np.zeros(wanted.shape, BFLOAT16)}
    for name, total in sums.items():
        for _ in range(3):
            total[...] = (total.astype(np.float32) + wanted).astype(total.dtype)
        text = MULTIPLY.format(left=FP8[0], right=FP8[1], total=name, times=3, left_bytes=4, right_bytes=4)
        (found,) = simulate(text, x, y, sx, sy, target="trn3")
        np.testing.assert_allclose(found, total.astype(np.float32), rtol=2.0**-23)


def test_a_scale_that_is_no_number_spoils_its_group(simulate: Any) -> None:
    x, sx, _ = drawn_operand(5, FP8[0], 32, 4)
    y, sy, _ = drawn_operand(6, FP8[0], 32, 4)
    sx[2, 1] = 255
    text = MULTIPLY.format(left=FP8[0], right=FP8[0], total="float32", times=1, left_bytes=4, right_bytes=4)
    (found,) = simulate(text, x, y, sx, sy, target="trn3")
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False, False]


SHARED = """
@nki.jit
def kernel(x, y):
    out = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    scales = nl.ndarray((128, 32), dtype=nl.uint8, buffer=nl.sbuf)
    parts = []
    for at, a in enumerate((x, y)):
        s = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(s, a)
        parts.append(nl.ndarray((128, a.shape[1] // 4), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf))
        nisa.quantize_mx(parts[at], s, scales[4 * at:, 0:a.shape[1] // 4])
    acc = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul_mx(acc, parts[0], parts[1], scales[0:, 0:16], scales[4:])
    r = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(r, acc)
    nisa.dma_copy(out, r)
    return out
"""


def test_operands_share_a_tile_of_scales_that_nothing_else_writes(tracing: Any) -> None:
    """The 24 partitions between the scales of a quadrant are never read, and need not have been written."""
    rng = np.random.default_rng(7)
    x, y = (rng.normal(size=(128, size)).astype(BFLOAT16) for size in (64, 128))
    program = tracing(SHARED, x, y, target="trn3")
    assert checks.check(program, targets.load("trn3")) == []
    (found,) = numerics.run(program, [x, y])
    wide = [item.astype(np.float64).reshape(128, -1, 4) for item in (x, y)]
    wanted = np.einsum("kiq,kjq->ij", *wide)
    assert np.linalg.norm(found - wanted) < 0.05 * np.linalg.norm(wanted)
    (product,) = [form for form in program.forms if form.op == "nc_matmul_mx"]
    assert form_flops(product) == 2 * 4 * 128 * 16 * 32


# -- rules -----------------------------------------------------------------------------------------

PRELUDE = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    def tile(rows, columns, dtype=nl.float32, buffer=nl.sbuf, value=1):
        made = nl.ndarray((rows, columns), dtype=dtype, buffer=buffer)
        nisa.memset(made, value)
        return made
    e4m3, e5m2, e2m1 = nl.float8_e4m3fn_x4, nl.float8_e5m2_x4, nl.float4_e2m1fn_x4
    def operand(rows, columns, dtype=e4m3):
        return tile(rows, columns, dtype, value=0), tile(rows, columns, nl.uint8, value=127)
    def multiply(left, right, dtype=nl.float32, **options):
        (a, sa), (b, sb) = left, right
        most = 4096 if dtype == nl.float32 else 8192
        shape = min(a.shape[1], 128), min(b.shape[1], most)
        acc = nl.ndarray(shape, dtype=dtype, buffer=nl.psum)
        nisa.nc_matmul_mx(acc, a, b, sa, sb, **options)
    def quantise(source, dtype=e4m3, rows=None, scales=nl.uint8):
        p, f = source.shape
        nisa.quantize_mx(nl.ndarray((p, f // 4), dtype=dtype, buffer=nl.sbuf), source,
                         nl.ndarray((rows or p, f // 4), dtype=scales, buffer=nl.sbuf))
    h, w = tile(128, 64, nl.bfloat16), operand(64, 16)
{body}
    return out
"""

RULES = {
    "products take packed types": ("mx_dtype", "multiply((h[0:64, 0:16], w[1]), w)",
                                   "multiply(operand(64, 16, e2m1), w)"),
    "sums are float32 or bfloat16": ("mx_dtype", "multiply(w, w, nl.float16)", "multiply(w, w, nl.bfloat16)"),
    "scales are bytes": ("mx_dtype", "multiply((w[0], tile(64, 16, nl.int8)), w)",
                         "multiply((w[0], tile(64, 16, nl.float8_e8m0fnu)), w)"),
    "16-bit numbers are quantised": ("mx_dtype", "quantise(tile(64, 16))", "quantise(h[0:64])"),
    "four bits are quantised before": ("mx_dtype", "quantise(h, e2m1)", "quantise(h, e5m2)"),
    "whole quadrants are quantised": ("mx_partitions", "quantise(h[0:16], rows=4)",
                                     "quantise(h[0:32], rows=4)"),
    "whole quadrants are multiplied": ("mx_partitions", "multiply(operand(40, 16), operand(40, 16))",
                                       "multiply(operand(96, 16), operand(96, 16))"),
    "an even number of columns stays": ("matmul_size", "multiply(operand(32, 15), operand(32, 16))",
                                        "multiply(operand(32, 16), operand(32, 15))"),
    "128 columns stay": ("matmul_size", "multiply(operand(32, 130), operand(32, 16))",
                         "multiply(operand(32, 128), operand(32, 16))"),
    "4096 columns move": ("matmul_size", "multiply(operand(32, 16), operand(32, 4098))",
                          "multiply(operand(32, 16), operand(32, 4096))"),
    "8192 columns move into bfloat16": (
        "matmul_size", "multiply(operand(32, 16), operand(32, 8194), nl.bfloat16)",
        "multiply(operand(32, 16), operand(32, 8192), nl.bfloat16)",
    ),
    "contractions match": ("matmul_shape", "multiply(operand(32, 16), operand(64, 16))",
                           "multiply(operand(64, 16), operand(64, 16))"),
    "four numbers make an element": (
        "shape_mismatch",
        "nisa.quantize_mx(tile(64, 17, e4m3, value=0), h[0:64], tile(64, 16, nl.uint8))",
        "nisa.quantize_mx(tile(64, 16, e4m3, value=0), h[0:64], tile(64, 16, nl.uint8))",
    ),
    "scales reach the last quadrant": ("mx_scale_shape", "multiply((w[0], w[1][0:35]), w)",
                                       "multiply((w[0], w[1][0:36]), w)"),
    "a column of scales for each element": ("mx_scale_shape", "multiply((w[0], w[1][:, 0:15]), w)",
                                            "multiply((w[0], w[1][:, 0:16]), w)"),
    "scales begin at multiples of 4": (
        "mx_scale_partition", "nisa.quantize_mx(w[0][0:32], h[0:32], w[1][2:])",
        "nisa.quantize_mx(w[0][0:32], h[0:32], w[1][4:])",
    ),
    "scales begin in the first half": (
        "mx_scale_partition", "nisa.quantize_mx(w[0][0:32], h[0:32], w[1][16:])",
        "nisa.quantize_mx(w[0][0:32], h[0:32], w[1][12:])",
    ),
    "scales lie where their groups do": (
        "mx_scale_quadrant", "nisa.quantize_mx(w[0][32:64], h[32:64], w[1])",
        "nisa.quantize_mx(w[0][32:64], h[32:64], w[1][32:])",
    ),
    "products are tiled by rows": (
        "matmul_tile", "v = operand(32, 16)\nmultiply(v, v, tile_position=(0, 64), tile_size=(32, 64))",
        "v = operand(32, 16)\nmultiply(v, v, tile_position=(64, 0), tile_size=(32, 128))",
    ),
    "packed types are not cast": ("dtype", "nisa.tensor_copy(tile(64, 16), w[0])",
                                  "nisa.tensor_copy(tile(64, 16, e4m3, value=0), w[0])"),
    "nothing computes with packed types": (
        "dtype", "nisa.tensor_scalar(tile(64, 16), w[0], nl.add, 1.0)",
        "nisa.tensor_scalar(tile(64, 16), w[0].view(nl.uint32), nl.add, 1.0)",
    ),
    "packed types are filled with zeros": ("memset_value", "tile(8, 8, e2m1, value=1.0)",
                                           "tile(8, 8, e2m1, value=0.0)"),
    "scales are powers of two": ("memset_value", "tile(8, 8, nl.float8_e8m0fnu, value=0.0)",
                                 "tile(8, 8, nl.float8_e8m0fnu, value=0.25)"),
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(RULES))
def test_a_rule_of_mx_is_broken_and_just_kept(what: str, refusals: Any, texts: Any) -> None:
    code, *bodies = RULES[what]
    sources = [texts.source_of(PRELUDE.format(body=textwrap.indent(body, "    "))) for body in bodies]
    assert [refusals(source, "trn3") for source in sources] == [{code}, set()]


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_older_targets_name_what_they_lack(target: str, refusals: Any, texts: Any) -> None:
    made = "nl.ndarray((32, 8), dtype={}, buffer=nl.sbuf)"
    body = f"""
    @nki.jit
    def kernel(x):
        t, s = {made.format("nl.bfloat16")}, {made.format("nl.uint8")}
        nisa.memset(t, 1.0)
        nisa.quantize_mx(s, t, s)
        return x
    """
    assert refusals(texts.source_of(body), target) == {"generation"}
    view = f"@nki.jit\ndef kernel(x):\n    return {made.format('nl.uint32')}.view(nl.float8_e5m2_x4)"
    assert refusals(texts.source_of(view), target) == {"dtype"}


def test_an_argument_of_a_packed_type_needs_the_target(tracing: Any) -> None:
    text = "@nki.jit\ndef kernel(x):\n    return x"
    with pytest.raises(KernelError, match=r"nl.float8_e5m2_x4 is for NeuronCore-v4 \(trn3\), not for trn2"):
        tracing(text, ArraySpec((32, 8), "float8_e5m2_x4"))


def tile_of(role: str, free: int, dtype: str, buffer: str = "sbuf") -> Operand:
    return Operand(role, ((free, 128), (1, free)), dtype, buffer, free, 0)


def test_a_product_and_a_quantisation_cost_what_the_documents_say() -> None:
    """Four numbers of a partition are quantised in a cycle; a product moves a column of elements in one."""
    target = targets.load("trn3")
    taken = {}
    for size in (512, 1024):
        forms = {
            "quantize_mx": (tile_of("dst", size, "float8_e4m3fn_x4"), tile_of("src", 4 * size, "bfloat16")),
            "nc_matmul_mx": (
                tile_of("dst", size, "float32", "psum"), tile_of("stationary", 128, "float8_e4m3fn_x4"),
                tile_of("moving", size, "float8_e4m3fn_x4"),
            ),
        }  # fmt: skip
        for op, operands in forms.items():
            form = Form(op, OPERATORS[op].engines[0], operands, ())
            taken[op, size] = OPERATORS[op].cost(form, target).busy_ns
    for op, clock in (("quantize_mx", target.vector_clock_ghz), ("nc_matmul_mx", target.tensor_clock_ghz)):
        assert taken[op, 1024] - taken[op, 512] == pytest.approx(512 / clock)
