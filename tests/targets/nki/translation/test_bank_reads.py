"""Copies of banks that readers can do without, and those that they need."""

from __future__ import annotations

import pytest

from targets.nki.translation.bank_reads import read_banks

DECLARED = """
    bank = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    for i_side in nl.affine_range(4):
        nisa.nc_transpose(dst=bank[:, i_side * 128:i_side * 128 + 128], data=x[:, i_side, :])
    other = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=other, stationary=x[:, 0, :], moving=x)
    tile = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
"""
COPY = "    nisa.tensor_copy(dst=tile[:, 0:512], src=bank, engine=nisa.engine.scalar)\n"
READS = """
    nisa.tensor_reduce(dst=largest, op=nl.maximum, data=tile, axis=1)
    nisa.activation(dst=result, op=nl.exp, data=tile[:, 0:512], bias=largest)
"""


def make(*parts):
    lines = [line for part in parts for line in part.splitlines() if line.strip()]
    return "\n".join(["def kernel(x, largest, result, out):", *lines]) + "\n"


def test_all_readers_read_the_bank():
    found = read_banks(make(DECLARED, COPY, READS))
    assert found is not None
    assert "tile" not in found
    assert "tensor_copy" not in found
    assert "nisa.tensor_reduce(dst=largest, op=nl.maximum, data=bank, axis=1)" in found
    assert "data=bank[:, 0:512], bias=largest" in found


def test_a_copy_in_a_loop_is_left_out_too():
    body = make(DECLARED, COPY, READS).splitlines()[1:]
    looped = ["def kernel(x, largest, result, out):", "    for i_row in nl.affine_range(2):"]
    found = read_banks("\n".join([*looped, *("    " + line for line in body)]) + "\n")
    assert found is not None
    assert "tensor_copy" not in found


LOOPED = """
    for i in nl.affine_range(2):
        nisa.activation(dst=result, op=nl.exp, data=tile)
"""
NEEDED = {
    "part of a bank": (COPY.replace("src=bank", "src=bank[:, 0:512:2]"), READS),
    "part of the tile": (COPY.replace("0:512", "0:256"), READS),
    "by dma": (COPY, READS, "    nisa.dma_copy(dst=out, src=tile)\n"),
    "by the tensor engine": (COPY, READS, "    nisa.nc_transpose(dst=other, data=tile[:, 0:128])\n"),
    "by gpsimd": (COPY, READS.replace("axis=1", "axis=1, engine=nisa.engine.gpsimd")),
    "as a column": (COPY, READS.replace("bias=largest", "bias=tile[:, 0:1]")),
    "beside another bank": (
        COPY,
        "    nisa.tensor_tensor(dst=result, data1=tile, data2=other, op=nl.multiply)\n",
    ),
    "twice": (COPY, "    nisa.tensor_tensor(dst=result, data1=tile, data2=tile, op=nl.multiply)\n"),
    "written": (COPY, READS, "    nisa.memset(dst=tile, value=0.0)\n"),
    "bank written": (COPY, "    nisa.nc_transpose(dst=bank, data=x)\n", READS),
    "filled before": ("    nisa.memset(dst=tile, value=0.0)\n", COPY, READS),
    "in a loop": (COPY, LOOPED),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDED)
def test_copies_that_readers_need_stay(name):
    assert read_banks(make(DECLARED, *NEEDED[name])) is None


def test_other_types_and_shapes_need_the_copy():
    other_type = DECLARED.replace("float32, buffer=nl.sbuf", "bfloat16, buffer=nl.sbuf")
    other_shape = DECLARED.replace("tile = nl.ndarray((128, 512)", "tile = nl.ndarray((128, 1024)")
    assert read_banks(make(other_type, COPY, READS)) is None
    assert read_banks(make(other_shape, COPY, READS)) is None
