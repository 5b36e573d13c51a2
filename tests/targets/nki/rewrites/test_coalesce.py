"""Coalescing: stores, drains and copies of several iterations become one, unless something is in the way."""

from __future__ import annotations

import pytest

from tests.support.kernels import HEADER, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite, list_rewrites_by_site

PRODUCT = """
P = 128
TILE = 256


@nki.jit
def kernel(a, b):
    m, k = a.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.shared_hbm)
    right = nl.ndarray((P, k // P, n), dtype=b.dtype, buffer=nl.sbuf)
    for q in nl.affine_range(k // P):
        nisa.dma_copy(dst=right[:, q, :], src=b[q * P : (q + 1) * P, 0:n])
    for i in nl.affine_range(m // P):
        rows = nl.ndarray((P, k), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=a[i * P : (i + 1) * P, 0:k])
        left = nl.ndarray((P, k // P, P), dtype=a.dtype, buffer=nl.sbuf)
        for q in nl.affine_range(k // P):
            # One block of a, turned.
            turned = nl.ndarray((P, P), dtype=a.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=rows[:, q * P : (q + 1) * P])
            nisa.tensor_copy(dst=left[:, q, :], src=turned)

        for j in nl.affine_range(n // TILE):
            acc = nl.ndarray((P, TILE), dtype=nl.float32, buffer=nl.psum)
            for q in nl.affine_range(k // P):
                nisa.nc_matmul(
                    dst=acc, stationary=left[:, q, :], moving=right[:, q, j * TILE : (j + 1) * TILE]
                )
            done_tile = nl.ndarray((P, TILE), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=done_tile, src=acc)
            # Out it goes.
            nisa.dma_copy(dst=out[i * P : (i + 1) * P, j * TILE : (j + 1) * TILE], src=done_tile)
    return out
"""
SHAPES = ((128, 512), (512, 1024))


def sample(*changes: tuple[str, str]) -> Sample:
    source = HEADER + PRODUCT
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return Sample(source, SHAPES, lambda a, b: a @ b)


STORE = "dma_copy to out over j"
TURNED = "tensor_copy to left over q#2"


def test_stores_of_all_iterations_become_one():
    source = find_rewrite(sample(), "coalesce", STORE, {"iterations": 4})
    assert (
        """
        done_tiles = nl.ndarray((P, n // TILE * TILE), dtype=out.dtype, buffer=nl.sbuf)
        for j in nl.affine_range(n // TILE):
"""
        in source
    )
    assert "nisa.tensor_copy(dst=done_tiles[:, j * TILE : (j + 1) * TILE], src=acc)" in source
    assert (
        """
        # Out it goes.
        nisa.dma_copy(dst=out[i * P : (i + 1) * P, :], src=done_tiles)
    return out
"""
        in source
    )


LISTED = (
    ("left = nl.ndarray((P, k // P, P), dtype=a.dtype, buffer=nl.sbuf)",
     "left = [nl.ndarray((P, k), dtype=a.dtype, buffer=nl.sbuf) for _ in range(m // P)]"),
    ("stationary=left[:, q, :]", "stationary=left[i][:, q * P : (q + 1) * P]"),
)  # fmt: skip


def test_copies_to_a_tile_of_a_list_become_one():
    made = sample(*LISTED, ("dst=left[:, q, :]", "dst=left[i][:, q * P : (q + 1) * P]"))
    assert relative_error(made, made.source) < 1e-6
    source = find_rewrite(made, "coalesce", TURNED, {"iterations": 4})
    assert "nisa.tensor_copy(dst=left[i][:, :], src=turned_wide)" in source
    assert relative_error(made, source) < 1e-6


def test_copies_to_several_tiles_of_a_list_stay_apart():
    made = sample(
        *LISTED[:1],
        ("range(m // P)]", "range(4)]"),
        ("stationary=left[:, q, :]", "stationary=left[q][:, q * P : (q + 1) * P]"),
        ("dst=left[:, q, :]", "dst=left[q][:, q * P : (q + 1) * P]"),
    )
    assert relative_error(made, made.source) < 1e-6
    reason = find_refusal(made, "coalesce", TURNED)
    assert reason == "iterations over q do not write neighbouring parts of left"


def test_copies_of_turned_tiles_share_a_bank():
    source = find_rewrite(sample(), "coalesce", TURNED, {"iterations": 2})
    assert "MOVE_Q = 2  # iterations over q moved at once\n" in source
    assert (
        """
        for q_block in nl.affine_range(k // P // MOVE_Q):
            # One block of a, turned.
            turned_wide = nl.ndarray((P, MOVE_Q, P), dtype=a.dtype, buffer=nl.psum)
            for q in nl.affine_range(q_block * MOVE_Q, (q_block + 1) * MOVE_Q):
                nisa.nc_transpose(dst=turned_wide[:, q % MOVE_Q, :], data=rows[:, q * P : (q + 1) * P])
            nisa.tensor_copy(dst=left[:, q_block * MOVE_Q : (q_block + 1) * MOVE_Q, :], src=turned_wide)
"""
        in source
    )


TURN = "nisa.tensor_copy(dst=left[:, q, :], src=turned)"
TWICE = (
    ("left = nl.ndarray((P, k // P, P)", "left = nl.ndarray((P, 2, k // P, P)"),
    (TURN, "\n            ".join(TURN.replace("[:, q", f"[:, {half}, q") for half in "01")),
    ("stationary=left[:, q, :]", "stationary=left[:, 1, q, :]"),
)


def test_copies_of_one_tile_to_parts_of_another_become_one_each():
    made = sample(*TWICE)
    source = find_rewrite(made, "coalesce", TURNED, {"iterations": 4})
    assert relative_error(made, source) < 2e-5
    assert source.count("nisa.tensor_copy(dst=left[") == source.count("src=turned_wide") == 2


LEFT = "left = nl.ndarray((P, k // P, P), dtype=a.dtype, buffer=nl.sbuf)"
SUM = "nisa.tensor_tensor(dst=low[:, q, :], data1=turned, data2=left[:, q, :], op=nl.add)"
LOW = (
    (LEFT, f"{LEFT}\n        {LEFT.replace('left', 'low')}"),
    (TURN, f"{TURN}\n            {SUM}"),
    ("stationary=left[:, q, :]", "stationary=low[:, q, :]"),
)


def test_what_is_made_of_a_tile_and_its_copy_leaves_the_loop_with_the_copy():
    made = sample(*LOW)
    made = Sample(made.source, made.shapes, lambda a, b: 2 * a @ b)
    source = find_rewrite(made, "coalesce", TURNED, {"iterations": 2})
    assert relative_error(made, source) < 2e-5
    flat = " ".join(source.split())
    places = "q_block * MOVE_Q : (q_block + 1) * MOVE_Q"
    assert f"dst=low[:, {places}, :], data1=turned_wide, data2=left[:, {places}, :], op=nl.add" in flat


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data2=left[:, q, :]", "data2=left[:, k // P - 1 - q, :]"),
        ("dst=low[:, q", "dst=low[:, k // P - 1 - q"),
    ],
)
def test_what_is_made_of_other_parts_stays(old: str, new: str):
    made = sample(*LOW, (old, new))
    reason = find_refusal(made, "coalesce", TURNED)
    assert "also uses left" in reason or "do not write neighbouring parts of low" in reason


def test_a_variable_that_an_inner_loop_counts_again_picks_no_piece():
    again = (
        "for q in nl.affine_range(2):\n                nisa.tensor_copy(dst=left[:, q + 4, :], src=turned)"
    )
    eight = LEFT.replace("k // P", "8")
    made = sample((LEFT, eight), (TURN, f"{TURN}\n            {again}"))
    assert find_refusal(made, "coalesce", TURNED) == "q means something else in a part of its loop"


def test_copies_whose_parts_meet_in_some_iterations_stay():
    made = sample((TURN, f"{TURN}\n            {TURN.replace('[:, q', '[:, k // P - 1 - q')}"))
    assert find_refusal(made, "coalesce", TURNED) == "tensor_copy in the loop over q also uses left"


def test_a_drain_waits_for_the_store_to_be_coalesced_first():
    first = find_rewrite(sample(), "coalesce", STORE, {"iterations": 4})
    second = Sample(first, SHAPES, sample().meaning)
    source = find_rewrite(second, "coalesce", "tensor_copy to done_tiles over j", {"iterations": 2})
    assert "acc_wide = nl.ndarray((P, MOVE_J * TILE), dtype=nl.float32, buffer=nl.psum)" in source
    assert "acc_wide[:, (j % MOVE_J) * TILE : ((j % MOVE_J) + 1) * TILE]" in source
    goal = "done_tiles[:, j_block * MOVE_J * TILE : (j_block + 1) * MOVE_J * TILE]"
    assert f"dst={goal}, src=acc_wide" in source
    assert relative_error(second, source) < 2e-5


@pytest.mark.parametrize("site", [STORE, TURNED])
def test_every_choice_computes_the_same(site: str):
    found = list_rewrites_by_site(sample(), "coalesce")[site]
    assert [choice["iterations"] for choice, _ in found] == [4, 2]
    assert all(relative_error(sample(), source) < 2e-5 for _, source in found)


COPY = "            nisa.tensor_copy(dst=done_tile, src=acc)\n"
BODY = "            # Out it goes.\n"
TRAPS = {
    "the tile outlives its iteration": (
        ("            done_tile = nl.ndarray((P, TILE), dtype=out.dtype, buffer=nl.sbuf)\n", ""),
        (
            "    right =",
            "    done_tile = nl.ndarray((P, TILE), dtype=out.dtype, buffer=nl.sbuf)\n    right =",
        ),
        "done_tile is not a tile of one iteration over j",
    ),
    "the destination is read in the loop": (
        (COPY, COPY + "            nisa.dma_copy(dst=done_tile, src=out[0:P, 0:TILE])\n"),
        (BODY, ""),
        "dma_copy in the loop over j also uses out",
    ),
    "the parts are not neighbours": (
        ("j * TILE : (j + 1) * TILE], src=done_tile", "(3 - j) * TILE : (4 - j) * TILE], src=done_tile"),
        (BODY, ""),
        "iterations over j do not write neighbouring parts of out",
    ),
    "the tile changes after it was stored": (
        ("src=done_tile)\n", "src=done_tile)\n            nisa.memset(dst=done_tile, value=0.0)\n"),
        (BODY, ""),
        "memset writes done_tile after dma_copy has moved it",
    ),
    "the destination is a window of a window": (
        (
            "out[i * P : (i + 1) * P, j * TILE : (j + 1) * TILE], src",
            "out[0:m, 512:1024][i * P : (i + 1) * P, j * TILE : (j + 1) * TILE], src",
        ),
        ("n // TILE", "n // TILE // 2"),
        (
            "out[0:m, 512:1024][i * P : (i + 1) * P, j * TILE : (j + 1) * TILE] "
            "is not indexed in every dimension"
        ),
    ),
    "the size of the tile is known in the loop alone": (
        ("done_tile = nl.ndarray((P, TILE)", "done_tile = nl.ndarray((P, (j + 1) * TILE - j * TILE)"),
        (BODY, ""),
        "the shape of done_tile is only known in the loop over j",
    ),
    "only part of the tile is stored": (
        ("j * TILE : (j + 1) * TILE], src=done_tile", "j * TILE : j * TILE + 128], src=done_tile[:, 0:128]"),
        (BODY, ""),
        "dma_copy takes part of done_tile, or rearranges it",
    ),
}


@pytest.mark.parametrize("name", sorted(TRAPS))
def test_it_says_why_not(name: str):
    *changes, reason = TRAPS[name]
    assert find_refusal(sample(*changes), "coalesce", STORE) == reason
