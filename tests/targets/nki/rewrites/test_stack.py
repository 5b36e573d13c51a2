"""Stacking: two iterations on the two halves of the partitions, and what must not be stacked."""

from __future__ import annotations

import pytest

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, relative_error

KERNEL = """
T = 128


@nki.jit
def kernel(x):
    m, n = x.shape
    half = m // 2
    out = nl.ndarray((half, n), dtype=x.dtype, buffer=nl.shared_hbm)
    {outside}
    for i in nl.affine_range({trips}):
        a = nl.ndarray((half, T), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[0:half, i * T : (i + 1) * T])
        # The lower half begins at partition 0, too.
        b = nl.ndarray((half, T), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=b[:, :], src=x[half:m, nl.ds(i * T, T)])
        {body}
        nisa.dma_copy(dst=out[:, i * T : (i + 1) * T], src=a)
    return out
"""
ADD = "nisa.tensor_tensor(dst=a, data1=a, data2=b[0:half, :], op=nl.add)"


def sample(body: str = ADD, outside: str = "pass", trips: str = "n // T", rows: int = 128) -> Sample:
    source = HEADER + KERNEL.format(body=body, outside=outside, trips=trips)
    return Sample(source, ((rows, 512),), lambda x: x[: rows // 2] + x[rows // 2 :])


def stack_tiles(made: Sample) -> tuple[list[str], list[str]]:
    """Sources, and reasons against."""
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["stack"]])
    return [child.source for child in children], refusals


def test_transfers_go_to_parts_and_the_rest_runs_once():
    made = sample()
    ((source,), _) = stack_tiles(made)
    assert relative_error(made, source) < 1e-6
    assert "# 2 iterations at a time" in source
    assert "# The lower half begins at partition 0, too." in source
    assert "for i in nl.affine_range(n // T // 2):" in source
    assert "a = nl.ndarray((2 * half, T), dtype=x.dtype, buffer=nl.sbuf)" in source
    assert "dma_copy(dst=a[0:half, :], src=x[0:half, 2 * i * T : (2 * i + 1) * T])" in source
    assert "dma_copy(dst=b[half : 2 * half, :], src=x[half:m, nl.ds((2 * i + 1) * T, T)])" in source
    assert source.count("nisa.tensor_tensor(") == 1
    assert "tensor_tensor(dst=a, data1=a, data2=b[:, :], op=nl.add)" in source


def test_as_many_as_fit_and_fewer_are_offered():
    made = sample(rows=64)
    sources, _ = stack_tiles(made)
    assert len(sources) == 2
    assert all(relative_error(made, source) < 1e-6 for source in sources)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trips": "3"}, "the 3 iterations over i do not fall into groups"),
        (
            {
                "outside": "w = nl.ndarray((half, T), dtype=nl.float32, buffer=nl.sbuf)",
                "body": f"nisa.memset(dst=w, value=0.0)\n        {ADD}",
            },
            "w is shared by the iterations over i",
        ),
        (
            {"body": f"{ADD}\n        nisa.tensor_copy(dst=b[0:8, :], src=a[0:8, :])"},
            "dst takes b in part or rearranged",
        ),
        (
            {
                "body": "c = nl.ndarray((T, half), dtype=nl.float32, buffer=nl.psum)\n"
                f"        nisa.nc_transpose(dst=c, data=a)\n        {ADD}"
            },
            "tiles of the loop over i have 2 different numbers of partitions",
        ),
        (
            {"body": f"for q in range(1):\n            {ADD}"},
            "the loop over i holds another loop or a condition",
        ),
        (
            {
                "body": f"c = nl.ndarray((half, 4, T), dtype=nl.float32, buffer=nl.sbuf)\n        "
                f"nisa.tensor_copy(dst=c[:, i, :], src=a)\n        {ADD}"
            },
            "which part of c is meant depends on i",
        ),
        ({"body": f"assert i < 4\n        {ADD}"}, "a statement without effect counts the iterations over i"),
        ({"trips": "1, n // T"}, "the loop over i does not count 0, 1, ..."),
    ],
)
def test_stacking_says_why_not(changes: dict, reason: str):
    sources, refusals = stack_tiles(sample(**changes))
    assert not sources
    assert refusals == [f"stack i: {reason}"]
