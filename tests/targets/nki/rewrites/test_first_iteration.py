"""What the first iteration of a loop makes: what else is made from it, and made again by outer loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.kernels import HEADER, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, list_rewrites_by_site
from tests.targets.nki.rewrites.test_fuse_loops import rows_and_columns

LATE = {"when": "in the first iteration"}

PRODUCTS = """
@nki.jit
def kernel(x, y, w):
    out = nl.ndarray((1024, 128), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 2, 128), dtype=nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((128, 2, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=y.reshape_dim(0, (2, 128)).permute((1, 0, 2)))
    nisa.dma_copy(dst=b, src=y.reshape_dim(0, (2, 128)).permute((1, 0, 2)))
    for s in nl.affine_range(4):
        for h in nl.affine_range(2):
            {before}
            if {first}:
                nisa.dma_copy(dst=a[:, {part}, :], src=x[h * 128 : (h + 1) * 128, :])
            {after}
            f = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=f, src=w[s * 128 : (s + 1) * 128, :])
            nisa.tensor_tensor(dst=f, data1=f, data2=p, op=nl.add)
            row = s * 256 + h * 128
            nisa.dma_copy(dst=out[row : row + 128, :], src=f)
    return out
"""
MAKE = (
    "p = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)",
    "nisa.tensor_tensor(dst=p, data1=a[:, h, :], data2=b[:, h, :], op=nl.multiply)",
)


def products(first: str = "s == 0", part: str = "h", *, late: bool = False) -> Sample:
    """Products of what is loaded in the first iteration over `s`, used in all of them."""

    def meaning(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.repeat(w.reshape(4, 1, 128, 128), 2, axis=1).reshape(1024, 128) + np.tile(x * y, (4, 1))

    made = ("\n            ".join(MAKE), "pass")
    before, after = made if late else reversed(made)
    text = PRODUCTS.format(first=first, part=part, before=before, after=after)
    return Sample(HEADER + text, ((256, 128), (256, 128), (512, 128)), meaning)


def test_what_is_made_from_first_tiles_is_made_in_the_first_iteration():
    made = products()
    assert relative_error(made, made.source) < 1e-6
    ((choice, source),) = list_rewrites_by_site(made, "hoist")["p out of s"]
    assert choice == LATE
    assert relative_error(made, source) < 1e-6
    assert source.count("if s == 0:") == 2


def test_what_is_loaded_back_from_hbm_is_no_earlier_than_its_store():
    """It could be loaded before the loop, had only loads from arguments been looked at."""
    source = products().source.replace(
        "    b = nl.ndarray(",
        "    kept = nl.ndarray((256, 128), dtype=nl.float32, buffer=nl.private_hbm)\n    b = nl.ndarray(",
    )
    store = "    nisa.dma_copy(dst=kept[h * 128 : (h + 1) * 128, :], src=a[:, h, :])\n"
    load = (
        "            q = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)\n"
        "            nisa.dma_copy(dst=q, src=kept[h * 128 : (h + 1) * 128, :])\n"
    )
    mark = "            p = nl.ndarray("
    made = replace(
        products(),
        source=source.replace(mark, f"            {store}{load}{mark}").replace(
            "data1=a[:, h, :]", "data1=q"
        ),
    )
    assert relative_error(made, made.source) < 1e-6
    ((choice, hoisted),) = list_rewrites_by_site(made, "hoist")["p out of s"]
    assert choice == LATE
    assert relative_error(made, hoisted) < 1e-6


@pytest.mark.parametrize(
    "words",
    [{"first": "s == 3"}, {"first": "h == 0"}, {"part": "1 - h"}, {"part": "0"}, {"late": True}],
    ids=str,
)
def test_what_is_made_from_tiles_that_still_change_stays(words: dict[str, str]):
    assert find_refusal(products(**words), "hoist", "p out of s") == "a changes inside the loop over s"


BLOCKS = """
@nki.jit
def kernel(x, w):
    out = nl.ndarray((1024, 256), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        kept = nl.ndarray((128, 2, 128), dtype=nl.float32, buffer=nl.sbuf)
        for j in nl.affine_range(4):
            a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=a, src=x[i * 512 + j * 128 : i * 512 + (j + 1) * 128, :])
            for c in nl.affine_range(2):
                if {first}:
                    piece = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.dma_copy(dst=piece, src=w[:, c * 128 : (c + 1) * 128])
                    nisa.tensor_scalar(dst=kept[:, c, :], data=piece, op0=nl.multiply, operand0=2.0)
                b = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(dst=b, data1=a, data2=kept[:, c, :], op=nl.add)
                row = i * 512 + j * 128
                nisa.dma_copy(dst=out[row : row + 128, c * 128 : (c + 1) * 128], src=b)
    return out
"""


def blocks(first: str = "j == 0") -> Sample:
    def meaning(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.tile(x, 2) + np.tile(2 * w, (8, 1))

    return Sample(HEADER + BLOCKS.format(first=first), ((1024, 128), (128, 256)), meaning)


def test_what_a_first_iteration_makes_is_made_in_that_of_an_outer_loop_only():
    made = blocks()
    assert relative_error(made, made.source) < 1e-6
    ((choice, source),) = list_rewrites_by_site(made, "hoist")["kept out of i"]
    assert choice == LATE
    assert relative_error(made, source) < 1e-6
    assert (
        source.index("kept = ")
        < source.index("for i in")
        < source.index("if i == 0:")
        < source.index("if j == 0:")
    )


@pytest.mark.parametrize("first", ["j == 1", "i == 0", "c == 0"])
def test_other_conditions_stay_where_they_are(first: str):
    reason = find_refusal(blocks(first), "hoist", "kept out of i")
    assert reason in {"kept is made under a condition", "kept is used by tensor_tensor before it is finished"}


def test_tiles_for_a_loop_that_moves_inside_are_made_there():
    made = rows_and_columns()
    for site in ("i and c", "all loops"):
        (source,) = (
            source
            for choice, source in list_rewrites_by_site(made, "fuse_loops")[site]
            if LATE.items() <= choice.items()
        )
        assert relative_error(made, source) < 1e-6
        loop, condition, load = (source.index(text) for text in ("for c in", "if i == 0:", "src=w["))
        assert loop < condition < load
        assert source.count("for i in") == source.count("for c in") == 1


def test_an_index_of_the_same_name_is_renamed_there():
    text = (
        rows_and_columns()
        .source.replace("for k in", "for i in")
        .replace("k * 128 : (k + 1)", "i * 128 : (i + 1)")
    )
    made = replace(rows_and_columns(), source=text.replace("parts[k]", "parts[i]"))
    assert relative_error(made, made.source) < 1e-6
    found = list_rewrites_by_site(made, "fuse_loops")["i and c"]
    (source,) = (source for choice, source in found if LATE.items() <= choice.items())
    assert relative_error(made, source) < 1e-6
    assert "for i_2 in" in source


SEEN_BEFORE = """
@nki.jit
def kernel(x, w):
    out = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.shared_hbm)
    seen = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=seen, value=1.0)
    for c in nl.affine_range(2):
        nisa.dma_copy(dst=seen[:, c * 128 : (c + 1) * 128], src=w[c * 128 : (c + 1) * 128, :])
    total = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=total, data=seen, op0=nl.multiply, operand0=2.0)
    kept = [nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]
    for c in nl.affine_range(2):
        {made}
        for i in nl.affine_range(4):
            b = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=b, src=x[i * 128 : (i + 1) * 128, c * 128 : (c + 1) * 128])
            nisa.tensor_tensor(dst=b, data1=b, data2={used}, op=nl.add)
            columns = kept[i][:, c * 128 : (c + 1) * 128]
            nisa.tensor_tensor(dst=columns, data1=b, data2=total[:, c * 128 : (c + 1) * 128], op=nl.add)
    for i in nl.affine_range(4):
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=kept[i])
    return out
"""
ONE = (
    "one = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)",
    "nisa.dma_copy(dst=one, src=w[c * 128 : (c + 1) * 128, :])",
)
PART = (
    "part = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)",
    "nisa.dma_copy(dst=part, src=w[0:128, :])",
)


@pytest.mark.parametrize(
    ("made", "used", "late"),
    [(ONE, "one", True), (PART, "part", False), ((*ONE, *PART), "one", False)],
    ids=["each", "same", "both"],
)
def test_no_other_loop_moves_with_what_is_made_first(made: tuple[str, ...], used: str, late: bool):
    """An earlier loop has the index's name; only loops that a tile was staged in may move."""

    def meaning(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        low, high = w[:128], w[128:]
        added = np.hstack([low, high if used == "one" else low])
        return x + np.tile(added + 2 * np.hstack([low, high]), (4, 1))

    source = HEADER + SEEN_BEFORE.format(made="\n        ".join(made), used=used)
    sample = Sample(source, ((512, 256), (256, 128)), meaning)
    assert relative_error(sample, source) < 1e-6
    found = list_rewrites_by_site(sample, "fuse_loops")
    assert all(relative_error(sample, text) < 1e-6 for made in found.values() for _, text in made)
    assert any(LATE.items() <= choice.items() for choice, _ in found["c#2 and i#2"]) == late


NAMED_ALIKE = """
@nki.jit
def kernel(x, w):
    out = nl.ndarray((512, 128), dtype=nl.float32, buffer=nl.shared_hbm)
    kept = [nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]
    for m in nl.affine_range(4):
        nisa.dma_copy(dst=kept[m], src=x[m * 128 : (m + 1) * 128, :])
    for c in nl.affine_range(2):
        part = nl.ndarray((128, 4, 128), dtype=nl.float32, buffer=nl.sbuf)
        for c in nl.affine_range(4):
            nisa.dma_copy(dst=part[:, c, :], src=w[c * 128 : (c + 1) * 128, :])
        for i in nl.affine_range(4):
            nisa.tensor_tensor(dst=kept[i], data1=kept[i], data2=part[:, i, :], op=nl.add)
    for i in nl.affine_range(4):
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=kept[i])
    return out
"""


def test_a_loop_that_makes_part_of_a_tile_is_none_that_it_was_staged_in():
    made = Sample(HEADER + NAMED_ALIKE, ((512, 128), (512, 128)), lambda x, w: x + 2 * w)
    assert relative_error(made, made.source) < 1e-6
    found = [one for way in list_rewrites_by_site(made, "fuse_loops").values() for one in way]
    assert all(relative_error(made, source) < 1e-6 for _, source in found)
    assert found
    assert not [choice for choice, _ in found if LATE.items() <= choice.items()]
