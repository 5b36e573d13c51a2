"""Names bound in loops: spared where every reader may say their value, kept where one may not."""

from __future__ import annotations

import textwrap

import pytest

import seeds
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.inlining import canonicalize_kernel, inline_names
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from tests.support.kernels import HEADER, TARGET, Sample, relative_error
from tests.support.rewrite_outcomes import list_rewrites_by_site

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


def test_operands_are_turned_back_where_that_changes_nothing():
    source = HEADER + KERNEL.format(
        body="""t = nl.ndarray((128, n), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, :])
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=3.0, reverse0=True)
        nisa.tensor_scalar(
            dst=t, data=t, op0=nl.subtract, operand0=1.0, reverse0=True,
            op1=nl.add, operand1=0.0, reverse1=True,
        )
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=t)""",
        after="pass",
    )
    made = Sample(source, ((512, 256),), lambda x: 1.0 - 3.0 * x)
    kernel = canonicalize_kernel(read_kernel(source, made.arguments, TARGET), TARGET)
    assert "op0=nl.multiply, operand0=3.0)" in kernel.module.code
    assert "op0=nl.subtract, operand0=1.0, reverse0=True,\n" in kernel.module.code
    assert "op1=nl.add, operand1=0.0,\n" in kernel.module.code
    assert relative_error(made, kernel.module.code) < 1e-6
    sites = list_rewrites_by_site(made, "engine")  # ScalarE has no operands turned round
    assert [choice for choice, _ in sites["tensor_scalar to t"]] == [{"engine": "scalar"}]


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


def test_a_slice_is_said_as_a_window_where_it_is_used():
    source = without_names("""
        rows = slice(i * 128, (i + 1) * 128)
        left = slice(0, 64)
        right = slice(n - 64, n)
        t = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t[:, left], src=x[rows, left])
        nisa.dma_copy(dst=t[:, 64:128], src=x[rows, right])
    """)
    assert source is not None
    assert "src=x[nl.ds(i * 128, 128), nl.ds(0, 64)]" in source
    assert "src=x[nl.ds(i * 128, 128), nl.ds(n - 64, n - (n - 64))]" in source
    assert "slice" not in source


def test_models_write_slices_as_the_prompts_examples_do_and_get_the_same_rewrites():
    problem = seeds.load_problem("silu")
    rows, columns = "i_m * TILE_M : (i_m + 1) * TILE_M", "i_n * TILE_N : (i_n + 1) * TILE_N"
    inner = "        for i_n in nl.affine_range(n // TILE_N):\n"
    sliced = problem.kernel.replace(f"{rows}, {columns}", "rows, columns").replace(
        inner,
        "        rows = slice(i_m * TILE_M, (i_m + 1) * TILE_M)\n"
        f"{inner}            columns = slice(i_n * TILE_N, (i_n + 1) * TILE_N)\n",
    )
    assert sliced.count("slice(") == 2

    def offered(source: str) -> set[tuple[str, str, str]]:
        arguments = [ArrayArgument((4096, 4096), "float32")]
        children, _ = explore_rewrites(read_kernel(source, arguments, TARGET), arguments, TARGET)
        return {(one.transform.id, one.site, str(one.choice)) for one in children}

    assert offered(sliced) == offered(problem.kernel)


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
