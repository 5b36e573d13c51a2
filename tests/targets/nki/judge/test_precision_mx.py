"""Products of MX operands: low precision, unless the problem says that they may be used."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

import nki_sim
import seeds
from nki_sim.forms import ArraySpec
from nki_sim.program.ir import Program
from remote.judge.rejection import RejectedError
from seeds.spec import ProblemSpec, parse_spec
from targets.nki.judge.precision import find_lost_precision
from targets.nki.judge.trials import require_precision

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(x, y):
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    def load(a):
        made = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(made, a)
        return made
    def cast(tile, dtype):
        made = nl.ndarray(tile.shape, dtype=dtype, buffer=nl.sbuf)
        nisa.tensor_copy(made, tile)
        return made
    def quantise(tile):
        p, f = tile.shape
        made = nl.ndarray((p, f // 4), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        scales = nl.ndarray((p, f // 4), dtype=nl.{scale}, buffer=nl.sbuf)
        nisa.quantize_mx(made, cast(tile, nl.bfloat16), scales)
        return made, scales
    acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    def multiply_mx(left, right):
        (a, sa), (b, sb) = quantise(left), quantise(right)
        nisa.nc_matmul_mx(acc, a, b, sa, sb)
    sx, sy = load(x), load(y)
{body}
    r = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(r, acc)
    nisa.dma_copy(out, r)
    return out
"""

MX = "multiply_mx(sx, sy)"
THEN_NARROW = """
multiply_mx(sx, sy)
half = cast(acc, nl.bfloat16)
one = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
nisa.tensor_copy(one, half)
acc = one
"""
THEN_BFLOAT16 = """
multiply_mx(sx, sy)
for part in range(4):
    left, right = sx[:, nl.ds(128 * part, 128)], sy[:, nl.ds(512 * part, 512)]
    nisa.nc_matmul(acc, cast(left, nl.bfloat16), cast(right, nl.bfloat16))
"""
A_FEW = """
for part in range(40):
    nisa.nc_matmul(acc, sx[:, 0:128], sy[:, 0:512])
multiply_mx(sx, sy)
"""


def traced(body: str, dtype: str = "float32", scale: str = "uint8") -> Program:
    source = KERNEL.format(body=textwrap.indent(body, "    "), scale=scale)
    return nki_sim.trace(
        source, args=[ArraySpec((128, 512), dtype), ArraySpec((128, 2048), dtype)], target="trn3"
    )


@pytest.mark.parametrize("scale", ["uint8", "float8_e8m0fnu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mx_is_low_precision_unless_the_problem_allows_it(dtype: str, scale: str) -> None:
    program = traced(MX, dtype, scale)
    found = find_lost_precision(program)
    assert found is not None
    assert "only as float8_e4m3fn_x4" in found[0]
    assert find_lost_precision(program, mx=True) is None


def test_what_is_lost_after_a_product_counts_even_where_mx_is_allowed() -> None:
    found = find_lost_precision(traced(THEN_NARROW), mx=True)
    assert found is not None
    assert found[0].endswith("only as bfloat16")


def test_other_narrow_products_count_even_where_mx_is_allowed() -> None:
    found = find_lost_precision(traced(THEN_BFLOAT16), mx=True)
    assert found is not None
    assert found[0] == "100 % of the products have input x only as bfloat16"


def test_a_few_products_of_mx_are_weighed_like_other_narrow_ones() -> None:
    assert find_lost_precision(traced(A_FEW)) is None
    found = find_lost_precision(traced(A_FEW.replace("40", "4")))
    assert found is not None
    assert found[0] == "50 % of the products have input x only as float8_e4m3fn_x4"


def test_the_judge_says_what_allows_mx() -> None:
    with pytest.raises(RejectedError) as caught:
        require_precision(traced(MX), mx=False)
    assert caught.value.error.code == "low_precision"
    assert "mx = true" in str(caught.value.error.hint)
    require_precision(traced(MX), mx=True)


def spec(change: str) -> tuple[ProblemSpec | None, list[str]]:
    text = seeds.load_problem("matmul").files["problem.toml"].decode()
    assert "shape_generic = true" in text
    return parse_spec(text.replace("shape_generic = true", f"shape_generic = true\n{change}").encode())


def test_a_problem_says_whether_mx_may_be_used() -> None:
    assert [found_spec(change).mx for change in ("", "mx = false", "mx = true")] == [False, False, True]
    assert [found_spec(change).minimal_work("full").mx for change in ("", "mx = true")] == [False, True]
    made, faults = spec('mx = "yes"')
    assert made is None
    assert any("mx" in fault for fault in faults)


def found_spec(change: str) -> Any:
    made, faults = spec(change)
    assert made is not None, faults
    return made
