"""Counting patterns and selections against plain loops over what the documents say of them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BF16 = np.dtype(ml_dtypes.bfloat16)
FP32_MIN = np.finfo(np.float32).min
FEW = settings(max_examples=15)
COMPARE = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
ORDERED = sorted(COMPARE.keys() - {"not_equal"})
PARTITIONS = st.sampled_from([1, 3, 32, 128])
PATTERNS = st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 5)), min_size=1, max_size=4)


def draw(seed: int, shape: Sequence[int], dtype: Any = np.float32) -> Any:
    values = np.random.default_rng(seed).normal(size=tuple(shape)) * 50
    return values.astype(dtype)


def bits(seed: int, shape: Sequence[int], dtype: Any) -> Any:
    return np.random.default_rng(seed).integers(0, 2, tuple(shape)).astype(dtype)


def walk(pattern: Sequence[tuple[int, int]]) -> Iterator[int]:
    """The offsets that an access pattern takes, outermost dimension first."""
    for place in itertools.product(*[range(count) for _, count in pattern]):
        yield sum(step * index for (step, _), index in zip(pattern, place, strict=True))


def listed(pattern: Sequence[tuple[int, int]]) -> str:
    return str([list(pair) for pair in pattern])


@FEW
@given(
    p=PARTITIONS, pattern=PATTERNS, offset=st.integers(-100, 100), channel=st.integers(-20, 20),
    dtype=st.sampled_from(["int32", "float32", "int16", "bfloat16"]),
)  # fmt: skip
def test_iota_counts_partitions_and_walks_its_pattern(
    p: int,
    pattern: list[tuple[int, int]],
    offset: int,
    channel: int,
    dtype: str,
    *,
    simulate: Any,
    texts: Any,
) -> None:
    x = np.zeros((p, len(list(walk(pattern)))), np.float32)
    body = f"nisa.iota(r, {listed(pattern)}, offset={offset}, channel_multiplier={channel})"
    (found,) = simulate(texts.on_chip(["x"], body, dtype=f"nl.{dtype}"), x)
    wanted = [[offset + channel * lane + step for step in walk(pattern)] for lane in range(p)]
    assert np.array_equal(found, np.array(wanted).astype(found.dtype))


def test_iota_counts_in_32_bits(simulate: Any, texts: Any) -> None:
    x = np.zeros((2, 3), np.float32)
    body = "nisa.iota(r, pattern=[[1, 3]], offset=2**31 - 2, channel_multiplier=2**24 + 1)"
    (found,) = simulate(texts.on_chip(["x"], body, dtype="nl.int32"), x)
    top = 2**31
    assert found.tolist() == [
        [top - 2, top - 1, -top],
        [-top + 2**24 - 1, -top + 2**24, -top + 2**24 + 1],
    ]


@FEW
@given(
    p=PARTITIONS, pattern=PATTERNS, offset=st.integers(-9, 9), channel=st.integers(-3, 3),
    op=st.sampled_from(sorted(COMPARE)), fill=st.sampled_from([0.0, -1.5, float("-inf")]),
    types=st.sampled_from([(np.float32, "float32"), (BF16, "float32"), (np.float32, "bfloat16")]),
)  # fmt: skip
def test_affine_select_takes_elements_where_its_value_compares_with_zero(
    *, p: int, pattern: list[tuple[int, int]], offset: int, channel: int, op: str, fill: float,
    types: tuple[Any, str], simulate: Any, texts: Any,
) -> None:  # fmt: skip
    x = draw(1, (p, len(list(walk(pattern)))), types[0])
    body = (
        f"nisa.affine_select(r, {listed(pattern)}, {channel}, sx, float('{fill}'), cmp_op=nl.{op}, "
        f"offset={offset})"
    )
    (found,) = simulate(texts.on_chip(["x"], body, dtype=f"nl.{types[1]}"), x)
    wanted = np.empty(x.shape, found.dtype)
    for lane in range(p):
        for place, step in enumerate(walk(pattern)):
            taken = COMPARE[op](offset + channel * lane + step, 0)
            wanted[lane, place] = np.float32(x[lane, place]) if taken else fill
    assert np.array_equal(found, wanted)


def test_affine_select_keeps_the_bits_of_its_type_and_works_in_place(simulate: Any, texts: Any) -> None:
    x = np.array([[2**24 + 1, 2**31 - 1], [5, -(2**24) - 3]], np.int32)
    body = """
    nisa.tensor_copy(r, sx)
    nisa.affine_select(r, [[1, 2]], 1, r, 7.0, cmp_op=nl.less)
    nisa.tensor_copy(r[0:1, :], sx[0:1, :])
    """
    (found,) = simulate(texts.on_chip(["x"], body, dtype="nl.int32"), x)
    assert found.tolist() == [[2**24 + 1, 2**31 - 1], [7, 7]]


def test_affine_select_by_default_takes_the_diagonal(simulate: Any, texts: Any) -> None:
    x = draw(2, (32, 32))
    (found,) = simulate(texts.on_chip(["x"], "nisa.affine_select(r, [[-1, 32]], 1, sx, 0.0)"), x)
    assert np.array_equal(found, np.diag(np.diag(x)))


@FEW
@given(
    p=PARTITIONS, f=st.integers(1, 40), start=st.integers(-20, 20),
    ops=st.tuples(*[st.sampled_from(ORDERED)] * 2), narrow=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_range_select_compares_indices_with_each_partitions_bounds(
    *, p: int, f: int, start: int, ops: tuple[str, str], narrow: bool, seed: int, simulate: Any, texts: Any
) -> None:
    x = draw(seed, (p, f), BF16 if narrow else np.float32)
    low, high = (np.round(draw(seed + i, (p, 1)) / 4) for i in (1, 2))
    body = f"""
    kept = nl.ndarray((p, f), dtype=nl.{"bfloat16" if narrow else "float32"}, buffer=nl.sbuf)
    nisa.range_select(kept, sx, nl.{ops[0]}, nl.{ops[1]}, slow, shigh, reduce_res=r[:, f:f + 1],
                      range_start={start})
    nisa.tensor_copy(r[:, 0:f], kept)
    """
    (found,) = simulate(texts.on_chip(["x", "low", "high"], body, shape="(p, f + 1)"), x, low, high)
    for lane in range(p):
        row = [
            np.float32(x[lane, i])
            if COMPARE[ops[0]](start + i, low[lane, 0]) and COMPARE[ops[1]](start + i, high[lane, 0])
            else FP32_MIN
            for i in range(f)
        ]
        assert found[lane, f] == max(row)
        with np.errstate(over="ignore"):
            assert np.array_equal(found[lane, :f], np.array(row).astype(x.dtype))


@pytest.mark.parametrize("command", ["reduce", "reset_reduce"])
def test_range_selects_reduce_one_after_the_other_into_the_registers(
    command: str, simulate: Any, texts: Any
) -> None:
    x = draw(3, (16, 8))
    low, high = np.zeros((16, 1), np.float32), np.full((16, 1), 4, np.float32)
    both = "nl.greater_equal, nl.less, slow, shigh, reduce_cmd=nisa.reduce_cmd"
    body = f"""
    half = nl.ndarray((p, f), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(half, sx, nl.multiply, 0.5)
    kept = nl.ndarray((p, f), dtype=nl.float32, buffer=nl.sbuf)
    nisa.range_select(kept, sx, {both}.reset_reduce)
    nisa.range_select(kept, half, {both}.{command}, reduce_res=r)
    """
    (found,) = simulate(texts.on_chip(["x", "low", "high"], body, shape="(p, 1)"), x, low, high)
    last = x[:, :4].max(axis=1) / 2
    assert np.array_equal(found[:, 0], np.maximum(last, 2 * last) if command == "reduce" else last)


@FEW
@given(
    p=PARTITIONS, f=st.integers(1, 40), kind=st.sampled_from(["int8", "uint8", "int16", "uint16"]),
    tile=st.booleans(), reverse=st.booleans(), psum=st.sampled_from(["", "on_true", "predicate"]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_select_reduce(
    *, p: int, f: int, kind: str, tile: bool, reverse: bool, psum: str, seed: int, simulate: Any, texts: Any
) -> None:
    x, c, holds = draw(seed, (p, f)), draw(seed + 1, (p, 1)), bits(seed, (p, f), kind)
    body = f"""
    on_true, predicate = sx, sh
    if {psum!r}:
        moved = nl.ndarray((p, f), dtype={psum or "sx"}.dtype, buffer=nl.psum)
        nisa.tensor_copy(moved, {psum or "sx"})
    {psum or "moved"} = {"moved" if psum else "None"}
    nisa.select_reduce(r[:, 0:f], predicate, on_true, {"sc" if tile else 2.5}, r[:, f:f + 1],
                       nisa.reduce_cmd.reset_reduce, reverse_pred={reverse})
    """
    (found,) = simulate(texts.on_chip(["x", "c", "h"], body, shape="(p, f + 1)"), x, c, holds)
    for lane in range(p):
        row = [
            x[lane, i] if bool(holds[lane, i]) != reverse else (c[lane, 0] if tile else np.float32(2.5))
            for i in range(f)
        ]
        assert found[lane].tolist() == [*row, max(row)]


@FEW
@given(
    p=PARTITIONS, f=st.integers(1, 40), kind=st.sampled_from(["uint8", "uint16", "uint32"]),
    tile=st.booleans(), reverse=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_tensor_copy_predicated_leaves_what_it_does_not_copy(
    *, p: int, f: int, kind: str, tile: bool, reverse: bool, seed: int, simulate: Any, texts: Any
) -> None:
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(-(2**31), 2**31, (p, f)).astype(np.int32) for _ in range(2))
    holds = bits(seed, (p, f), kind) * rng.integers(1, 200, (p, f)).astype(kind)
    body = f"""
    nisa.tensor_copy(r, sx)
    nisa.tensor_copy_predicated(r, {"sy" if tile else -3.0}, sh, reverse_pred={reverse})
    """
    (found,) = simulate(texts.on_chip(["x", "y", "h"], body, dtype="nl.int32"), x, y, holds)
    for at in itertools.product(range(p), range(f)):
        assert found[at] == ((y[at] if tile else -3) if bool(holds[at]) != reverse else x[at])


def test_a_predicated_copy_walks_strided_tiles_and_fills_a_fresh_tile_in_parts(
    simulate: Any, texts: Any
) -> None:
    x, holds = draw(4, (32, 3, 8)), bits(5, (32, 3, 4), np.uint8)
    text = """
    @nki.jit
    def kernel(x, h):
        out = nl.ndarray((32, 3, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        sx = nl.ndarray((32, 3, 8), dtype=nl.float32, buffer=nl.sbuf)
        sh = nl.ndarray((32, 3, 4), dtype=nl.uint8, buffer=nl.sbuf)
        r = nl.ndarray((32, 3, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=sx, src=x)
        nisa.dma_copy(dst=sh, src=h)
        nisa.tensor_copy_predicated(r, sx[:, :, 0:8:2], sh)
        nisa.tensor_copy_predicated(r, sx[:, :, 1:8:2], sh, reverse_pred=True)
        nisa.dma_copy(dst=out, src=r)
        return out
    """
    (found,) = simulate(text, x, holds)
    assert np.array_equal(found, np.where(holds != 0, x[:, :, 0::2], x[:, :, 1::2]))
