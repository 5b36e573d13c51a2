"""Loop fusion: two passes become one, and what went through HBM between them stays on chip."""

from __future__ import annotations

import re

import numpy as np
import pytest

from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, join_wrapped_calls, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite, list_rewrites_by_site

PASSES = """
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    kept = nl.ndarray((m, n), dtype=nl.{stored}, buffer=nl.hbm)
    for i in nl.affine_range(m // 128):
        a = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, :])
        # Doubled.
        b = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, :], src=b)
        {after}
    {between}
    for {index} in nl.{range}({trips}):
        {before}
        a = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src={source}[{rows}, :])
        nisa.tensor_scalar(dst=a, data=a, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out[{index} * 128 : ({index} + 1) * 128, :], src=a)
    return {result}
"""
SITE = "i and j"
ALONE = {"loops": 1}


def passes(**words: str) -> Sample:
    texts = {
        "stored": "float32", "after": "pass", "between": "pass", "index": "j", "range": "affine_range",
        "trips": "m // 128", "before": "pass", "source": "kept", "result": "out",
        "rows": "{index} * 128 : ({index} + 1) * 128",
    }  # fmt: skip
    texts |= words
    texts["rows"] = texts["rows"].format(index=texts["index"])
    return Sample(HEADER + PASSES.format_map(texts), ((384, 256),), lambda x: 2 * x + 1)


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"index": "i"},
        {"range": "sequential_range"},
        {"between": "# What the second pass does."},
        {"between": "one = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)"},
        {"before": "b = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)"},
    ],
)
def test_two_passes_become_one_and_nothing_goes_through_hbm(words: dict[str, str]):
    made = passes(**words)
    assert relative_error(made, made.source) < 1e-6
    site = "i and i#2" if words.get("index") == "i" else SITE
    source = find_rewrite(made, "fuse_loops", site, ALONE)
    assert relative_error(made, source) < 1e-6
    assert source.count("for ") == 1
    assert source.count("nisa.dma_copy") == 2
    assert "kept" not in source
    assert "# Doubled." in source
    assert ("sequential_range" in source) == ("range" in words)


PIECES = """
T = 64


@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    kept = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.hbm)
    for i in nl.affine_range(m // 128):
        a = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, 0:n])
        nisa.activation(dst=a, op=nl.tanh, data=a)
        nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, {stored}], src=a)
    for i in nl.affine_range(m // 128):
        for j in nl.affine_range(n // T):
            part = nl.ndarray((128, T), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=part, src=kept[i * 128 : (i + 1) * 128, {loaded}])
            nisa.activation(dst=part, op=nl.square, data=part)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * T : (j + 1) * T], src=part)
    return out
"""


def test_parts_of_what_was_stored_are_copied_on_chip():
    text = HEADER + PIECES.format(stored="0:n", loaded="j * T : (j + 1) * T")
    made = Sample(text, ((256, 256),), lambda x: np.tanh(x) ** 2)
    source = join_wrapped_calls(find_rewrite(made, "fuse_loops", "i and i#2", ALONE))
    assert relative_error(made, source) < 1e-6
    assert "nisa.tensor_copy(dst=part, src=a[:, j * T : (j + 1) * T])" in source
    assert "kept" not in source


NESTED = """
T = 64


@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    kept = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.hbm)
    for i in nl.affine_range(m // 128):
        for j in nl.affine_range(n // T):
            a = nl.ndarray((128, T), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, j * T : (j + 1) * T])
            nisa.activation(dst=a, op=nl.tanh, data=a)
            nisa.dma_copy(dst=kept[i * 128 : (i + 1) * 128, j * T : (j + 1) * T], src=a)
    for i in nl.affine_range(m // 128):
        for j in nl.affine_range(n // T):
            a = nl.ndarray((128, T), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=a, src=x[i * 128 : (i + 1) * 128, j * T : (j + 1) * T])
            b = nl.ndarray((128, T), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=b, src=kept[i * 128 : (i + 1) * 128, {columns}])
            nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.multiply)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * T : (j + 1) * T], src=a)
    return out
"""


def test_loops_that_meet_inside_become_one_too():
    text = HEADER + NESTED.format(columns="j * T : (j + 1) * T")
    made = Sample(text, ((256, 256),), lambda x: x * np.tanh(x))
    found = list_rewrites_by_site(made, "fuse_loops")["i and i#2"]
    assert [choice for choice, _ in found] == [{"loops": 2}, {"loops": 1}]
    assert all(relative_error(made, source) < 1e-6 for _, source in found)
    (_, both), (_, outer) = found
    assert (both.count("for j"), outer.count("for j")) == (1, 2)
    assert "kept" not in both
    assert "kept" in outer


@pytest.mark.parametrize("loops", [0, 3])
def test_more_loops_than_meet_are_refused(loops: int):
    """A sequence of rewrites may ask for what an earlier one has changed."""
    made = passes()
    kernel = read_kernel(made.source, made.arguments, TARGET)
    transform = TRANSFORMS["fuse_loops"]
    ((_, place),) = transform.find_sites(kernel, TARGET).items()
    with pytest.raises(RewriteRefused, match=f"1 loops can be fused, not {loops}"):
        transform.apply(kernel, TARGET, place, {"loops": loops})


UNREAD = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    for j in nl.affine_range(4):
        w = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=w, src=a[:, nl.ds(j * 64, 64)])
    for k in nl.affine_range(4):
        w = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=w, src=a[:, nl.ds(k * 64, 64)])
    nisa.dma_copy(dst=out, src=a)
    return out
"""


def test_loops_of_which_nothing_is_read_may_disappear():
    made = Sample(HEADER + UNREAD, ((128, 256),), lambda x: x)
    source = find_rewrite(made, "fuse_loops", "j and k", {"loops": 1})
    assert "for " not in source
    assert relative_error(made, source) < 1e-6


def test_loops_that_meet_inside_stay_two_where_one_needs_all_of_the_other():
    text = HEADER + NESTED.format(columns="0:T")
    first = lambda x: np.tanh(x)[:, :64]  # noqa: E731 - what every iteration over j reads
    made = Sample(text, ((256, 256),), lambda x: x * np.tile(first(x), 4))
    found = list_rewrites_by_site(made, "fuse_loops")["i and i#2"]
    assert [choice for choice, _ in found] == [ALONE]
    assert all(relative_error(made, source) < 1e-6 for _, source in found)


LISTED = """
@nki.jit
def kernel(x):
    out = nl.ndarray((512, 256), dtype=nl.float32, buffer=nl.shared_hbm)
    kept = [nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf) for _ in range(8)]
    for i in nl.affine_range(4):
        for j in nl.affine_range(2):
            nisa.dma_copy(dst=kept[i * 2 + j], src=x[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128])
    for i in nl.affine_range(4):
        for j in nl.affine_range(2):
            a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=a, data=kept[{tile}], op0=nl.multiply, operand0=2.0)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128], src=a)
    return out
"""


def test_tiles_of_a_list_that_one_iteration_makes_and_uses_join_the_loops():
    made = Sample(
        HEADER + LISTED.format(tile="i * 2 + 1 - j"), ((512, 256),), lambda x: 2 * np.roll(x, 128, 1)
    )
    ((choice, source), *_) = list_rewrites_by_site(made, "fuse_loops")["i and i#2"]
    assert choice == ALONE  # an iteration over j takes the tile of the other
    assert relative_error(made, source) < 1e-6
    made = Sample(HEADER + LISTED.format(tile="i + j"), ((512, 256),), lambda x: x)
    refusal = find_refusal(made, "fuse_loops", "i and i#2")
    assert refusal.startswith("an iteration over i needs kept from others over i")


def test_a_tile_of_a_list_for_each_iteration_becomes_one_tile():
    made = Sample(HEADER + LISTED.format(tile="i * 2 + j"), ((512, 256),), lambda x: 2 * x)
    by_choice = list_rewrites_by_site(made, "fuse_loops")["i and i#2"]
    found = {choice["loops"]: source for choice, source in by_choice}
    assert "for _ in range(2)" in found[1]  # an iteration over i uses two of them
    assert "            kept = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)\n" in found[2]
    assert "data=kept, op0" in found[2]
    assert all(relative_error(made, source) < 1e-6 for source in found.values())


BETWEEN = """
    factors = [nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]
    for i in nl.affine_range(4):
        {between}
"""


def loops_between(fill: str) -> Sample:
    text = LISTED.format(tile="i * 2 + j").replace("operand0=2.0", "operand0=factors[3 - i]")
    first, loop, second = text.rpartition("    for i in nl.affine_range(4):")
    source = HEADER + first + BETWEEN.format(between=fill).lstrip("\n") + loop + second
    return Sample(source, ((512, 256),), lambda x: 2 * x)


def test_loops_between_two_others_move_before_both():
    made = loops_between("nisa.memset(dst=factors[i], value=2.0)")
    found = [source for _, source in list_rewrites_by_site(made, "fuse_loops")["i and i#3"]]
    assert len(found) == 2
    assert all(relative_error(made, source) < 1e-6 for source in found)
    assert all(source.index("memset") < source.index("src=x[") for source in found)


def test_loops_between_that_need_the_first_stay():
    made = loops_between("nisa.dma_copy(dst=factors[i], src=kept[i * 2][:, 0:1])")
    refusal = find_refusal(made, "fuse_loops", "i and i#3")
    assert refusal == "dma_copy between the loops meets kept of the first one"


def test_a_loop_inside_that_has_the_name_of_the_first_index_is_renamed():
    first, loop, second = LISTED.format(tile="i * 2 + j").rpartition("    for i in nl.affine_range(4):")
    names = str.maketrans({"i": "j", "j": "i"})
    swapped = re.sub(r"\b[ij]\b", lambda found: found.group().translate(names), loop + second)
    made = Sample(HEADER + first + swapped, ((512, 256),), lambda x: 2 * x)
    found = list_rewrites_by_site(made, "fuse_loops")["i and j#2"]
    assert [choice for choice, _ in found] == [{"loops": 2}, ALONE]
    assert all(relative_error(made, source) < 1e-6 for _, source in found)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"rows": "0:128"}, "an iteration over j needs kept from others over i"),
        ({"trips": "m // 128 - 1"}, "the loops over i and j do not go through the same range"),
        ({"between": "nisa.dma_copy(dst=out, src=kept)"}, "dma_copy between the loops meets kept"),
        ({"between": "print(kept)"}, "what cannot be read stands between the loops"),
        ({"before": "print(j)"}, "the loop over j holds what cannot be read"),
        ({"before": "nisa.tensor_copy(dst=b, src=b)"}, "the loop over j holds what cannot be read"),
    ],
)
def test_loops_stay_two(words: dict[str, str], reason: str):
    assert find_refusal(passes(**words), "fuse_loops", SITE).startswith(reason)


def test_a_name_that_the_second_loop_binds_anew_keeps_its_meaning_in_the_first():
    column = "w = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)"
    made = passes(after="nisa.tensor_copy(dst=w[:, 0:1], src=b[:, 0:1])", before=column)
    text = made.source.replace("    for i in", f"    {column}\n    for i in", 1)
    sample = Sample(text, made.shapes, made.meaning)
    assert find_refusal(sample, "fuse_loops", SITE) == "the loops read differently as one"


@pytest.mark.parametrize(
    "words",
    [
        {"stored": "bfloat16"},  # converted on the way
        {"after": "nisa.dma_copy(dst=kept[i * 128 : i * 128 + 1, :], src=x[0:1, :])"},  # stored twice
        {"after": "nisa.memset(dst=b, value=0.0)"},  # the tile has changed
    ],
)
def test_what_is_not_the_tile_any_more_goes_through_hbm(words: dict[str, str]):
    source = join_wrapped_calls(find_rewrite(passes(**words), "fuse_loops", SITE, ALONE))
    assert source.count("for ") == 1
    assert "dst=kept[i * 128 : (i + 1) * 128, :], src=b" in source
    assert "src=kept[i * 128" in source


def test_what_is_an_output_as_well_is_stored_and_not_loaded():
    source = join_wrapped_calls(find_rewrite(passes(result="out, kept"), "fuse_loops", SITE, ALONE))
    assert "dst=kept[i * 128 : (i + 1) * 128, :], src=b" in source
    assert "src=kept" not in source


def test_a_store_that_something_else_reads_stays():
    made = passes(between="last = nl.ndarray((1, n), dtype=nl.float32, buffer=nl.sbuf)")
    text = made.source.replace("    return", "    nisa.dma_copy(dst=last, src=kept[0:1, :])\n    return")
    source = find_rewrite(Sample(text, made.shapes, made.meaning), "fuse_loops", SITE, ALONE)
    assert relative_error(made, source) < 1e-6
    assert "kept" not in source, "last is not used: it goes, and with it what it was loaded from"
    text = text.replace("    return", "    nisa.dma_copy(dst=out[0:1, :], src=last)\n    return")
    kept = Sample(text, made.shapes, lambda x: np.vstack([2 * x[:1], 2 * x[1:] + 1]))
    source = find_rewrite(kept, "fuse_loops", SITE, ALONE)
    assert relative_error(kept, source) < 1e-6
    assert "dst=kept[i * 128 : (i + 1) * 128, :], src=b" in source


TOTALS = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    totals = [nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf) for _ in range(4)]
    for k in range(4):
        nisa.memset(dst=totals[k], value=0.0)
    for i in nl.affine_range(3):
        for j in nl.affine_range(4):
            t = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128])
            nisa.tensor_tensor(dst=totals[j], data1=totals[{added}], data2=t, op=nl.subtract)
    for k in range({stored}):
        nisa.dma_copy(dst=out[:, k * 128 : (k + 1) * 128], src=totals[k])
    return out
"""


def totals(added: str = "j", stored: str = "4") -> Sample:
    text = HEADER + TOTALS.format(added=added, stored=stored)
    return Sample(text, ((384, 512),), lambda x: -(x[:128] + x[128:256] + x[256:]))


@pytest.mark.parametrize(
    ("site", "loop"), [("k and i", "    for k in range(4):"), ("i and k#2", "    for j in range(4):")]
)
def test_a_loop_inside_that_goes_through_the_range_comes_outside(site: str, loop: str):
    source = find_rewrite(totals(), "fuse_loops", site, ALONE)
    assert relative_error(totals(), source) < 1e-6
    around = source.index(loop)
    assert around < source.index("        for i in nl.affine_range(3):") < source.index("src=x[")
    assert source.count("\n    for ") == 2


def test_a_loop_inside_stays_there_if_its_iterations_depend_on_one_another():
    refusal = find_refusal(totals(added="3 - j"), "fuse_loops", "k and i")
    assert "iterations over i share tensor_tensor's totals" in refusal


def test_all_loops_that_hand_data_on_become_one():
    ((choice, source),) = list_rewrites_by_site(totals(), "fuse_loops")["all loops"]
    assert choice == {}
    assert relative_error(totals(), source) < 1e-6
    assert source.count("for ") == 2  # over parts of a total, in one over totals
    assert "        totals = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)\n" in source


def test_one_pair_of_loops_is_a_site_of_its_own():
    assert "all loops" not in list_rewrites_by_site(passes(), "fuse_loops")
    refusal = find_refusal(totals(stored="3"), "fuse_loops", "all loops")
    assert refusal.startswith("the loops over k and k do not go through the same range: ")


SUNK = """
@nki.jit
def kernel(x, y):
    out = nl.ndarray((512, 192), dtype=nl.float32, buffer=nl.shared_hbm)
    kept = [nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf) for _ in range(12)]
    for c in nl.affine_range(3):
        b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=b, src=y[:, c * 64 : (c + 1) * 64])
        {before}
        for r in nl.affine_range(4):
            a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=a, src=x[r * 128 : (r + 1) * 128, c * 64 : (c + 1) * 64])
            nisa.tensor_tensor(dst=kept[c * 4 + r], data1=a, data2=b, op=nl.add)
    for r in nl.affine_range(4):
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=kept[{first}], axis=1)
        for c in nl.affine_range(3):
            a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=a, data=kept[c * 4 + r], op0=nl.multiply, operand0=total)
            nisa.dma_copy(dst=out[r * 128 : (r + 1) * 128, c * 64 : (c + 1) * 64], src=a)
    return out
"""


def sunk(first: str = "r", before: str = "# Of these columns.") -> Sample:
    def meaning(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        made = x + np.tile(y, (4, 1))
        return made * made[:, :64].sum(axis=1, keepdims=True)

    text = SUNK.format(first=first, before=before)
    return Sample(HEADER + text, ((512, 192), (128, 192)), meaning)


def test_a_loop_around_the_rows_moves_inside_them():
    found = list_rewrites_by_site(sunk(), "fuse_loops")["c and r#2"]
    (alone,) = (source for choice, source in found if choice == ALONE)
    assert all(relative_error(sunk(), source) < 1e-6 for _, source in found)
    before, _, after = alone.partition("for r in nl.affine_range(4):")
    assert "src=y)" in before  # for all columns
    assert (
        "        kept = [nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3)]\n"
        in after
    )
    assert "for r" not in after


@pytest.mark.parametrize(
    ("made", "refusal"),
    [
        (sunk(first="3 - r"), "an iteration over r needs kept from others over r"),
        (
            sunk(before="nisa.dma_copy(dst=out[0:128, 0:64], src=b)"),
            "the loop over c holds more than one loop",
        ),
    ],
)
def test_a_loop_stays_around_the_rows_if_they_need_one_another(made: Sample, refusal: str):
    assert refusal in find_refusal(made, "fuse_loops", "c and r#2")


BLOCKS = """
@nki.jit
def kernel(x):
    out = nl.ndarray((512, 128), dtype=nl.float32, buffer=nl.shared_hbm)
    kept = [nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]
    for i in nl.affine_range(2):
        for j in nl.affine_range({count}):
            nisa.dma_copy(dst=kept[i * 2 + j], src=x[i * 256 + j * 128 : i * 256 + (j + 1) * 128, :])
    for r in nl.affine_range(4):
        a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=a, data=kept[{tile}], op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[r * 128 : (r + 1) * 128, :], src=a)
    return out
"""


def test_a_loop_over_all_rows_becomes_a_nest_like_that_over_blocks_of_rows():
    made = Sample(HEADER + BLOCKS.format(count=2, tile="r"), ((512, 128),), lambda x: 2 * x)
    by_depth = {
        choice["loops"]: source for choice, source in list_rewrites_by_site(made, "fuse_loops")["i and r"]
    }
    assert all(relative_error(made, source) < 1e-6 for source in by_depth.values())
    assert "for r_in_block in nl.affine_range(2):" in by_depth[1]
    assert (
        "kept = [nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)]" in by_depth[1]
    )
    assert "            kept = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)\n" in by_depth[2]
    assert "dst=out[(i * 2 + j) * 128 : (i * 2 + j + 1) * 128, :]" in by_depth[2]


def test_a_loop_over_rows_stays_whole_beside_other_blocks():
    made = Sample(HEADER + BLOCKS.format(count=3, tile="r"), ((512, 128),), lambda x: x)
    refusal = find_refusal(made, "fuse_loops", "i and r")
    assert refusal == "the loops over i and r do not go through the same range"
    made = Sample(HEADER + BLOCKS.format(count=2, tile="3 - r"), ((512, 128),), lambda x: x)
    assert find_refusal(made, "fuse_loops", "i and r").endswith("needs kept from others over i")


SUMS = """
@nki.jit
def kernel(x):
    out = nl.ndarray((256, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    kept = [nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf) for _ in range(4)]
    for r in nl.affine_range(4):
        nisa.dma_copy(dst=kept[r], src=x[r * 128 : (r + 1) * 128, :])
    for c in nl.affine_range(2):
        total = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for r in nl.affine_range(4):
            nisa.tensor_tensor(dst=total, data1=total, data2=kept[r], op=nl.add)
        nisa.dma_copy(dst=out[c * 128 : (c + 1) * 128, :], src=total)
    return out
"""


def test_a_loop_stays_around_the_rows_if_a_tile_adds_them_up():
    """All of what makes the total can precede the loop, so no loop is left in it to move it into."""
    made = Sample(HEADER + SUMS, ((512, 128),), lambda x: np.tile(x.reshape(4, 128, 128).sum(0), (2, 1)))
    assert relative_error(made, made.source) < 1e-6
    refusal = find_refusal(made, "fuse_loops", "r and c")
    assert refusal.endswith(": the loop over c holds no loop but those that can precede it")


ROWS_AND_COLUMNS = """
@nki.jit
def kernel(x, w):
    out = nl.ndarray((512, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    kept = [nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf) for _ in range(4)]
    for i in nl.affine_range(4):
        t = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, :])
        nisa.tensor_scalar(dst=kept[i], data=t, op0=nl.multiply, operand0=2.0)
    for c in nl.affine_range(2):
        parts = [nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2)]
        for k in nl.affine_range(2):
            nisa.dma_copy(dst=parts[k], src=w[k * 128 : (k + 1) * 128, c * 256 : (c + 1) * 256])
        for i in nl.affine_range(4):
            b = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=b, data1=kept[i], data2=parts[0], op=nl.add)
            nisa.tensor_tensor(dst=b[:, 0:128], data1=b[:, 0:128], data2=parts[1][:, 0:128], op=nl.subtract)
            {end}
    return out
"""
STORE = "nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, c * 256 : (c + 1) * 256], src=b)"


def rows_and_columns(end: str = STORE) -> Sample:
    def meaning(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        found = np.tile(2 * x, 2) + np.tile(w[:128], (4, 1))
        for half in (0, 256):
            found[:, half : half + 128] -= np.tile(w[128:, half : half + 128], (4, 1))
        return found

    return Sample(HEADER + ROWS_AND_COLUMNS.format(end=end), ((512, 256), (256, 512)), meaning)


def test_lists_that_a_loop_makes_are_made_before_it_moves_inside():
    made = rows_and_columns()
    assert relative_error(made, made.source) < 1e-6
    found = list_rewrites_by_site(made, "fuse_loops")["i and c"]
    assert all(relative_error(made, source) < 1e-6 for _, source in found)
    (source,) = (join_wrapped_calls(source) for choice, source in found if choice == ALONE)
    assert (
        "parts_all = [nl.ndarray((128, 2, 256), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2)]" in source
    )
    assert "data2=parts_all[1][:, c, :][:, 0:128]" in source
    assert source.index("dst=parts_all[k]") < source.index("for i in nl.affine_range(4)")
    assert source.count("for i in") == 1


def test_one_pair_is_all_loops_if_an_iteration_then_goes_from_hbm_to_hbm():
    """It takes two moves: one loop comes inside the other first."""
    (_, source), (_, late) = list_rewrites_by_site(rows_and_columns(), "fuse_loops")["all loops"]
    assert "if i == 0:" in late
    assert relative_error(rows_and_columns(), source) < 1e-6
    assert source.count("for i in") == 1
    on_chip = rows_and_columns("nisa.tensor_copy(dst=kept[i], src=b)")
    assert "all loops" not in list_rewrites_by_site(on_chip, "fuse_loops")
