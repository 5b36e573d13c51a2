"""Common subexpressions and dead code: what goes, and what stays although it looks alike or unused."""

from __future__ import annotations

import numpy as np
import pytest

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import ROWS, TARGET, TILE, Sample, join_wrapped_calls, relative_error

EXP = "nisa.activation(dst={}, op=nl.exp, data=a)"
LOAD = "nisa.dma_copy(dst={}, src=x[nl.ds(i * 128, 128), 0:n])"
MADE = (TILE.format("b"), EXP.format("b"))
ADD = "nisa.tensor_tensor(dst=a, data1=b, data2=c, op=nl.add)"


def sample(*body: str, meaning=lambda x: 2 * np.exp(x)) -> Sample:
    return Sample(ROWS.format(body="\n        ".join(body)), ((256, 128),), meaning)


def rewritten(made: Sample, technique: str) -> tuple[list[str], list[str]]:
    """Sources, and reasons against."""
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS[technique]])
    return [join_wrapped_calls(child.source) for child in children], refusals


def test_the_same_instruction_is_done_once():
    made = sample(TILE.format("b"), EXP.format("b"), TILE.format("c"), EXP.format("c"), ADD)
    ((source,), _) = rewritten(made, "reuse")
    assert source.count("nisa.activation") == 1
    assert "nisa.tensor_tensor(dst=a, data1=b, data2=b, op=nl.add)" in source
    assert "c = nl.ndarray" not in source
    assert relative_error(made, source) < 1e-6


def test_the_same_rows_are_loaded_once_however_they_are_spelt():
    made = sample(
        TILE.format("b"), LOAD.format("b"), "for q in range(1):", f"    {TILE.format('c')}",
        f"    {LOAD.format('c')}", f"    {ADD}", meaning=lambda x: 2 * x,
    )  # fmt: skip
    assert relative_error(made, made.source) < 1e-6
    sources, _ = rewritten(made, "reuse")
    assert sources
    assert all(relative_error(made, source) < 1e-6 for source in sources)
    assert min(source.count("nisa.dma_copy") for source in sources) == made.source.count("nisa.dma_copy") - 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            (*MADE, "nisa.memset(dst=a, value=0.0)", TILE.format("c"), EXP.format("c"), ADD),
            "a changes in between",
        ),
        (
            (
                *MADE, "for q in range(2):", f"    {TILE.format('c')}",
                f"    {EXP.format('c')}", f"    {ADD}",
            ),
            "a changes in between",
        ),
        (
            (*MADE, TILE.format("c"), EXP.format("c"), "old = b", TILE.format("b"),
             "nisa.tensor_tensor(dst=b, data1=old, data2=c, op=nl.add)", "nisa.tensor_copy(dst=a, src=b)"),
            None,
        ),
    ],
)  # fmt: skip
def test_what_is_not_the_same_any_more_is_done_again(body: tuple[str, ...], reason: str | None):
    sources, refusals = rewritten(sample(*body), "reuse")
    assert not sources
    assert refusals == ([f"reuse b for c: {reason}"] if reason else [])


def test_a_tile_that_is_written_again_is_no_result_to_share():
    in_place = "nisa.tensor_scalar(dst=c, data=c, op0=nl.multiply, operand0=3.0)"
    made = sample(TILE.format("b"), EXP.format("b"), TILE.format("c"), EXP.format("c"), in_place, ADD)
    assert rewritten(made, "reuse") == ([], [])


UNUSED = (
    *MADE, TILE.format("c"), "nisa.memset(dst=c, value=0.0)",
    "nisa.tensor_tensor(dst=c, data1=c, data2=b, op=nl.add)",
)  # fmt: skip


def test_a_chain_that_nothing_reads_goes_with_its_tiles():
    made = sample(*UNUSED, meaning=lambda x: x)
    ((source,), _) = rewritten(made, "dead_code")
    assert "b" not in [line.strip().partition(" = ")[0] for line in source.splitlines()]
    assert "activation" not in source
    assert "memset" not in source
    assert relative_error(made, source) < 1e-6


@pytest.mark.parametrize(
    "body",
    [
        (*UNUSED, "nisa.tensor_copy(dst=a, src=c)"),
        (*UNUSED, "if m > 1:", "    nisa.tensor_copy(dst=a, src=c)"),
    ],
)
def test_what_something_reads_stays(body: tuple[str, ...]):
    assert rewritten(sample(*body), "dead_code") == ([], [])


def test_a_second_name_keeps_a_tile():
    sources, _ = rewritten(sample(*UNUSED, "kept = c"), "dead_code")
    assert not sources
