"""Copies on chip that go: who read one reads what was copied, or its maker writes where it went."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import ROWS, TILE, Sample, relative_error
from tests.support.rewrite_outcomes import find_refusal, find_rewrite, list_rewrites_by_site

COPY = "nisa.tensor_copy(dst=b, src=a)"
TANH = "nisa.activation(dst=c, op=nl.tanh, data=b)"
BACK = "nisa.tensor_copy(dst=a, src=c)"
READ, WRITE = {"by": "read the source"}, {"by": "write the destination"}


def sample(*body: str, meaning=np.tanh) -> Sample:
    return Sample(ROWS.format(body="\n        ".join(body)), ((256, 256),), meaning)


WHOLE = sample(TILE.format("b"), COPY, TILE.format("c"), TANH, BACK)


def test_readers_of_a_copy_read_what_was_copied():
    source = find_rewrite(WHOLE, "forward", "copy to b", READ)
    assert relative_error(WHOLE, source) < 1e-6
    assert "data=a)" in source
    assert "b = nl.ndarray" not in source


def test_a_maker_writes_where_the_copy_went():
    source = find_rewrite(WHOLE, "forward", "copy to a", WRITE)
    assert relative_error(WHOLE, source) < 1e-6
    assert "nisa.activation(dst=a, op=nl.tanh, data=b)" in source
    assert "c = nl.ndarray" not in source


def test_a_destination_declared_in_between_moves_in_front_of_the_maker():
    body = (TILE.format("c"), "nisa.activation(dst=c, op=nl.tanh, data=a)", TILE.format("{0}"))
    tail = ("nisa.tensor_copy(dst={0}, src=c)", "nisa.tensor_copy(dst=a, src={0})")
    made = sample(*(line.format("b") for line in (*body, *tail)))
    source = find_rewrite(made, "forward", "copy to b", WRITE)
    assert relative_error(made, source) < 1e-6
    assert source.index("b = nl.ndarray") < source.index("nisa.activation(dst=b")
    rebound = "nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=a)"
    taken = sample(*(line.format("a") for line in (*body, *tail[:1])), rebound)
    assert [choice for choice, _ in list_rewrites_by_site(taken, "forward")["copy to a"]] == [READ]


HALF = "{} = nl.ndarray((128, n // 2), dtype=nl.float32, buffer=nl.sbuf)"
PART = (HALF.format("b"), "nisa.tensor_copy(dst=b, src=a[:, n // 2 : n])", HALF.format("c"))
THERE = "nisa.tensor_copy(dst=a[:, 0 : n // 2], src=c)"


def test_readers_of_a_part_read_the_part():
    def meaning(x: np.ndarray) -> np.ndarray:
        right = x[:, x.shape[1] // 2 :]
        return np.hstack([np.tanh(right), right])

    made = sample(*PART, TANH, THERE, meaning=meaning)
    source = find_rewrite(made, "forward", "copy to b", READ)
    assert relative_error(made, source) < 1e-6
    assert "data=a[:, n // 2 : n]" in source


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            sample(TILE.format("b"), COPY, "nisa.memset(dst=a, value=0.0)", TILE.format("c"), TANH, BACK),
            "a does not stay as it is until the copy's last use",
        ),
        (
            sample(*PART, "nisa.activation(dst=c[:, 0:64], op=nl.tanh, data=b[:, 0:64])"),
            "b is a part of a and read in parts itself",
        ),
        (
            sample(TILE.format("b").replace("float32", "bfloat16"), COPY, TILE.format("c"), TANH, BACK),
            "the copy converts, or rearranges what it takes",
        ),
        (
            sample(TILE.format("b"), COPY, COPY, TILE.format("c"), TANH, BACK),
            "b is not made by this copy alone",
        ),
    ],
)
def test_a_copy_that_something_needs_stays(made: Sample, reason: str):
    assert READ not in [choice for choice, _ in list_rewrites_by_site(made, "forward").get("copy to b", [])]
    assert reason in find_refusal(made, "forward", "copy to b")
