"""Shortened loops: a kernel with fewer iterations computes the first part of its results, no more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

import nki_sim
from nki_sim.checks import program as checks
from nki_sim.forms import ArraySpec
from nki_sim.running import numerics
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.kernel_ir import Kernel
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.shortened_loops import (
    MIN_TRIPS,
    ShortenedDimension,
    find_shortening,
    shorten_loops,
)
from tests.support.kernels import HEADER, TARGET, Sample, make_inputs

EXPONENTIALS = (
    HEADER
    + """
@nki.jit
def kernel(x):
    out = nl.ndarray((8, 128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    scratch = nl.ndarray((8, 128, 64), dtype=nl.float32, buffer=nl.hbm)
    for i in nl.affine_range(4):
        for j in nl.affine_range(2):
            tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[i * 2 + j, :, :])
            nisa.activation(dst=tile, op=nl.exp, data=tile)
            nisa.dma_copy(dst=scratch[i * 2 + j, :, :], src=tile)
    tiles = [nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf) for _ in range(8)]
    for k in nl.affine_range(8):
        nisa.dma_copy(dst=tiles[k], src=scratch[k, :, :])
    for m in nl.affine_range(8):
        nisa.dma_copy(dst=out[m, :, :], src=tiles[m])
    return out
"""
)
SQUARES = (
    HEADER
    + """
@nki.jit
def kernel(x):
    out = nl.ndarray((16, 128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(16):
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i, :, :])
        squares = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=squares, data1=tile, data2=tile, op=nl.multiply)
        result = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=result, op=nl.exp, data=squares)
        nisa.dma_copy(dst=out[i, :, :], src=result)
    return out
"""
)
SUMS = (
    HEADER
    + """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 8, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in nl.affine_range(4):
        total = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
        for i in nl.affine_range(8):
            tile = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[i, :, m * 128 : (m + 1) * 128])
            if i == 0:
                nisa.memset(dst=total, value=0.0)
            nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
        nisa.dma_copy(dst=out[:, m * 2 : (m + 1) * 2, :], src=total.reshape((128, 2, 64)))
    return out
"""
)


TOTALS = (
    HEADER
    + """
@nki.jit
def kernel(x):
    out = nl.ndarray((2, 4, 8, 128, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    totals = [nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf) for _ in range(64)]
    for i in nl.affine_range(64):
        nisa.memset(dst=totals[i], value=1.0)
    for i in nl.affine_range(2):
        for j in nl.affine_range(4):
            for k in nl.affine_range(8):
                tile = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=tile, src=x[i, j, k, :, :])
                nisa.tensor_tensor(
                    dst=totals[i * 32 + j * 8 + k], data1=totals[i * 32 + j * 8 + k], data2=tile, op=nl.add
                )
                nisa.dma_copy(dst=out[i, j, k, :, :], src=totals[i * 32 + j * 8 + k])
    return out
"""
)
"""One loop begins what three loops go on with."""


def exponentials(**changes: str) -> Sample:
    source = EXPONENTIALS
    for old, new in changes.items():
        lines = {
            "begin": "i * 2 + j, :, :])\n            nisa.act", "read": "scratch[k, :, :]",
            "out": "out[m, :, :]", "load": "nisa.dma_copy(dst=tiles[k], src=scratch[k, :, :])",
        }  # fmt: skip
        assert lines[old] in source
        source = source.replace(lines[old], new)
    return Sample(source, ((8, 128, 64),), np.exp)


def read(sample: Sample, source: str | None = None) -> Kernel:
    return read_kernel(source or sample.source, sample.arguments, TARGET)


def shorten(kernel: Kernel, dimensions: Sequence[ShortenedDimension]) -> str:
    """The kernel with fewer iterations along all of the dimensions."""
    made = shorten_loops(kernel, dimensions, TARGET)
    assert made is not None
    assert made.dimensions == tuple(dimensions)
    return made.source


def run(sample: Sample, source: str) -> NDArray[np.float32]:
    program = nki_sim.trace(source, args=[ArraySpec(shape, "float32") for shape in sample.shapes])
    assert checks.check(program, TARGET) == []
    (found,) = numerics.run(program, make_inputs(sample))
    return found


def test_what_reads_or_writes_an_iteration_is_left_out_with_it() -> None:
    made = exponentials()
    kernel = read(made)
    (found,) = find_shortening(kernel, 1, TARGET)
    assert found == ShortenedDimension(0, 0, 2)
    source = shorten(kernel, [found])
    assert [loop.trips for loop in read(made, source).loops] == [2, 2, 4, 4]
    whole, part = run(made, made.source), run(made, source)
    assert part.shape == (4, 128, 64)
    assert np.array_equal(part, whole[:4])


def test_a_sum_over_fewer_iterations_stays_a_sum() -> None:
    """The guard of the first iteration is kept; the other dimension cuts the result."""
    made = Sample(SUMS, ((8, 128, 512),), lambda x: x.sum(0).reshape(128, 8, 64))
    kernel = read(made)
    both = find_shortening(kernel, 1, TARGET)
    assert both == (ShortenedDimension(0, 0, 4), ShortenedDimension(0, 2, 2))
    source = shorten(kernel, both)
    assert [loop.trips for loop in read(made, source).loops] == [MIN_TRIPS, MIN_TRIPS]
    (x,) = make_inputs(made)
    expected = x[:2].sum(0).reshape(128, 8, 64)[:, :4]
    assert np.allclose(run(made, source), expected, rtol=1e-5, atol=1e-5)


def test_a_loop_that_walks_iterations_again_leaves_out_the_same_ones_each_time() -> None:
    made = Sample(TOTALS, ((2, 4, 8, 128, 32),), lambda x: x + 1)
    kernel = read(made)
    both = find_shortening(kernel, 1, TARGET)
    assert set(both) == {ShortenedDimension(0, 1, 2), ShortenedDimension(0, 2, 4)}
    whole = run(made, made.source)
    for dimensions, left in ((both[:1], both[0]), (both[1:], both[1])):
        source = shorten(kernel, dimensions)
        count = (4, 8)[left.axis - 1] // left.divisor
        part = whole[:, :count] if left.axis == 1 else whole[:, :, :count]
        assert np.array_equal(run(made, source), part)
    source = shorten(kernel, both)
    assert "for i_short in nl.affine_range(8):" in source
    assert np.array_equal(run(made, source), whole[:, :2, :2])


def pipelined_kernels(sample: Sample) -> list[str]:
    """What `pipeline` makes of a kernel, wherever it cuts the loop."""
    children, _ = explore_rewrites(read(sample), sample.arguments, TARGET)
    return [child.source for child in children if child.transform.id == "pipeline"]


def test_a_pipelined_loop_leaves_out_its_last_iterations_and_the_tail_begins_earlier() -> None:
    made = Sample(SQUARES, ((16, 128, 64),), lambda x: np.exp(x * x))
    whole = run(made, made.source)
    sources = pipelined_kernels(made)
    assert sources
    for source in sources:
        kernel = read(made, source)
        (found,) = find_shortening(kernel, 1, TARGET)
        assert found == ShortenedDimension(0, 0, 4)
        part = run(made, shorten(kernel, [found]))
        assert np.array_equal(part, whole[:4])
        count = sum(item.trips for item in kernel.operations())
        short = read(made, shorten(kernel, [found]))
        assert sum(item.trips for item in short.operations()) == count // 4


@pytest.mark.parametrize(("count", "divisor"), [(6, None), (8, 2), (12, 2), (18, 3), (20, 2)])
def test_a_pipelined_loop_keeps_a_turn_and_where_its_tiles_are(count: int, divisor: int | None) -> None:
    """Two iterations, one in each place of its tiles, are what it leaves out at a time."""
    made = Sample(SQUARES.replace("16", str(count)), ((count, 128, 64),), lambda x: np.exp(x * x))
    for source in pipelined_kernels(made):
        kernel = read(made, source)
        expected = (ShortenedDimension(0, 0, divisor),) if divisor else ()
        assert find_shortening(kernel, 1, TARGET) == expected
        if divisor:
            part = run(made, shorten(kernel, expected))
            assert np.array_equal(part, run(made, made.source)[: count // divisor])


def kernel_of(body: str, shapes: tuple[tuple[int, ...], ...], inputs: str = "x") -> Sample:
    lines = f"\n@nki.jit\ndef kernel({inputs}):\n{body}    return out\n"
    return Sample(HEADER + lines, shapes, lambda *arrays: arrays[0])


TWO_INPUTS = """\
    out = nl.ndarray((16, 128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(16):
        a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[i, :, :])
        b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=b, src=y[i, :, :])
        nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
        nisa.dma_copy(dst=out[i, :, :], src=a)
"""
HALVES = """\
    out = nl.ndarray((16, 128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    tiles = [nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf) for _ in range(16)]
    for i in nl.affine_range(16):
        nisa.dma_copy(dst=tiles[i], src=x[i, :, :])
    for i in nl.affine_range(8):
        nisa.activation(dst=tiles[i], op=nl.exp, data=tiles[i])
    for i in nl.affine_range(8, 16):
        nisa.tensor_tensor(dst=tiles[i], data1=tiles[i], data2=tiles[i], op=nl.multiply)
    for i in nl.affine_range(16):
        nisa.dma_copy(dst=out[i, :, :], src=tiles[i])
"""
LOOP_AND_TAIL = """\
    out = nl.ndarray((16, 128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    tiles = [nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf) for _ in range(16)]
    others = [nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf) for _ in range(8)]
    for i in nl.affine_range(8):
        for u in nl.affine_range(2):
            nisa.dma_copy(dst=tiles[2 * i + u], src=x[2 * i + u, :, :])
        nisa.activation(dst=others[i], op=nl.exp, data=tiles[2 * i])
    for i in nl.affine_range(8, 16):
        nisa.tensor_tensor(dst=tiles[i], data1=tiles[i], data2=others[i - 8], op=nl.multiply)
    for i in nl.affine_range(16):
        nisa.dma_copy(dst=out[i, :, :], src=tiles[i])
"""
PREPARED = """\
    out = nl.ndarray((8, 8, 128, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    made = [nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf) for _ in range(64)]
    for i in nl.affine_range(64):
        tile = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=w[i, :, :])
        squares = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=squares, data1=tile, data2=tile, op=nl.multiply)
        nisa.activation(dst=made[i], op=nl.exp, data=squares)
    for n in nl.affine_range(8):
        for k in nl.affine_range(8):
            sums = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=sums, src=x[n, k, :, :])
            nisa.tensor_tensor(dst=sums, data1=sums, data2=made[n * 8 + k], op=nl.add)
            nisa.dma_copy(dst=out[n, k, :, :], src=sums)
"""


def test_two_dimensions_that_one_loop_walks_shorten_it_once() -> None:
    made = kernel_of(TWO_INPUTS, ((16, 128, 64), (16, 128, 64)), "x, y")
    kernel = read(made)
    both = [ShortenedDimension(0, 0, 8), ShortenedDimension(1, 0, 8)]
    source = shorten(kernel, both)
    assert [loop.trips for loop in read(made, source).loops] == [2]
    assert np.array_equal(run(made, source), run(made, made.source)[:2])
    found = shorten_loops(kernel, [both[0], ShortenedDimension(1, 0, 2)], TARGET)
    assert found is not None
    assert found.dimensions == (both[0],)


def test_a_loop_is_shortened_at_two_periods_in_any_order() -> None:
    body = TOTALS.replace("i * 32 + j * 8 + k", "i * 32 + k * 4 + j")
    assert body != TOTALS
    made = Sample(body, ((2, 4, 8, 128, 32),), lambda x: x + 1)
    both = find_shortening(read(made), 1, TARGET)
    assert {one.axis for one in both} == {1, 2}
    assert np.array_equal(run(made, shorten(read(made), both)), run(made, made.source)[:, :2, :2])


@pytest.mark.parametrize("body", [HALVES, LOOP_AND_TAIL], ids=["halves", "a loop as the tail of another"])
def test_only_short_parts_are_left_to_the_first_and_last_iterations(body: str) -> None:
    kernel = read(kernel_of(body, ((16, 128, 64),)))
    assert find_shortening(kernel, 1, TARGET) == ()
    assert shorten_loops(kernel, [ShortenedDimension(0, 0, 2)], TARGET) is None


def test_what_is_found_can_be_shortened_together() -> None:
    """A pipelined loop prepares what two loops use, along two dimensions of another array."""
    made = kernel_of(PREPARED, ((64, 128, 32), (8, 8, 128, 32)), "w, x")
    for source in pipelined_kernels(made):
        kernel = read(made, source)
        dimensions = find_shortening(kernel, 1, TARGET)
        found = shorten_loops(kernel, dimensions, TARGET)
        assert found is not None
        assert found.dimensions == dimensions != ()
        whole, part = run(made, source), run(made, found.source)
        assert np.array_equal(part, whole[: part.shape[0], : part.shape[1]])


def test_outermost_loops_go_first() -> None:
    made = Sample(SUMS, ((8, 128, 512),), lambda x: x.sum(0).reshape(128, 8, 64))
    kernel = read(made)
    count = sum(item.trips for item in kernel.operations())
    assert find_shortening(kernel, count, TARGET) == ()
    assert find_shortening(kernel, count - 1, TARGET) == (ShortenedDimension(0, 2, 2),)


@pytest.mark.parametrize(
    "made",
    [
        exponentials(read="scratch[7 - k, :, :]"),
        exponentials(load="nisa.dma_copy(dst=tiles[k], src=scratch[0, :, :])"),
        exponentials(load="if k == 7:\n            nisa.dma_copy(dst=tiles[k], src=scratch[k, :, :])"),
        exponentials(load="helper(dst=tiles[k], src=scratch[k, :, :])"),
        exponentials(out="out[(m % 2) * 4 + m // 2, :, :]"),
        exponentials(begin="j * 4 + i, :, :])\n            nisa.act"),
    ],
    ids=["backwards", "one for all", "the last one", "unreadable", "no order", "gaps"],
)
def test_what_needs_all_iterations_keeps_them(made: Sample) -> None:
    assert find_shortening(read(made), 1, TARGET) == ()
    assert shorten_loops(read(made), [ShortenedDimension(0, 0, 2)], TARGET) is None


def test_a_kernel_that_fills_memory_is_not_made_to_fit() -> None:
    """Eight tiles of 8192 columns take more than a quarter of SBUF, and half of them less than SBUF."""
    wide = Sample(EXPONENTIALS.replace("64", "8192"), ((8, 128, 8192),), np.exp)
    assert find_shortening(read(wide), 1, TARGET) == ()
    wider = Sample(EXPONENTIALS.replace("64", "16384"), ((8, 128, 16384),), np.exp)
    assert find_shortening(read(wider), 1, TARGET) == (ShortenedDimension(0, 0, 2),)


def test_what_spills_hides_nothing_that_would_fit() -> None:
    """Half of the copies would fit beside the tiles that spill in either case."""
    source = EXPONENTIALS.replace("64", "16384")
    copies = "    copies = [nl.ndarray((128, 8192), dtype=nl.float32, buffer=nl.sbuf) for _ in range(8)]\n"
    source = source.replace("    for k in", f"{copies}    for k in").replace(
        "src=scratch[k, :, :])\n",
        "src=scratch[k, :, :])\n        nisa.tensor_copy(dst=copies[k], src=tiles[k][:, 0:8192])\n",
    )
    assert "dst=copies[k]" in source
    assert find_shortening(read(Sample(source, ((8, 128, 16384),), np.exp)), 1, TARGET) == ()


def test_trips_that_a_divisor_does_not_divide_are_kept() -> None:
    kernel = read(exponentials())
    assert shorten_loops(kernel, [ShortenedDimension(0, 0, 3)], TARGET) is None


def test_a_kernel_is_shortened_as_far_as_its_loops_allow() -> None:
    """Of eight iterations a divisor of 8 would leave one, which is too few to see how they overlap."""
    made = Sample(TOTALS, ((2, 4, 8, 128, 32),), lambda x: x + 1)
    wanted = [ShortenedDimension(0, 0, 2), ShortenedDimension(0, 1, 4), ShortenedDimension(0, 2, 8)]
    found = shorten_loops(read(made), wanted, TARGET)
    assert found is not None
    assert found.dimensions == (ShortenedDimension(0, 1, 2), ShortenedDimension(0, 2, 4))
    assert np.array_equal(run(made, found.source), run(made, made.source)[:, :2, :2])


@pytest.mark.parametrize("sample", [exponentials(), Sample(SUMS, ((8, 128, 512),), lambda x: x)])
def test_rewritten_kernels_are_shortened_alike(sample: Sample) -> None:
    """The same dimensions name the loops of a kernel after any rewrite that keeps them apart."""
    kernel = read(sample)
    dimensions = find_shortening(kernel, 1, TARGET)
    expected = run(sample, shorten(kernel, dimensions))
    children, _ = explore_rewrites(kernel, sample.arguments, TARGET)
    shortened = 0
    for child in children:
        made = shorten_loops(child.kernel, dimensions, TARGET)
        if made is not None and made.dimensions == dimensions:
            assert np.allclose(run(sample, made.source), expected, rtol=1e-5, atol=1e-5), child.transform.id
            shortened += 1
    assert shortened * 2 > len(children) > 2
