"""Running sums are products with a triangle, or recurrences of VectorE; both compute the same."""

from __future__ import annotations

import json

import numpy as np
import pytest

from remote.judge.identity.expression import load_expression
from targets.nki.translation.running_sums import find_running_sums
from targets.nki.translation.translator import estimate_work, write_variants
from tests.targets.nki.translation.test_kernels import assert_computes, translate

SHAPES = ((256, 96),)


@pytest.mark.parametrize(
    "reference",
    [
        lambda x: np.cumsum(x, axis=1),
        lambda x: np.cumsum(x, axis=0) * 0.5,
        lambda x: np.cumsum(x[:, ::-1], axis=1)[:, ::-1],
        lambda x: np.cumsum(x.reshape(8, 32, 96), axis=1),
        lambda x: np.cumsum(x / (1.0 + np.abs(x).max(axis=1, keepdims=True)), axis=1) / np.arange(1, 97),
    ],
)
def test_both_ways_compute_running_sums(reference):
    spec, formula, inputs, outputs = translate(reference, SHAPES)
    ways = {json.loads(name)["scans_sums"]: source for source, name in write_variants(spec, "full", formula)}
    assert set(ways) == {False, True}
    assert "nc_matmul" not in ways[True]
    assert "tensor_tensor_scan" in ways[True]
    for source in ways.values():
        assert_computes(source, inputs, outputs)
    assert estimate_work(spec, "full", formula)["matmul_flops"] == 0


@pytest.mark.parametrize(
    "reference",
    [
        lambda x: x @ np.tri(96),  # sums what follows
        lambda x: x @ np.triu(np.ones((96, 96)), 1),
        lambda x: x @ (2.0 * np.triu(np.ones((96, 96)))),
        lambda x: x @ x.T,
    ],
)
def test_other_products_are_no_running_sums(reference):
    _, formula, _, _ = translate(reference, SHAPES)
    assert find_running_sums(load_expression(formula, list(SHAPES))) == []
