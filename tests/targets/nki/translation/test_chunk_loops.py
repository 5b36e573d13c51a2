"""Loops over chunks that become one, and copies out of PSUM that are left out."""

from __future__ import annotations

import pytest

from targets.nki.translation.chunk_loops import join_chunk_loops

KERNEL = """def kernel(x):
    product = nl.ndarray((128, 4, 64), dtype=nl.float32, buffer=nl.sbuf)
    for i_chunk in nl.affine_range(4):
        bank = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=x[:, i_chunk, :], moving=x[:, 0, :])
        nisa.tensor_copy(dst=product[:, i_chunk, :], src=bank, engine=nisa.engine.scalar)
    result = nl.ndarray((128, 4, 64), dtype=nl.float32, buffer=nl.sbuf)
    for i_chunk_2 in nl.affine_range(4):
        nisa.activation(dst=result[:, i_chunk_2, :], op=nl.exp, data=product[:, i_chunk_2, :])
    return result
"""

JOINED = """def kernel(x):
    result = nl.ndarray((128, 4, 64), dtype=nl.float32, buffer=nl.sbuf)
    for i_chunk in nl.affine_range(4):
        bank = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=x[:, i_chunk, :], moving=x[:, 0, :])
        nisa.activation(dst=result[:, i_chunk, :], op=nl.exp, data=bank)
    return result
"""


def test_what_follows_a_product_reads_its_bank():
    assert join_chunk_loops(KERNEL) == JOINED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data=product[:, i_chunk_2, :]", "data=product[:, 3 - i_chunk_2, :]"),  # another chunk
        ("data=product[:, i_chunk_2, :]", "data=product[:, 0, :]"),
        ("for i_chunk_2 in nl.affine_range(4)", "for i_chunk_2 in nl.affine_range(2)"),
        ("for i_chunk_2 in nl.affine_range(4)", "for i_chunk_2 in nl.affine_range(count)"),
        ("    result = nl", "    nisa.tensor_copy(dst=x, src=product)\n    result = nl"),  # not only declared
        ("i_chunk_2", "i_row"),  # rows have tiles of their own
        ("moving=x[:, 0, :]", "moving=result[:, 0, :]"),  # read before it is written
    ],
)
def test_loops_that_need_other_iterations_stay_apart(old, new):
    assert old in KERNEL
    assert join_chunk_loops(KERNEL.replace(old, new)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    return result", "    nisa.tensor_copy(dst=x, src=product)\n    return result"),  # read again
        ("nisa.activation(", "nisa.activation(engine=nisa.engine.gpsimd, "),
        ("nisa.activation(", "nisa.tensor_tensor_scan("),
        ("data=product[:, i_chunk_2, :])", "data=product[:, i_chunk_2, 0:64])"),  # another text
        ("buffer=nl.psum", "buffer=nl.sbuf"),
    ],
)
def test_copies_that_others_need_are_kept(old, new):
    assert old in KERNEL
    joined = join_chunk_loops(KERNEL.replace(old, new))
    assert joined is not None
    assert "tensor_copy(dst=product[:, i_chunk, :], src=bank" in joined


WITH_BANK = KERNEL.replace(
    "    for i_chunk_2",
    """    other = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    for i_chunk_2""",
)


@pytest.mark.parametrize(
    "instruction",
    [
        "nisa.scalar_tensor_tensor(dst=TILE, data=BANK, operand0=2.0, operand1=COPY, op0=ADD, op1=ADD)",
        "nisa.scalar_tensor_tensor(dst=TILE, data=COPY, operand0=2.0, operand1=BANK, op0=ADD, op1=ADD)",
        "nisa.tensor_tensor(dst=TILE, data1=BANK, data2=COPY, op=ADD)",
        "nisa.tensor_tensor(dst=TILE, data1=COPY, data2=BANK.permute([0, 1]), op=ADD)",
    ],
)
@pytest.mark.parametrize("bank", ["other", "x"])
def test_one_of_two_operands_is_read_in_psum(instruction, bank):
    named = {
        "ADD": "nl.add",
        "TILE": "result[:, i_chunk_2, :]",
        "COPY": "product[:, i_chunk_2, :]",
        "BANK": bank,
    }
    for word, text in named.items():
        instruction = instruction.replace(word, text)
    used = "nisa.activation(dst=result[:, i_chunk_2, :], op=nl.exp, data=product[:, i_chunk_2, :])"
    assert used in WITH_BANK
    joined = join_chunk_loops(WITH_BANK.replace(used, instruction))
    assert joined is not None
    assert ("tensor_copy(dst=product[:, i_chunk, :], src=bank" in joined) == (bank == "other")


def test_loops_inside_others_are_joined_too():
    inside = KERNEL.replace("    ", "        ").replace(
        "def kernel(x):", "def kernel(x):\n    for i_row in rows:", 1
    )
    inside = inside.replace("        return", "    return")
    joined = join_chunk_loops(inside)
    assert joined is not None
    assert joined.count("for ") == 2
