"""Tensor indirection (`NkiTensor.indirect`): what it gathers and scatters, and where documents allow it."""

from __future__ import annotations

import textwrap
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.errors import KernelError
from nki_sim.operators import OPERATORS
from nki_sim.semantics.arrays import NUMPY
from nki_sim.semantics.mx import pack_numbers

KERNEL = """
@nki.jit
def kernel(x, index):
    out = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    i = nl.ndarray(index.shape, dtype=index.dtype, buffer=nl.sbuf)
    r = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.sbuf)
    p = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.psum)
    nisa.dma_copy(t, x)
    nisa.dma_copy(i, index)
    nisa.memset(r, -1.0)
{body}
    nisa.dma_copy(out, r)
    return out
"""


def kernel(body: str, shape: tuple[int, int] = (128, 32)) -> str:
    return KERNEL.format(body=textwrap.indent(textwrap.dedent(body), "    "), shape=shape)


def offsets_of(index: Any, count: int, group: int) -> Any:
    """The documents' statement: offset i of a group is index[start + i % G, i // G]."""
    found = np.empty((len(index), count), dtype=np.int64)
    for partition in range(len(index)):
        start = partition // group * group
        found[partition] = [index[start + i % group, i // group] for i in range(count)]
    return found


def draw(partitions: int = 128, columns: int = 64, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(partitions).normal(size=(partitions, columns)).astype(dtype)


def draw_index(below: int, partitions: int = 128, columns: int = 2) -> Any:
    return np.random.default_rng(below).integers(0, below, (partitions, columns)).astype(np.uint16)


@pytest.mark.parametrize(("call", "engine"), [
    ("nisa.tensor_copy(r, t.indirect(i, 32), engine=nisa.engine.vector)", "vector"),
    ("nisa.tensor_copy(r, t.indirect(i, 32), engine=nisa.engine.scalar)", "scalar"),
    ("nisa.tensor_tensor(r, t.indirect(i, 32), r, nl.maximum, engine=nisa.engine.gpsimd)", "gpsimd"),
    ("nisa.tensor_tensor(r, t.indirect(i, num_elem=32), r, nl.maximum)", "vector"),
    ("nisa.activation(r, nl.copy, t.indirect(i, 32))", "scalar"),
])  # fmt: skip
def test_each_group_of_16_partitions_gathers_by_its_own_offsets(
    call: str, engine: str, simulate: Any, tracing: Any
) -> None:
    x, index = draw(), draw_index(64)
    found = simulate(kernel(call), x, index, target="trn3")[0]
    wanted = np.take_along_axis(x, offsets_of(index, 32, 16), axis=1)
    np.testing.assert_array_equal(found, np.maximum(wanted, -1) if "maximum" in call else wanted)
    form = tracing(kernel(call), x, index, target="trn3").forms
    assert engine in {item.engine for item in form if item.column_lookups}


def test_fewer_partitions_than_a_group_and_a_window_of_the_tile(simulate: Any) -> None:
    x, index = draw(8, 20), draw_index(10, partitions=8, columns=1)
    body = "nisa.tensor_copy(r, t[:, 4:14].indirect(i, 8))"
    found = simulate(kernel(body, (8, 8)), x, index, target="trn3")[0]
    np.testing.assert_array_equal(found, x[:, 4 + index[:, 0].astype(int)])


def test_a_scatter_leaves_the_other_columns(simulate: Any) -> None:
    x, order = draw(), np.random.default_rng(5).permutation(32)[:16].astype(np.uint16)
    index = np.tile(order[:, None], (8, 1))
    body = "nisa.tensor_copy(r.indirect(i, 16), t[:, 0:16])"
    found = simulate(kernel(body), x, index, target="trn3")[0]
    wanted = np.full((128, 32), -1, np.float32)
    wanted[:, order] = x[:, :16]
    np.testing.assert_array_equal(found, wanted)


def test_the_tensor_engine_takes_groups_of_32(simulate: Any) -> None:
    x, index = draw(dtype=ml_dtypes.bfloat16), draw_index(64, columns=1)
    body = """
    nisa.nc_matmul(p, t[:, 0:16], t.indirect(i, 32))
    nisa.tensor_copy(r, p)
    """
    found = simulate(kernel(body, (16, 32)), x, index, target="trn3")[0]
    wide = x.astype(np.float32)
    chosen = np.take_along_axis(wide, offsets_of(index, 32, 32), axis=1)
    np.testing.assert_allclose(found, wide[:, :16].T @ chosen, rtol=1e-5, atol=1e-4)


def test_a_product_is_scattered_into_psum(simulate: Any) -> None:
    x = draw(dtype=ml_dtypes.bfloat16)
    order = np.random.default_rng(9).permutation(32).astype(np.uint16)
    body = """
    nisa.memset(p, 2.0)
    nisa.nc_matmul(p.indirect(i[0:32], 32), t[:, 0:32], t[:, 32:64], accumulate=False)
    nisa.tensor_copy(r, p)
    """
    index = np.tile(order[:, None], (4, 1))
    found = simulate(kernel(body, (32, 32)), x, index, target="trn3")[0]
    wide = x.astype(np.float32)
    wanted = np.empty((32, 32), np.float32)
    wanted[:, order] = wide[:, :32].T @ wide[:, 32:64]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


MX = """
@nki.jit
def kernel(x, y, sx, sy, index):
    out = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    def load(source):
        made = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(made, source)
        return made
    a, b, sa, sb, i = load(x), load(y), load(sx), load(sy), load(index)
    p = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul_mx(p, a, {moving}, sa, {scale})
    r = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(r, p)
    nisa.dma_copy(out, r)
    return out
"""


def test_mx_operands_are_gathered_with_their_scales(simulate: Any) -> None:
    """As the same product of operands whose columns were gathered before, quadrant by quadrant."""
    generator = np.random.default_rng(7)

    def packed(columns: int) -> Any:
        numbers = generator.normal(size=(64, columns, 4))
        return pack_numbers(numbers, NUMPY["float8_e4m3fn_x4"])

    x, y = packed(16), packed(48)
    sx, sy = (generator.integers(120, 130, (64, count)).astype(np.uint8) for count in (16, 48))
    index = draw_index(48, partitions=64, columns=1)
    body = MX.format(moving="b.indirect(i, 32)", scale="sb.indirect(i, 32)")
    found = simulate(body, x, y, sx, sy, index, target="trn3")[0]
    chosen = offsets_of(index, 32, 32)
    plain = MX.format(moving="b", scale="sb")
    gathered, scales = (np.take_along_axis(one, chosen, axis=1) for one in (y, sy))
    np.testing.assert_array_equal(found, simulate(plain, x, gathered, sx, scales, index, target="trn3")[0])


@pytest.mark.parametrize(("moving", "scale"), [
    ("b.indirect(i, 32)", "sb[:, 0:32]"), ("b[:, 0:32]", "sb.indirect(i, 32)"),
    ("b.indirect(i, 32)", "sb.indirect(j, 32)"),
])  # fmt: skip
def test_numbers_and_scales_share_their_index(moving: str, scale: str, tracing: Any) -> None:
    text = MX.format(moving=moving, scale=scale).replace(
        "    p = nl.ndarray", "    j = load(index)\n    p = nl.ndarray"
    )
    kinds = ("float8_e4m3fn_x4", "float8_e4m3fn_x4", "uint8", "uint8", "uint16")
    specs = [ArraySpec((64, n), kind) for n, kind in zip((16, 48, 16, 48, 1), kinds, strict=True)]
    with pytest.raises(KernelError) as caught:
        tracing(text, *specs, target="trn3")
    assert caught.value.code == "mx_scale_index"


@pytest.mark.parametrize(("body", "index", "code"), [
    ("nisa.tensor_copy(r, t.indirect(i, 32))", np.full((128, 2), 64), "tensor_access_out_of_bound"),
    ("nisa.tensor_copy(r.indirect(i, 32), t[:, 0:32])", np.zeros((128, 2)), "duplicate_indices"),
])  # fmt: skip
def test_offsets_are_checked_when_the_kernel_runs(body: str, index: Any, code: str, simulate: Any) -> None:
    with pytest.raises(KernelError) as caught:
        simulate(kernel(body), draw(), index.astype(np.uint16), target="trn3")
    assert caught.value.code == code


TILED = """
w = r[32:64].indirect(i[32:64], 16)
nisa.nc_matmul(p[0:32, 0:16], r[32:64], w, tile_position=(32, 0), tile_size=(32, 32))
"""

PAIRS = {
    "generation": (
        "nisa.tensor_copy(r, t.indirect(i, 32))", "nisa.tensor_copy(r, t[:, 0:32])", "trn2"
    ),
    "indirect_engine": (
        "nisa.tensor_copy(r, t.indirect(i, 32), engine=nisa.engine.gpsimd)",
        "nisa.tensor_copy(r, t.indirect(i, 32), engine=nisa.engine.scalar)", "trn3",
    ),
    "indirect_operand": (
        "nisa.tensor_tensor(r, t[:, 0:32], t.indirect(i, 32), nl.add)",
        "nisa.tensor_tensor(r, t.indirect(i, 32), t[:, 0:32], nl.add)", "trn3",
    ),
    "indirect_offsets": (
        "nisa.tensor_copy(r, t.indirect(i[:, 0:1], 32))", "nisa.tensor_copy(r, t.indirect(i, 32))", "trn3",
    ),
    "indirect_alignment": (
        "nisa.tensor_copy(r[0:32], t[0:32].indirect(i[32:64], 32))",
        "nisa.tensor_copy(r[0:32], t[32:64].indirect(i[32:64], 32))", "trn3",
    ),
    "indirect_tiling": (
        TILED, "nisa.nc_matmul(p[0:32, 0:16], r, r.indirect(i, 16))", "trn3",
    ),
}  # fmt: skip
"""For each rule, what breaks it and what just does not."""

SPECS = (ArraySpec((128, 64), "float32"), ArraySpec((128, 2), "uint16"))


def codes(tracing: Any, body: str, target: str) -> set[str]:
    text = kernel(body)
    if "nc_matmul" in body:
        text = text.replace(
            "r = nl.ndarray((128, 32), dtype=nl.float32", "r = nl.ndarray((128, 32), dtype=nl.bfloat16"
        )
    try:
        program = tracing(text, *SPECS, target=target)
    except KernelError as error:
        return {error.code}
    return {item.code for item in checks.check(program, targets.load(target))}


@pytest.mark.parametrize("code", sorted(PAIRS))
def test_a_kernel_that_breaks_the_rule_and_one_that_does_not(code: str, tracing: Any) -> None:
    breaks, keeps, target = PAIRS[code]
    assert codes(tracing, breaks, target) == {code}
    assert codes(tracing, keeps, target) == set()


@pytest.mark.parametrize("body", [
    "nisa.nc_matmul(p[0:32, 0:16], t[:, 0:32], t.indirect(i, 16))",
    "nisa.nc_matmul(p, r, r.indirect(i, 32), is_transpose=True)",
    "nisa.activation(p.indirect(i, 16), nl.copy, t[:, 0:16])",
    "nisa.dma_copy(r, t.indirect(i, 32))",
    "nisa.select_reduce(r, r, t.indirect(i, 32), 0.0)",
])  # fmt: skip
def test_what_no_page_allows_is_refused(body: str, tracing: Any) -> None:
    assert "indirect_operand" in codes(tracing, body, "trn3")


@pytest.mark.parametrize(("view", "code"), [
    ("t.indirect(i, 32)[:, 0:4]", "indirect_view"),
    ("t.indirect(i, 32).indirect(i, 32)", "indirect_view"),
    ("x.indirect(i, 32)", "indirect_view"),
    ("t.reshape((128, 8, 8)).indirect(i, 32)", "indirect_view"),
    ("t.indirect(i[0:64], 32)", "indirect_index_shape"),
    ("t.indirect(i, 257)", "indirect_index_shape"),
    ("t.indirect(t)", "indirect_index_type"),
    ("nisa.nc_matmul(p.indirect(i, 16), t, t[:, 0:16])", "accumulate_overlap"),
])  # fmt: skip
def test_what_views_refuse(view: str, code: str, tracing: Any) -> None:
    with pytest.raises(KernelError) as caught:
        tracing(kernel(view), *SPECS, target="trn3")
    assert caught.value.code == code


def test_columns_are_taken_one_by_one(tracing: Any) -> None:
    """No page gives a rate, so no fast mode is assumed."""
    target = targets.load("trn3")
    text = kernel("nisa.tensor_copy(r, {source})", (128, 512)).replace("nl.float32", "nl.bfloat16")
    specs = ArraySpec((128, 1024), "bfloat16"), ArraySpec((128, 32), "uint16")
    busy = [
        OPERATORS[form.op].cost(form, target).busy_ns
        for source in ("t[:, 0:512]", "t.indirect(i, 512)")
        for form in tracing(text.format(source=source), *specs, target="trn3").forms
        if form.op == "tensor_copy"
    ]
    assert busy[1] > 2 * busy[0]
