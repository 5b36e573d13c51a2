"""The rules and costs of instructions that select, search and gather.

For each rule one kernel that breaks it and one that just does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.errors import KernelError
from nki_sim.operators import OPERATORS
from nki_sim.running import numerics
from nki_sim.semantics.arrays import NUMPY


def tile(name: str, shape: str, dtype: str = "float32", buffer: str = "sbuf") -> str:
    return f"{name} = nl.ndarray({shape}, dtype=nl.{dtype}, buffer=nl.{buffer})\nnisa.memset({name}, 0)\n"


MADE = {
    "a": tile("a", "(32, 16)"), "b": tile("b", "(32, 16)"), "seven": tile("seven", "(32, 7)"),
    "eight": tile("eight", "(32, 8)"), "half": tile("half", "(32, 16)", "bfloat16"),
    "i8": tile("i8", "(32, 8)", "uint32"), "s8": tile("s8", "(32, 8)", "int32"),
    "most": tile("most", "(32, 16384)"), "more": tile("more", "(32, 16385)"),
    "cube": tile("cube", "(32, 2, 4)"), "deep": tile("deep", "(32, 2, 2, 2)"),
    "at": tile("at", "(32, 16)", "uint32"), "few": tile("few", "(32, 1)", "uint16"),
    "wide": tile("wide", "(32, 256)", "uint16"), "wider": tile("wider", "(32, 257)", "uint16"),
    "huge": tile("huge", "(32, 4096)"), "huger": tile("huger", "(32, 4112)"),
    "half8": tile("half8", "(32, 8)", "bfloat16"),
    "small": tile("small", "(20, 16)"), "small_few": tile("small_few", "(20, 1)", "uint16"),
    "i17": tile("i17", "(32, 17)", "int32"), "u17": tile("u17", "(32, 17)", "uint32"),
    "ids": tile("ids", "(1, 8)"), "bounds": tile("bounds", "(1, 2, 8)"), "two_ids": tile("two_ids", "(2, 8)"),
    "two_bounds": tile("two_bounds", "(2, 2, 8)"), "half_ids": tile("half_ids", "(1, 8)", "bfloat16"),
    "one": tile("one", "(1, 16)"), "lanes": tile("lanes", "(128, 16)"), "pair": tile("pair", "(64, 16)"),
    "psum": tile("psum", "(32, 16)", buffer="psum"), "psum8": tile("psum8", "(32, 8)", "uint32", "psum"),
    "c": tile("c", "(32, 1)"),
    "i": tile("i", "(32, 16)", "int32"),
    "h": tile("h", "(32, 1)", "bfloat16"),
    "u": tile("u", "(32, 16)", "uint8"),
    "w": tile("w", "(32, 16)", "uint32"),
    "q": tile("q", "(32, 16)", buffer="psum"),
    "uq": tile("uq", "(32, 16)", "uint8", "psum"),
    "n": tile("n", "(32, 8)"),
    "d": tile("d", "(32, 1)", "int32"),
}  # fmt: skip
RANGED = "nisa.range_select(b, a, nl.{op}, nl.less, c, {bound}, range_start={start}, on_false_value={fill})"


def ranged(op: str = "equal", bound: str = "c", start: int = 0, fill: float = -3.4028235e38) -> str:
    return RANGED.format(op=op, bound=bound, start=start, fill=fill)


SELECT = [
    ("pattern_size", "nisa.iota(a, [[1, 4], [1, 4]])", "nisa.iota(a, [[1, 4], [1, 5]])"),
    ("pattern_rank", "nisa.iota(a, [[1, 2]] * 4)", "nisa.iota(a, [[1, 2]] * 4 + [[1, 1]])"),
    ("argument_type", "nisa.iota(a, ((1, 16),))", "nisa.iota(a, [1, 16])"),
    ("argument_value", "nisa.iota(a, [[0, 16]])", "nisa.iota(a, [[0, 16], [1, 0]])"),
    ("argument_range", "nisa.iota(a, [[1, 16]], -(2**31))", "nisa.iota(a, [[1, 16]], 2**31)"),
    ("argument_range", "nisa.iota(a, [[2**31 - 1, 16]])", "nisa.iota(a, [[2**31, 16]])"),
    ("unsupported_memory", "nisa.iota(a, [[1, 16]])", "nisa.iota(q, [[1, 16]])"),
    ("argument_value", "nisa.affine_select(b, [[1, 16]], 1, a, 0.0, nl.less)",
     "nisa.affine_select(b, [[1, 16]], 1, a, 0.0, nl.add)"),
    ("shape_mismatch", "nisa.affine_select(b, [[1, 16]], 1, a, 0.0)",
     "nisa.affine_select(b, [[1, 16]], 1, n, 0.0)"),
    ("unsupported_memory", "nisa.affine_select(b, [[1, 16]], 1, a, 0.0)",
     "nisa.affine_select(b, [[1, 16]], 1, q, 0.0)"),
    ("operand_invalid_type", ranged(), ranged(bound="h")),
    ("argument_value", ranged(op="greater"), ranged(op="not_equal")),
    ("range_select_fill", ranged(fill=-3.4028234663852886e38), ranged(fill=-3.4028e38)),
    ("argument_range", ranged(start=2**24 - 15), ranged(start=2**24 - 14)),
    ("operand_invalid_type", ranged(), ranged().replace("b, a,", "b, i,")),
    ("reduce_op", ranged()[:-1] + ", reduce_op=nl.max)", ranged()[:-1] + ", reduce_op=nl.add)"),
    ("reduce_cmd", ranged()[:-1] + ", reduce_res=c)",
     ranged()[:-1] + ", reduce_res=c, reduce_cmd=nisa.reduce_cmd.idle)"),
    ("argument_value", ranged()[:-1] + ", reduce_cmd=nisa.reduce_cmd.reset)",
     ranged()[:-1] + ", reduce_cmd=nisa.reduce_cmd.load_reduce)"),
    ("operand_invalid_type", "nisa.select_reduce(b, u, a, 0.0)", "nisa.select_reduce(b, w, a, 0.0)"),
    ("operand_invalid_type", "nisa.select_reduce(b, u, half, 0.0)", "nisa.select_reduce(b, u, i, 0.0)"),
    ("both_inputs_psum", "nisa.select_reduce(b, uq, a, 0.0)", "nisa.select_reduce(b, uq, q, 0.0)"),
    ("operand_invalid_type",
     "nisa.select_reduce(b, u, a, 0.0, reduce_res=h, reduce_cmd=nisa.reduce_cmd.reset_reduce)",
     "nisa.select_reduce(b, u, a, 0.0, reduce_res=d, reduce_cmd=nisa.reduce_cmd.reset_reduce)"),
    ("shape_mismatch", "nisa.select_reduce(b, u, a, c)", "nisa.select_reduce(b, u, a, n)"),
    ("operand_invalid_type", "nisa.tensor_copy_predicated(b, a, w)", "nisa.tensor_copy_predicated(b, a, i)"),
    ("dtype_mismatch", "nisa.tensor_copy_predicated(b, a, u)", "nisa.tensor_copy_predicated(b, half, u)"),
    ("both_inputs_psum", "nisa.tensor_copy_predicated(b, q, u)", "nisa.tensor_copy_predicated(b, q, uq)"),
]  # fmt: skip

SEARCH = [
    ("search_size", "nisa.max8(eight, cube)", "nisa.max8(eight, seven)"),
    ("search_size", "nisa.max8(eight, most)", "nisa.max8(eight, more)"),
    ("shape_mismatch", "nisa.max8(eight, psum)", "nisa.max8(seven, psum)"),
    ("shape_mismatch", "nisa.nc_find_index8(i8, a, eight)", "nisa.nc_find_index8(i8, a, seven)"),
    ("operand_invalid_type", "nisa.nc_find_index8(i8, a, eight)", "nisa.nc_find_index8(s8, a, eight)"),
    ("access_rank", "nisa.nc_find_index8(i8, a, cube)", "nisa.nc_find_index8(i8, a, deep)"),
    ("search_size", "nisa.nc_find_index8(i8, most, eight)", "nisa.nc_find_index8(i8, more, eight)"),
    ("search_size", "nisa.nc_match_replace8(most, most, eight, 0.0)",
     "nisa.nc_match_replace8(more, more, eight, 0.0)"),
    ("shape_mismatch", "nisa.nc_match_replace8(b, a, eight, 0.0)",
     "nisa.nc_match_replace8(eight, a, eight, 0.0)"),
    ("operand_invalid_type", "nisa.nc_match_replace8(b, a, eight, 0.0, i8)",
     "nisa.nc_match_replace8(b, a, eight, 0.0, s8)"),
    ("topk_size", "nisa.topk(half8, i8, half, 256)", "nisa.topk(half8, i8, half, 257)"),
    ("topk_size", "nisa.topk(half8, i8, half, 8)", "nisa.topk(half8, i8, half, 7)"),
    ("topk_size", "nisa.topk(half8, i8, half, 8)", "nisa.topk(half, at, half, 15)"),
    ("operand_invalid_type", "nisa.topk(half8, i8, half, 8)", "nisa.topk(half8, i8, a, 8)"),
    ("operand_invalid_type", "nisa.topk(half8, i8, half, 8)", "nisa.topk(half8, s8, half, 8)"),
    ("gpsimd_partitions", "nisa.topk(half8[0:16], i8[0:16], half[0:16], 8)",
     "nisa.topk(half8[0:17], i8[0:17], half[0:17], 8)"),
    ("unsupported_memory", "nisa.topk(half8, i8, half, 8)", "nisa.topk(half8, psum8, half, 8)"),
    ("shape_mismatch", "nisa.nonzero_with_count(i17, a)", "nisa.nonzero_with_count(s8, a)"),
    ("operand_invalid_type", "nisa.nonzero_with_count(i17, a)", "nisa.nonzero_with_count(u17, a)"),
    ("operand_invalid_type", "nisa.nonzero_with_count(i17, a)", "nisa.nonzero_with_count(i17, half)"),
    ("argument_range", "nisa.nonzero_with_count(i17, a, 2**31 - 1)",
     "nisa.nonzero_with_count(i17, a, 2**31)"),
    ("gpsimd_partitions", "nisa.local_gather(a, b, few)", "nisa.local_gather(small, small, small_few)"),
    ("dtype_mismatch", "nisa.local_gather(a, b, few)", "nisa.local_gather(half, b, few)"),
    ("argument_range", "nisa.local_gather(a[:, 0:8], b, few, 2, 4)",
     "nisa.local_gather(a[:, 0:12], b, few, 3, 4)"),
    ("gather_indices", "nisa.local_gather(a, b, few, 1, 16)", "nisa.local_gather(a, b, few[:, 0:1], 1, 17)"),
    ("gather_indices", "nisa.local_gather(huge, b, wide)", "nisa.local_gather(huger, b, wider)"),
    ("operand_invalid_type", "nisa.local_gather(a, b, few)", "nisa.local_gather(a, b, at[:, 0:1])"),
    ("shape_mismatch", "nisa.nc_n_gather(a, b, at)", "nisa.nc_n_gather(eight, b, at)"),
    ("dtype_mismatch", "nisa.nc_n_gather(a, b, at)", "nisa.nc_n_gather(half, b, at)"),
    ("operand_invalid_type", "nisa.nc_n_gather(a, b, at)", "nisa.nc_n_gather(few, few, few)"),
    ("unsupported_memory", "nisa.nc_n_gather(a, b, at)", "nisa.nc_n_gather(a, psum, at)"),
    ("shuffle_mask", "nisa.nc_stream_shuffle(a, b, [0] * 32)", "nisa.nc_stream_shuffle(a, b, [0] * 31)"),
    ("shuffle_mask", "nisa.nc_stream_shuffle(a, b, [31] * 32)", "nisa.nc_stream_shuffle(a, b, [32] * 32)"),
    ("shuffle_mask", "nisa.nc_stream_shuffle(a, one, [0] * 32)", "nisa.nc_stream_shuffle(a, one, [1] * 32)"),
    ("argument_type", "nisa.nc_stream_shuffle(a, b, (255,) * 32)", "nisa.nc_stream_shuffle(a, b, [-1] * 32)"),
    ("dtype_mismatch", "nisa.nc_stream_shuffle(a, b, [0] * 32)", "nisa.nc_stream_shuffle(a, half, [0] * 32)"),
    ("shape_mismatch", "nisa.nc_stream_shuffle(a, psum, [0] * 32)",
     "nisa.nc_stream_shuffle(a, eight, [0] * 32)"),
    ("start_partition", "nisa.nc_stream_shuffle(pair, lanes[64:65], [255] * 32)",
     "nisa.nc_stream_shuffle(pair, lanes[32:33], [255] * 32)"),
    ("gpsimd_partitions", "nisa.sequence_bounds(bounds, ids)", "nisa.sequence_bounds(two_bounds, two_ids)"),
    ("shape_mismatch", "nisa.sequence_bounds(bounds, ids)", "nisa.sequence_bounds(ids, ids)"),
    ("operand_invalid_type", "nisa.sequence_bounds(bounds, ids)", "nisa.sequence_bounds(bounds, half_ids)"),
]  # fmt: skip
PAIRS = [*SELECT, *SEARCH]


def kernel(line: str) -> str:
    """The tiles that the line names, then the line, the last of the kernel that can be at fault."""
    words = set("".join(c if c.isalnum() or c == "_" else " " for c in line).split())
    return "".join(text for name, text in MADE.items() if name in words) + line


@pytest.mark.parametrize(
    ("code", "good", "bad"), PAIRS, ids=[f"{n}-{pair[0]}" for n, pair in enumerate(PAIRS)]
)
def test_each_rule_is_broken_by_one_kernel_and_just_not_by_another(
    code: str, good: str, bad: str, tracing: Any, texts: Any
) -> None:
    x = np.zeros((32, 16), np.float32)
    tracing(texts.on_chip(["x"], kernel(good) + "\nnisa.tensor_copy(r, sx)"), x)
    with pytest.raises(KernelError) as caught:
        tracing(texts.on_chip(["x"], kernel(bad)), x)
    assert caught.value.code == code
    assert caught.value.hint
    assert caught.value.line


@pytest.mark.parametrize("line", [ranged(), "nisa.nonzero_with_count(i17, a)"])
def test_some_instructions_came_with_the_third_generation(line: str, tracing: Any, texts: Any) -> None:
    text = texts.on_chip(["x"], kernel(line) + "\nnisa.tensor_copy(r, sx)")
    tracing(text, np.zeros((32, 16), np.float32), target="trn2")
    with pytest.raises(KernelError, match="NeuronCore-v3") as caught:
        tracing(text, np.zeros((32, 16), np.float32), target="trn1")
    assert caught.value.code == "generation"


PARTLY = """
@nki.jit
def kernel(x):
    s = nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.sbuf)
    r = nl.ndarray((32, 9), dtype=nl.int32, buffer=nl.sbuf)
    out = nl.ndarray((1, 9), dtype=nl.int32, buffer=nl.shared_hbm)
    {before}nisa.dma_copy(dst=s[0:1, :], src=x)
    nisa.nonzero_with_count(r, s)
    nisa.nc_stream_shuffle(r, r, [16] + [255] * 31)
    nisa.dma_copy(dst=out, src=r[0:1, :])
    return out
"""


def test_inputs_that_are_read_in_part_need_not_be_written_whole(tracing: Any) -> None:
    x = np.ones((1, 8), np.float32)
    target = targets.load("trn2")
    assert not checks.check(tracing(PARTLY.format(before=""), x), target)
    found = checks.check(tracing(PARTLY.format(before="if False: "), x), target)
    assert [violation.code for violation in found] == ["uninitialised_read"]


PART = """
@nki.jit
def kernel(x, at):
    s = nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.sbuf)
    i = nl.ndarray((32, 8), dtype=nl.{index}, buffer=nl.sbuf)
    r = nl.ndarray((32, {width}), dtype=nl.{dtype}, buffer=nl.sbuf)
    out = nl.ndarray((32, 9), dtype=nl.{dtype}, buffer=nl.shared_hbm)
    nisa.memset(out_tile := nl.ndarray((32, 9), dtype=nl.{dtype}, buffer=nl.sbuf), 0)
    nisa.dma_copy(dst=out, src=out_tile)
    nisa.dma_copy(dst=s[{loaded}], src=x[{loaded}])
    nisa.dma_copy(dst=i[{indexed}], src=at[{indexed}])
    {line}
    nisa.dma_copy(dst=out[{stored}], src=r[{stored}])
    return out
"""


@dataclass(frozen=True)
class Part:
    """A kernel that loads part of x and of its indices, runs a line and stores part of the result."""

    line: str
    loaded: str = "0:32, 0:8"
    indexed: str = "0:32, 0:8"
    stored: str = "0:32, 0:8"
    index: str = "uint32"
    dtype: str = "float32"
    width: int = 8

    def text(self) -> str:
        return PART.format(**vars(self))


COPIED = "nisa.tensor_copy_predicated(r, s, i)"
BOTH = COPIED + "; nisa.tensor_copy_predicated(r, s, i, reverse_pred=True)"
COUNTED = {"line": "nisa.nonzero_with_count(r, s)", "dtype": "int32", "width": 9}
OWN = "nisa.nc_n_gather(r, s, i)"
SHARED = {"line": "nisa.local_gather(r, s, i[:, 0:1], num_valid_indices=8)", "index": "uint16"}
SHUFFLED = "nisa.nc_stream_shuffle(r, s, [5] * 8 + [255] * 24)"

# Whether elements that an instruction need not touch may be unwritten before it, or read after it.
PARTS = [
    (Part(BOTH), Part(COPIED)),
    (
        Part(**COUNTED, loaded="0:17, 0:8", stored="16:17, 0:9"),
        Part(**COUNTED, loaded="0:16, 0:8", stored="16:17, 0:9"),
    ),
    (
        Part(**COUNTED, loaded="0:16, 0:8", stored="0:1, 0:9"),
        Part(**COUNTED, loaded="1:17, 0:8", stored="0:1, 0:9"),
    ),
    (Part(**COUNTED, stored="16:17, 0:9"), Part(**COUNTED, stored="17:18, 0:9")),
    (Part(OWN, loaded="0:32, 0:4"), Part(OWN, loaded="0:32, 0:3")),
    (Part(OWN), Part(OWN, indexed="0:32, 0:7")),
    (Part(**SHARED, loaded="0:32, 0:4"), Part(**SHARED, loaded="0:32, 0:3")),
    (Part(**SHARED), Part(**SHARED, indexed="0:17, 0:8")),
    (
        Part(SHUFFLED, loaded="5:6, 0:8", stored="0:8, 0:8"),
        Part(SHUFFLED, loaded="4:5, 0:8", stored="0:8, 0:8"),
    ),
    (Part(SHUFFLED, stored="7:8, 0:8"), Part(SHUFFLED, stored="8:9, 0:8")),
]


@pytest.mark.parametrize(("good", "bad"), PARTS)
def test_what_is_touched_in_part_is_followed_element_by_element(good: Part, bad: Part, tracing: Any) -> None:
    def outcome(part: Part) -> set[str]:
        x = np.ones((32, 8), np.float32)
        at = (np.add.outer(np.arange(32), np.arange(8)) % 4).astype(part.index)
        program = tracing(part.text(), x, at)
        found = {violation.code for violation in checks.check(program, targets.load("trn2"))}
        try:
            numerics.run(program, [x, at])
        except KernelError as error:
            found.add(error.code)
        return found

    assert not outcome(good)
    assert outcome(bad) == {"uninitialised_read"}


def test_the_lanes_that_topk_leaves_are_not_written(simulate: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        src = nl.ndarray((16, 4), dtype=nl.bfloat16, buffer=nl.sbuf)
        val = nl.ndarray((16, 8), dtype=nl.bfloat16, buffer=nl.sbuf)
        idx = nl.ndarray((16, 8), dtype=nl.uint32, buffer=nl.sbuf)
        out = nl.ndarray((LANES, 1), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=src[:, 0:1], src=x)
        nisa.topk(val, idx, src, n=16)
        nisa.dma_copy(dst=out, src=val[0:LANES, 0:1])
        return out
    """
    x = np.arange(16).reshape(16, 1).astype(NUMPY["bfloat16"])
    (found,) = simulate(text.replace("LANES", "8"), x)
    assert found[:, 0].tolist() == list(range(8, 16))
    with pytest.raises(KernelError) as caught:
        simulate(text.replace("LANES", "9"), x)
    assert caught.value.code == "uninitialised_read"


# Cycles that the documents give, without the overheads that the target table adds to vector instructions.
COSTS = [
    ("nisa.max8(eight, most)", "vector", 16384),
    ("nisa.nc_match_replace8(b, a, eight, 0.0)", "vector", 64),
    ("nisa.topk(half8, i8, half, 200)", "gpsimd", 150 + 4 * 200 + 8),
    ("nisa.local_gather(huge, b, wide)", "gpsimd", 150 + 4096 * 8),
    ("nisa.local_gather(half, half, few, 2, 8)", "gpsimd", 150 + 8 * 8),
    ("nisa.nc_n_gather(most, b, wanted)", "gpsimd", 32 * 150 + 16384),
]


@pytest.mark.parametrize(("line", "engine", "cycles"), COSTS)
def test_costs_are_the_documented_formulas(
    line: str, engine: str, cycles: float, tracing: Any, texts: Any
) -> None:
    wanted = tile("wanted", "(32, 16384)", "uint32") if "wanted" in line else ""
    made = texts.on_chip(["x"], wanted + kernel(line) + "\nnisa.tensor_copy(r, sx)")
    program = tracing(made, np.zeros((32, 16), np.float32))
    form = next(form for form in program.forms if f"nisa.{form.op}(" in line)
    target = targets.load("trn2")
    overhead = target.vector_overhead_sbuf_cycles if engine == "vector" else 0
    cost = OPERATORS[form.op].cost(form, target)
    assert form.engine == engine
    assert cost.busy_ns * target.clock_ghz(engine) == pytest.approx(cycles + overhead)


SLICED = """
@nki.jit
def kernel(x, h):
    s = nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.sbuf)
    m = nl.ndarray((32, 16), dtype=nl.uint8, buffer=nl.sbuf)
    out = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=s, src=x)
    nisa.dma_copy(dst=m, src=h)
    for half in range(2):
        r = nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(r, 3.0)
        nisa.tensor_copy_predicated(r, s, m)
        nisa.nc_stream_shuffle(r, s, [1] + [255] * 31)
        nisa.dma_copy(dst=out[:, 16 * half:16 * half + 16], src=r)
    return out
"""


def test_slices_keep_what_lies_under_a_partial_write(tracing: Any) -> None:
    x = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
    h = (x > 0).astype(np.uint8)
    program = tracing(SLICED, x, h)
    (whole,) = numerics.run(program, [x, h])
    (part,) = numerics.run(program, [x, h], only={0: [((0, 32), (16, 32))]})
    assert np.array_equal(part[:, 16:], whole[:, 16:])
    assert np.array_equal(whole[1:, :16], np.where(h != 0, x, np.float32(3))[1:])
    assert np.array_equal(whole[0, :16], x[1])
