"""Peeling: loops with a smaller last tile become readable, and stay correct."""

from __future__ import annotations

import pytest

from targets.nki.rewrites.estimate import estimate_kernel
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.kernel_ir import StatementKind
from targets.nki.rewrites.rank import RankingEvidence, expected_log_speedup
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, relative_error

ROWS = """
TILE = 128


@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range({trips}):
        start = i * TILE
        end = min(start + TILE, m)  # the last tile may have fewer rows
        t = nl.ndarray((end - start, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[start:end, :])
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[start:end, :], src=t)
    {after}return out
"""


def sample(trips: str = "(m + TILE - 1) // TILE", rows: int = 320, after: str = "") -> Sample:
    return Sample(HEADER + ROWS.format(trips=trips, after=after), ((rows, 64),), lambda x: 2 * x)


def peel_loops(made: Sample) -> tuple[list[str], list[str]]:
    """Sources, and reasons against."""
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["peel"]])
    return [child.source for child in children], refusals


def test_whole_tiles_and_the_rest_have_sizes_of_their_own():
    made = sample()
    ((source,), _) = peel_loops(made)
    assert "for i in nl.affine_range(m // TILE):" in source
    assert "t = nl.ndarray((TILE, n), dtype=x.dtype, buffer=nl.sbuf)" in source
    assert "src=x[i * TILE : i * TILE + TILE, :]" in source
    assert "start = m // TILE * TILE" in source
    assert relative_error(made, source) < 1e-6
    again = read_kernel(source, made.arguments, TARGET)
    assert not [item for item in again.statements if item.kind is StatementKind.OPAQUE]
    assert peel_loops(Sample(source, made.shapes, made.meaning)) == ([], [])


@pytest.mark.parametrize(("trips", "spelt"), [("-(-m // TILE)", "m // TILE"), ("3", "2")])
def test_the_number_of_whole_tiles_is_spelt_like_the_loop(trips: str, spelt: str):
    made = sample(trips)
    ((source,), _) = peel_loops(made)
    assert f"for i in nl.affine_range({spelt}):" in source
    assert relative_error(made, source) < 1e-6


def test_several_short_iterations_stay_a_loop():
    text = sample("6").source.replace("end = min(start + TILE, m)", "end = start + min(32 * i + 32, TILE)")
    text = text.replace("start = i * TILE", "start = i * 8")
    made = Sample(text, ((168, 64),), lambda x: 2 * x)
    assert relative_error(made, text) < 1e-6
    ((source,), _) = peel_loops(made)
    assert "for i in nl.affine_range(4):" in source
    assert "for i in nl.affine_range(4, 6):" in source
    assert relative_error(made, source) < 1e-6


def test_sizes_without_a_tail_are_read_as_they_are():
    made = sample(rows=256)
    assert not [
        i
        for i in read_kernel(made.source, made.arguments, TARGET).statements
        if i.kind is StatementKind.OPAQUE
    ]
    assert peel_loops(made) == ([], [])


@pytest.mark.parametrize(
    "again", ["for i in range(1):\n            pass", "if m > 1:\n            i = i + 0", "i = i + 0"]
)
def test_an_index_that_is_bound_again_keeps_the_loop(again: str):
    made = sample()
    source = made.source.replace("        t = nl", f"        {again}\n        t = nl")
    (sources, (reason,)) = peel_loops(Sample(source, made.shapes, made.meaning))
    assert not sources
    assert reason == "peel i: i is bound again inside its loop"


def test_an_index_that_is_used_later_keeps_the_loop():
    (sources, (reason,)) = peel_loops(sample(after="assert i >= 0\n    "))
    assert not sources
    assert reason == "peel i: i is used after its loop"


def test_what_becomes_readable_counts_as_no_slower():
    """The static estimate has nothing to say on statements that it could not read before."""
    made = sample(rows=1152 + 32)
    kernel = read_kernel(made.source, made.arguments, TARGET)
    ((child,), _) = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["peel"]])
    assert expected_log_speedup(child, estimate_kernel(kernel, TARGET), RankingEvidence()) >= 0
