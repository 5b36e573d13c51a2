"""Statistics of images and what they normalise: one walk, one load, and parts that come one by one."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from remote.judge.identity.expression import load_expression
from targets.nki.translation.kernel import KernelWriter
from targets.nki.translation.kernel_layout import KernelLayout
from targets.nki.translation.translator import make_signature, write_variants
from tests.targets.nki.translation.test_kernels import assert_computes, translate
from tests.targets.nki.translation.test_layouts import write_with_row

AXES = (0, 2, 3)


def normalise(x, gamma, beta):
    """Batch norm of (batch, channel, height, width), with its mean taken apart from its variance."""
    mean, var = x.mean(axis=AXES, keepdims=True), x.var(axis=AXES, keepdims=True)
    return gamma[:, None, None] * (x - mean) / np.sqrt(var + 1e-5) + beta[:, None, None]


SHAPES = [(6, 40, 24, 24), (40,), (40,)]


def loads_of(source, name):
    return len(re.findall(rf"dma_copy\(dst=.*src={name}\b", source))


@pytest.mark.parametrize("has_moments", [False, True])
def test_statistics_over_batches_read_their_input_once(has_moments):
    source = write_with_row(normalise, SHAPES, 1, tile_length=2048, has_moments=has_moments)
    assert loads_of(source, "a") == 1
    assert "private_hbm" not in source
    loop = source[source.index("for i_0") :]
    assert loads_of(loop, "a") == 0


def test_a_mean_beside_a_variance_is_one_of_the_moments():
    source = write_with_row(normalise, SHAPES, 1, tile_length=2048, has_moments=True)
    assert source.count("bn_aggr") == 1
    assert "tensor_reduce" not in source


def test_parts_of_what_statistics_are_taken_of_are_loaded_one_by_one():
    source = write_with_row(normalise, SHAPES, 1, tile_length=2048, has_moments=True)
    assert re.search(r"for i_load in nl.affine_range\(6\):\n +nisa.dma_copy\(dst=a_tile\[:, i_load", source)


def test_sums_around_and_inside_of_channels_are_tried_at_once_and_row_by_row():
    spec, formula, inputs, outputs = translate(normalise, SHAPES)
    ways: dict[bool, list[str]] = {False: [], True: []}
    for source, name in write_variants(spec, "full", formula):
        ways[json.loads(name)["whole_totals"]].append(source)
    assert all("private_hbm" in source for source in ways[False])
    assert ways[True]
    assert not any("private_hbm" in source for source in ways[True])
    for sources in ways.values():
        assert_computes(sources[0], inputs, outputs)


def test_two_sums_over_several_axes_share_their_loops():
    def spread(x):
        centred = x - x.mean(axis=AXES, keepdims=True)
        return np.abs(centred).sum(axis=AXES)

    source = write_with_row(spread, SHAPES[:1], 0)
    assert loads_of(source, "a") == 1


def test_scalar_engine_scales_shifts_and_rectifies_at_once():
    def rectify(x, scale, shift):
        return np.maximum(np.abs(x) * scale[:, None] + shift[:, None], 0.0)

    source = write_with_row(rectify, [(64, 600), (64,), (64,)], 0)
    assert re.search(r"nisa.activation\(.*op=nl.relu, .*scale=.*bias=", source)
    assert "maximum" not in source


def write_in_row_layout(reference, shapes, row):
    """The kernel with one layout of its only stage, without sums row by row; it computes the reference."""
    spec, formula, inputs, outputs = translate(reference, shapes)
    expression = load_expression(formula, shapes)
    (node,) = expression.outputs
    chosen = KernelLayout(rows={node: f"o{node}_{row}"}, whole_totals=True)
    source = KernelWriter(expression, make_signature(spec, "full"), chosen).write()
    assert_computes(source, inputs, outputs)
    return source


def clip_by_norm(x):
    return x * np.minimum(1.0, 3.0 / np.sqrt(np.sum(x * x)))


def standardise_columns(x, gamma):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * gamma


@pytest.mark.parametrize("rows", [256, 300])
def test_a_sum_of_everything_reaches_all_partitions_by_a_product_with_ones(rows):
    source = write_in_row_layout(clip_by_norm, [(rows, 640)], "0 spread")
    assert "private_hbm" not in source
    assert len(re.findall(r"nc_matmul\(.*stationary=ones", source)) == 1
    assert loads_of(source, "a") == 1


def test_sums_of_columns_leave_what_they_were_taken_of_in_place():
    source = write_in_row_layout(standardise_columns, [(384, 40), (40,)], "0 spread by 3")
    assert source.count("stationary=ones") == 2
    assert loads_of(source, "a") == 1
    assert "nc_transpose" not in source


def test_chunks_that_sums_are_taken_of_are_loaded_one_by_one():
    source = write_in_row_layout(clip_by_norm, [(256, 640)], "0 spread")
    load = source.index("nisa.dma_copy(dst=a_tile")
    assert source[:load].rstrip().endswith("for i_chunk in nl.affine_range(2):")


def test_maxima_are_not_added_up_by_ones():
    spec, formula, _, _ = translate(lambda x: x - x.max(0), [(256, 40)])
    names = [
        row for _, name in write_variants(spec, "full", formula) for row in json.loads(name)["rows"].values()
    ]
    assert not any("spread" in row for row in names if row)
