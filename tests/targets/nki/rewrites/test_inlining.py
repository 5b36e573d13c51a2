"""Names bound in loops: spared where every reader may say their value, kept where one may not."""

from __future__ import annotations

import textwrap

import pytest

from targets.nki.rewrites.inlining import inline_names
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from tests.support.kernels import HEADER, TARGET

KERNEL = """
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    at = 0
    for i in range(m // 128):
        {body}
    {after}
    return out
"""


def without_names(body: str, after: str = "pass") -> str | None:
    text = textwrap.indent(textwrap.dedent(body).strip(), " " * 8).strip()
    source = HEADER + KERNEL.format(body=text, after=after)
    return inline_names(read_kernel(source, [ArrayArgument((512, 256), "float32")], TARGET))


def test_starts_and_sizes_are_said_where_they_are_used():
    source = without_names("""
        top = i * 128
        end = min(top + 128, m)
        t = nl.ndarray((end - top, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[top:end, :])
    """)
    assert source is not None
    assert "t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)" in source
    assert "src=x[i * 128 : i * 128 + 128, :]" in source
    assert "top" not in source
    assert "end" not in source


def test_views_and_ranges_are_said_too():
    source = without_names("""
        row = x[i : i + 1, :]
        first = i * 2
        for q in range(first, first + 2):
            t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=row.broadcast(0, 128))
    """)
    assert source is not None
    assert "src=x[i:i + 1, :].broadcast(0, 128)" in source.replace("i : i", "i:i")
    assert "for q in range(i * 2, i * 2 + 2):" in source


COPY = "nisa.dma_copy(dst=out[{0} : {0} + 128, :], src=x[{0} : {0} + 128, :])"


@pytest.mark.parametrize(
    ("body", "after", "kept"),
    [
        pytest.param(f"top = i * 128\n{COPY.format('top')}", "v = top", "top = i * 128", id="after the loop"),
        pytest.param(f"{COPY.format('at')}\nat = (i + 1) * 128", "pass", "at = (i + 1) * 128", id="carried"),
        pytest.param(
            f"top = i * 128\n{COPY.format('top')}\ntop = top + 1\n{COPY.format('top')}",
            "v = top", "top = i * 128", id="bound again",
        ),
        pytest.param(
            f"k = i * 2\nfor q in range(4):\n    top = k + q\n    k = 7\n    {COPY.format('top')}",
            "v = k", "top = k + q", id="made of what changes",
        ),
        pytest.param(
            f"top = i * 128\n{COPY.format('top')}\nparts = [top for top in range(2)]",
            "pass", "top = i * 128", id="in a comprehension",
        ),
        pytest.param(
            f"top = i * 128\nif m > 1:\n    {COPY.format('top')}", "pass", "top = i * 128", id="behind a wall"
        ),
    ],
)  # fmt: skip
def test_names_stay_where_a_reader_may_mean_something_else(body: str, after: str, kept: str):
    source = without_names(body, after)
    assert source is None or kept in source


def test_a_kernel_without_such_names_stays_as_it_is():
    assert (
        without_names("nisa.dma_copy(dst=out[nl.ds(i * 128, 128), :], src=x[nl.ds(i * 128, 128), :])") is None
    )
