"""Transposes on the tensor engine, of what DMA turned around on its way."""

from __future__ import annotations

import pytest

from nki_sim import targets
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite, list_rewrites_by_site

KERNEL = """
T = 64


@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((n, m), dtype=x.dtype, buffer=nl.shared_hbm)
    for j in nl.affine_range(n // T):
        {declared}
        {turned}
        nisa.dma_copy(dst=out[j * T : (j + 1) * T, :], src={result})
    return out
"""
TILE = "t = nl.ndarray((T, m), dtype=x.dtype, buffer=nl.sbuf)"
ALL = "nisa.dma_transpose(dst=t, src=x[:, j * T : (j + 1) * T])"
SITE = "dma_transpose to t"
PART = "nisa.dma_transpose(dst=t[:, nl.ds(i * 128, 128)], src=x[nl.ds(i * 128, 128), nl.ds(j * T, T)])"


def sample(turned: str = ALL, declared: str = TILE, result: str = "t", rows: int = 256) -> Sample:
    body = KERNEL.format(declared=declared, turned=turned.replace("\n", "\n        "), result=result)
    return Sample(HEADER + body, ((rows, 128),), lambda x: x.T)


def test_a_tile_is_loaded_as_it_lies_and_turned_block_by_block():
    made = sample("# Columns become rows.\n" + ALL)
    source = find_rewrite(made, "transpose", SITE, {})
    assert relative_error(made, source) == 0.0
    assert "# Columns become rows.\n        for i_rows in nl.affine_range(m // 128):" in source
    assert "t_rows = nl.ndarray((128, T), dtype=nl.float32, buffer=nl.sbuf)" in source
    assert "src=x[i_rows * 128 : (i_rows + 1) * 128, j * T : (j + 1) * T]" in source
    assert "dst=t[:, i_rows * 128 : (i_rows + 1) * 128], src=t_psum" in source
    assert "dma_transpose" not in source


def test_few_rows_need_no_loop():
    made = sample(rows=96)
    source = find_rewrite(made, "transpose", SITE, {})
    assert relative_error(made, source) == 0.0
    assert "t_psum = nl.ndarray((T, m), dtype=nl.float32, buffer=nl.psum)" in source
    assert "for i_rows" not in source


@pytest.mark.parametrize(
    ("turned", "declared", "result"),
    [
        (f"for i in nl.affine_range(m // 128):\n    {PART}", TILE, "t"),
        (
            "nisa.dma_transpose(dst=t[:, 1, :], src=x[:, j * T : j * T + T])",
            TILE.replace("(T, m)", "(T, 2, m)"),
            "t[:, 1, :]",
        ),
        (
            "nisa.dma_transpose(dst=t[0:T, 8 : 8 + m], src=x[:, nl.ds(j * T, T)])",
            TILE.replace("(T, m)", "(T, m + 8)"),
            "t[:, 8 : 8 + m]",
        ),
    ],
)
def test_parts_are_turned_where_they_belong(turned: str, declared: str, result: str):
    made = sample(turned, declared, result)
    source = find_rewrite(made, "transpose", SITE, {})
    assert relative_error(made, source) == 0.0
    assert "dma_transpose" not in source


def test_what_is_on_chip_is_turned_without_a_load():
    turned = (
        "for i in nl.affine_range(m // 128):\n"
        "    rows = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)\n"
        "    nisa.dma_copy(dst=rows, src=x[i * 128 : (i + 1) * 128, :])\n"
        "    nisa.dma_transpose(dst=t[:, i * 128 : (i + 1) * 128], src=rows[:, j * T : (j + 1) * T])"
    )
    made = sample(turned)
    source = find_rewrite(made, "transpose", SITE, {})
    assert relative_error(made, source) == 0.0
    assert "nisa.nc_transpose(dst=t_psum, data=rows[:, j * T : (j + 1) * T])" in source
    assert source.count("dma_copy") == made.source.count("dma_copy")


def test_each_transfer_is_a_place_of_its_own():
    made = sample("\n".join(PART.replace("i *", f"{half} *") for half in (0, 1)))
    assert list_rewrites_by_site(made, "transpose").keys() == {SITE, f"{SITE}#2"}
    assert relative_error(made, find_rewrite(made, "transpose", f"{SITE}#2", {})) == 0.0


@pytest.mark.parametrize("name", ["trn1", "trn2"])
def test_a_turned_tile_keeps_its_type_in_psum(name: str):
    half = (
        "h = nl.ndarray((m, T), dtype=nl.bfloat16, buffer=nl.sbuf)\n"
        "nisa.memset(dst=h, value=1.0)\n"
        "nisa.dma_transpose(dst=t, src=h)"
    )
    made, target = sample(half, TILE.replace("x.dtype", "nl.bfloat16"), rows=128), targets.load(name)
    kernel = read_kernel(made.source, made.arguments, target)
    (child,), _ = explore_rewrites(kernel, made.arguments, target, transforms=[TRANSFORMS["transpose"]])
    assert "t_psum = nl.ndarray((T, m), dtype=nl.bfloat16, buffer=nl.psum)" in child.source


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            sample("nisa.dma_transpose(dst=t, src=x[-m:, nl.ds(j * T, T)])"),
            "-m: has steps or counts from the end",
        ),
        (
            sample(
                "nisa.dma_transpose(dst=t, src=x[0:m:2, nl.ds(j * T, T)])",
                TILE.replace("(T, m)", "(T, m // 2)"),
                rows=512,
            ),
            "0:m:2 has steps or counts from the end",
        ),
        (sample(rows=160), "the 160 rows of x are not made of blocks of 128"),
        (
            sample("nisa.dma_transpose(dst=t[:, -m:], src=x[:, nl.ds(j * T, T)])"),
            "-m: has steps or counts from the end",
        ),
        (
            sample(
                "nisa.dma_transpose(dst=t[:, 0 : 2 * m : 2], src=x[:, nl.ds(j * T, T)])",
                TILE.replace("(T, m)", "(T, 2 * m)"),
                "t[:, 0 : 2 * m : 2]",
            ),
            "0 : 2 * m : 2 has steps or counts from the end",
        ),
    ],
)
def test_what_cannot_be_turned_there_is_left_to_dma(made: Sample, reason: str):
    assert find_refusal(made, "transpose", SITE) == reason
