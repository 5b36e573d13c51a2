"""Searches, gathers and shuffles against plain loops over what the documents say of them."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_sim.errors import KernelError

BF16 = np.dtype(ml_dtypes.bfloat16)
FEW = settings(max_examples=15)
PARTITIONS = st.sampled_from([1, 3, 32, 128])
GROUPS = st.sampled_from([16, 32, 128])
ABSENT = {np.dtype(np.uint16): 0xFFFF, np.dtype(np.uint32): 0xFFFFFFFF}


def levels(seed: int, shape: tuple[int, ...], dtype: Any = np.float32, *, among: int = 12) -> Any:
    """Values of which many are equal."""
    return np.random.default_rng(seed).integers(-among, among, shape).astype(dtype)


# The 8 values, whole or through a view, and where the data lie.
VIEWS = {
    "sx": lambda x: x,
    "sx[:, 1:f:2]": lambda x: x[:, 1::2],
    "sx.reshape((p, 2, f // 2))[:, :, 3:f // 2]": lambda x: x.reshape(len(x), 2, -1)[:, :, 3:],
}


def flattened(view: str, x: Any) -> Any:
    return VIEWS[view](x).reshape(len(x), -1)


@FEW
@given(
    p=PARTITIONS, f=st.integers(8, 40).map(lambda n: 2 * n), view=st.sampled_from(sorted(VIEWS)),
    types=st.sampled_from([(np.float32, "float32"), (BF16, "float32"), (np.int16, "int32")]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_max8_gives_the_largest_falling(
    *, p: int, f: int, view: str, types: tuple[Any, str], seed: int, simulate: Any, texts: Any
) -> None:
    x = levels(seed, (p, f), types[0])
    (found,) = simulate(
        texts.on_chip(["x"], f"nisa.max8(r, {view})", shape="(p, 8)", dtype=f"nl.{types[1]}"), x
    )
    for lane, row in enumerate(flattened(view, x).tolist()):
        assert found[lane].tolist() == sorted(row, reverse=True)[:8]


def test_max8_takes_infinities_and_keeps_nan_for_last(simulate: Any, texts: Any) -> None:
    x = np.array([[np.nan, 1, -np.inf, np.inf, 2, 3, np.nan, 4, 5]], np.float32)
    (found,) = simulate(texts.on_chip(["x"], "nisa.max8(r, sx)", shape="(p, 8)"), x)
    np.testing.assert_array_equal(found[0], [np.inf, 5, 4, 3, 2, 1, -np.inf, np.nan])


@FEW
@given(
    p=PARTITIONS, f=st.integers(8, 40).map(lambda n: 2 * n), view=st.sampled_from(sorted(VIEWS)),
    dtype=st.sampled_from(["uint16", "uint32"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_nc_find_index8_pairs_equal_values_with_one_place_after_the_other(
    *, p: int, f: int, view: str, dtype: str, seed: int, simulate: Any, texts: Any
) -> None:
    x, v = levels(seed, (p, f)), levels(seed + 1, (p, 8))
    body = f"nisa.nc_find_index8(r, {view}, sv)"
    (found,) = simulate(texts.on_chip(["x", "v"], body, shape="(p, 8)", dtype=f"nl.{dtype}"), x, v)
    for lane, row in enumerate(flattened(view, x).tolist()):
        for slot, value in enumerate(v[lane]):
            places = [place for place, element in enumerate(row) if element == value]
            turn = v[lane, :slot].tolist().count(value)
            assert found[lane, slot] == (places[turn] if turn < len(places) else ABSENT[found.dtype])


def test_nc_find_index8_finds_no_nan_and_one_value_spread_over_the_eight(simulate: Any, texts: Any) -> None:
    x = np.array([[np.nan, 1, 2, 1, np.nan, 7, 1, 9]], np.float32)
    body = """
    nisa.nc_find_index8(r[:, 0:8], sx, sx[:, 0:1].broadcast(1, 8))
    nisa.nc_find_index8(r[:, 8:16], sx, sx[:, 1:2].broadcast(1, 8))
    """
    (found,) = simulate(texts.on_chip(["x"], body, shape="(p, 16)", dtype="nl.uint16"), x)
    assert found[0].tolist() == [0xFFFF] * 8 + [1, 3, 6] + [0xFFFF] * 5


@FEW
@given(
    p=PARTITIONS, f=st.integers(8, 40).map(lambda n: 2 * n), view=st.sampled_from(sorted(VIEWS)),
    fill=st.sampled_from([float("-inf"), 0.0, 3.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_nc_match_replace8_takes_its_values_from_the_last_to_the_first(
    *, p: int, f: int, view: str, fill: float, seed: int, simulate: Any, texts: Any
) -> None:
    x, v = levels(seed, (p, f)), levels(seed + 1, (p, 8))
    width = flattened(view, x).shape[1]
    body = f"""
    at = nl.ndarray((p, 8), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.nc_match_replace8(r[:, 8:8 + {width}], {view}, sv, float("{fill}"), dst_idx=at)
    nisa.tensor_scalar(at, at, nl.minimum, 60000.0)
    nisa.tensor_copy(r[:, 0:8], at)
    """
    (found,) = simulate(texts.on_chip(["x", "v"], body, shape=f"(p, 8 + {width})"), x, v)
    for lane, row in enumerate(flattened(view, x).tolist()):
        free = list(range(width))
        wanted = list(row)
        for slot in reversed(range(8)):
            place = next((place for place in free if row[place] == v[lane, slot]), None)
            assert found[lane, slot] == (60000 if place is None else place)
            if place is not None:
                free.remove(place)
                wanted[place] = fill
        assert found[lane, 8:].tolist() == wanted


def test_nc_match_replace8_pairs_duplicates_as_documented_and_works_in_place(
    simulate: Any, texts: Any
) -> None:
    x = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    v = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    body = """
    nisa.nc_match_replace8(sx, sx, sv, -1.0, dst_idx=r)
    nisa.nc_match_replace8(sx, sx, sv, -2.0)
    """
    (found,) = simulate(texts.on_chip(["x", "v"], body, shape="(p, 8)", dtype="nl.uint32"), x, v)
    assert found[0].tolist() == [2, 10, 9, 8, 7, 6, 5, 4]


def test_the_top_24_of_a_row_by_three_rounds(simulate: Any, texts: Any) -> None:
    x = np.random.default_rng(7).permutation(np.arange(32 * 200, dtype=np.float32)).reshape(32, 200)
    body = """
    for i in range(3):
        top = r[:, 8 * i:8 * i + 8]
        nisa.max8(top, sx)
        nisa.nc_match_replace8(sx, sx, top, float("-inf"))
    """
    (found,) = simulate(texts.on_chip(["x"], body, shape="(p, 24)"), x)
    assert np.array_equal(found, -np.sort(-x, axis=1)[:, :24])


SNAKES = """
@nki.jit
def kernel(x):
    p, f = x.shape
    src = nl.ndarray((p, f), dtype=nl.bfloat16, buffer=nl.sbuf)
    val = nl.ndarray((p, {k}), dtype=nl.bfloat16, buffer=nl.sbuf)
    idx = nl.ndarray((p, {k}), dtype=nl.uint32, buffer=nl.sbuf)
    vals = nl.ndarray((p, {k}), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    idxs = nl.ndarray((p, {k}), dtype=nl.uint32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=src, src=x)
    nisa.memset(val, 77.0)
    nisa.memset(idx, 77)
    nisa.topk(val, idx, src, {n}, sorted={falling})
    nisa.dma_copy(dst=vals, src=val)
    nisa.dma_copy(dst=idxs, src=idx)
    return vals, idxs
"""


@FEW
@given(
    p=GROUPS, n=st.integers(8, 300), spare=st.integers(0, 3), k=st.integers(1, 70), falling=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_topk_snakes_through_each_16_partitions(
    *, p: int, n: int, spare: int, k: int, falling: bool, seed: int, simulate: Any
) -> None:
    k = min(n, k)
    x = np.random.default_rng(seed).normal(size=(p, -(-n // 16) + spare)).astype(BF16)
    values, indices = simulate(SNAKES.format(k=k, n=n, falling=falling), x)
    for first in range(0, p, 16):
        snake = [float(x[first + i % 16, i // 16]) for i in range(n)]
        order = sorted(range(n), key=lambda i: (-snake[i], i))[:k]
        for j, place in enumerate(order if falling else reversed(order)):
            assert float(values[first + j % 16, j // 16]) == snake[place]
            assert indices[first + j % 16, j // 16] == place
        assert np.all(indices[first : first + 16, -(-k // 16) :] == 77)


@FEW
@given(
    p=PARTITIONS, f=st.integers(1, 40), kind=st.sampled_from([np.float32, np.int32]),
    start=st.integers(-5, 2**20), padding=st.integers(-9, 9), seed=st.integers(0, 99),
)  # fmt: skip
def test_nonzero_with_count_works_in_the_first_of_each_16_partitions(
    *, p: int, f: int, kind: Any, start: int, padding: int, seed: int, simulate: Any, texts: Any
) -> None:
    x = levels(seed, (p, f), kind, among=2)
    body = f"nisa.memset(r, 55)\nnisa.nonzero_with_count(r, sx, index_offset={start}, padding_val={padding})"
    (found,) = simulate(texts.on_chip(["x"], body, shape="(p, f + 1)", dtype="nl.int32"), x)
    for lane, row in enumerate(x.tolist()):
        places = [start + place for place, value in enumerate(row) if value != 0]
        wanted = [*places, *[padding] * (f - len(places)), len(places)]
        assert found[lane].tolist() == (wanted if lane % 16 == 0 else [55] * (f + 1))


@FEW
@given(
    p=PARTITIONS, f=st.integers(1, 40), size=st.integers(1, 60), view=st.booleans(), seed=st.integers(0, 99)
)
def test_nc_n_gather_takes_elements_of_its_own_partition(
    *, p: int, f: int, size: int, view: bool, seed: int, simulate: Any, texts: Any
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-(2**31), 2**31, (p, 2 * f)).astype(np.int32)
    data = x[:, 1::2] if view else x
    at = rng.integers(0, data.shape[1], (p, size)).astype(np.uint32)
    body = f"nisa.nc_n_gather(r, sx{'[:, 1:f:2]' if view else ''}, sat)"
    (found,) = simulate(texts.on_chip(["x", "at"], body, shape=f"(p, {size})", dtype="nl.int32"), x, at)
    for lane, place in itertools.product(range(p), range(size)):
        assert found[lane, place] == data[lane, at[lane, place]]


@FEW
@given(
    p=GROUPS, f=st.integers(32, 50), columns=st.integers(1, 4), run=st.sampled_from([1, 2, 4, 8, 16, 32]),
    spare=st.integers(0, 15), seed=st.integers(0, 99),
)  # fmt: skip
def test_local_gather_takes_the_indices_of_16_partitions_for_all_of_them(
    *, p: int, f: int, columns: int, run: int, spare: int, seed: int, simulate: Any, texts: Any
) -> None:
    rng = np.random.default_rng(seed)
    x, at = rng.normal(size=(p, f)).astype(BF16), rng.integers(0, f - run + 1, (p, columns)).astype(np.uint16)
    valid = 16 * columns - spare
    body = f"nisa.local_gather(r, sx, sat, {run}{f', num_valid_indices={valid}' if spare else ''})"
    made = texts.on_chip(["x", "at"], body, shape=f"(p, {valid * run})", dtype="nl.bfloat16")
    (found,) = simulate(made, x, at)
    for core in range(0, p, 16):
        places = [int(at[core + i % 16, i // 16]) for i in range(valid)]
        elements = [place + step for place in places for step in range(run)]
        assert np.array_equal(found[core : core + 16], x[core : core + 16, elements])


@pytest.mark.parametrize("body", ["nisa.nc_n_gather(r, sx, sat)", "nisa.local_gather(r, sx, small)"])
def test_a_gather_beyond_its_partition_says_which_index(body: str, simulate: Any, texts: Any) -> None:
    x, at = np.zeros((16, 20), np.float32), np.full((16, 16), 19, np.uint32)
    at[3, 5] = 20
    lines = f"""
    small = nl.ndarray((16, 1), dtype=nl.uint16, buffer=nl.sbuf)
    nisa.tensor_copy(small, sat[:, 5:6])
    {body}
    """
    text = texts.on_chip(["x", "at"], lines, shape="(16, 16)")
    with pytest.raises(KernelError, match="holds 20, there are 20 elements") as caught:
        simulate(text, x, at)
    assert caught.value.code == "tensor_access_out_of_bound"
    at[3, 5] = 0
    simulate(text, x, at)


MASKS = st.lists(st.one_of(st.integers(0, 31), st.just(255)), min_size=32, max_size=32)


@FEW
@given(quadrants=st.sampled_from([1, 2, 4]), mask=MASKS, f=st.integers(1, 20), inside=st.booleans())
def test_nc_stream_shuffle_moves_partitions_within_their_quadrant(
    *, quadrants: int, mask: list[int], f: int, inside: bool, simulate: Any, texts: Any
) -> None:
    x = levels(f, (32 * quadrants, f), among=1000)
    y = levels(f + 1, x.shape, among=1000)
    target = "sx" if inside else "sy"
    body = f"nisa.nc_stream_shuffle({target}, sx, {mask})\nnisa.tensor_copy(r, {target})"
    (found,) = simulate(texts.on_chip(["x", "y"], body), x, y)
    for lane in range(len(x)):
        source = mask[lane % 32]
        before = x if inside else y
        wanted = before[lane] if source == 255 else x[lane - lane % 32 + source]
        assert np.array_equal(found[lane], wanted)


def test_nc_stream_shuffle_spreads_one_partition_over_fewer_than_32(simulate: Any, texts: Any) -> None:
    x = levels(3, (1, 9))
    (found,) = simulate(texts.on_chip(["x"], "nisa.nc_stream_shuffle(r, sx, [0] * 32)", shape="(20, f)"), x)
    assert np.array_equal(found, np.repeat(x, 20, axis=0))


@FEW
@given(ids=st.lists(st.integers(0, 4), min_size=1, max_size=50), kind=st.sampled_from([np.float32, np.int32]))
def test_sequence_bounds_finds_the_run_of_each_element(
    *, ids: list[int], kind: Any, simulate: Any, texts: Any
) -> None:
    x = np.array([ids], kind)
    body = "nisa.sequence_bounds(r, sx)"
    (found,) = simulate(texts.on_chip(["x"], body, shape="(1, 2, f)", dtype="x.dtype"), x)
    for place, value in enumerate(ids):
        start = end = place
        while start and ids[start - 1] == value:
            start -= 1
        while end < len(ids) and ids[end] == value:
            end += 1
        assert found[0, :, place].tolist() == ([start, end] if value else [len(ids), -1])


def test_sequence_bounds_of_the_documented_example(simulate: Any, texts: Any) -> None:
    x = np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], np.int32)
    text = texts.on_chip(["x"], "nisa.sequence_bounds(r, sx)", shape="(1, 2, f)", dtype="nl.int32")
    (found,) = simulate(text, x)
    assert found[0].tolist() == [[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]


def test_searches_and_gathers_begin_where_a_register_says(simulate: Any) -> None:
    text = """
    @nki.jit
    def kernel(x, at, first):
        place = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=place, src=first)
        reg = nisa.register_alloc()
        nisa.register_load(reg, place)
        s = nl.ndarray((32, 40), dtype=nl.float32, buffer=nl.sbuf)
        i = nl.ndarray((32, 8), dtype=nl.uint32, buffer=nl.sbuf)
        r = nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.sbuf)
        out = nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=s, src=x)
        nisa.dma_copy(dst=i, src=at)
        part = s.ap([[40, 32], [1, 10]], scalar_offset=reg, indirect_dim=1)
        nisa.max8(r[:, 0:8], part)
        nisa.nc_n_gather(r[:, 8:16], part, i)
        nisa.dma_copy(dst=out, src=r)
        return out
    """
    x, at = levels(1, (32, 40)), np.arange(256).reshape(32, 8).astype(np.uint32) % 10
    (found,) = simulate(text, x, at, np.array([[17]], np.int32))
    part = x[:, 17:27]
    assert np.array_equal(found[:, :8], -np.sort(-part, axis=1)[:, :8])
    assert np.array_equal(found[:, 8:], np.take_along_axis(part, at.astype(np.int64), axis=1))
