"""Blocks that masks hide: what is left out, and what is not."""

from __future__ import annotations

import re

import numpy as np
import pytest

from remote.judge.identity.expression import load_expression
from targets.nki.translation.delay import delay_last
from targets.nki.translation.interleave import interleave_kernel
from targets.nki.translation.kernel import KernelWriter
from targets.nki.translation.kernel_layout import KernelLayout
from targets.nki.translation.text import write_sequence
from targets.nki.translation.translator import make_signature, write_variants
from tests.targets.nki.translation.test_kernels import assert_computes, translate


def causal(queries, keys):
    return np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries


def window(queries, keys):
    return causal(queries, keys) & (np.arange(keys)[None, :] > np.arange(queries)[:, None] - 100)


def attend(mask, hidden=-np.inf):
    def reference(q, k, v):
        scores = q @ np.swapaxes(k, -1, -2) * 0.125
        scores = np.where(mask(q.shape[1], k.shape[1]), scores, hidden)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ v

    return reference


def write_without_hidden(reference, queries, keys, **layout):
    """The kernel that leaves out what is hidden; it computes the reference."""
    shapes = [(2, queries, 64), (2, keys, 64), (2, keys, 64)]
    spec, formula, inputs, outputs = translate(reference, shapes)
    chosen = KernelLayout(leaves_out=True, **layout)
    source = KernelWriter(load_expression(formula, shapes), make_signature(spec, "full"), chosen).write()
    assert_computes(source, inputs, outputs)
    return source


def groups(queries, keys):
    return np.arange(queries)[:, None] // 100 == np.arange(keys)[None, :] // 100


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "counts"),
    [
        (causal, 384, 384, "i_row + 1"),
        (causal, 250, 250, "i_row + 1"),
        (causal, 256, 512, "i_row + 3"),
        (window, 384, 384, "min(2, i_row + 1)"),
        (window, 1024, 1024, "min(2, i_row + 1)"),
        (groups, 200, 256, "i_row + 1"),  # keys of a block are counted together, also if fewer are seen
    ],
)
def test_tiles_of_rows_have_products_with_the_blocks_that_they_see(mask, queries, keys, counts):
    source = write_without_hidden(attend(mask), queries, keys)
    assert f"affine_range({counts})" in source


@pytest.mark.parametrize("hidden", [-np.inf, -1e9])
@pytest.mark.parametrize(("mask", "masks", "size"), [(causal, 1, 384), (causal, 1, 1000), (window, 2, 500)])
def test_masks_are_applied_in_psum_to_blocks_that_they_hide_in_part(mask, masks, size, hidden):
    source = write_without_hidden(attend(mask, hidden), size, size, hides_in_banks=True)
    assert len(re.findall(r"tensor_copy_predicated\(dst=bank.*, predicate=hidden", source)) == masks
    assert not re.search(r"tensor_copy\(.*src=bank\b", source)


def test_parts_of_banks_that_begin_anywhere_are_copied():
    source = write_without_hidden(attend(window), 1000, 1000, hides_in_banks=True)
    assert "tensor_copy_predicated" not in source


def test_a_mask_of_keys_alone_is_applied_to_a_copy_of_what_another_one_left_in_psum():
    def reference(q, k, v):
        scores = np.where(causal(384, 384), q @ np.swapaxes(k, -1, -2), -np.inf)
        scores = np.where(np.arange(384) < 380, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ v

    source = write_without_hidden(reference, 384, 384, hides_in_banks=True)
    assert re.search(r"tensor_copy\(dst=scores.*, src=bank", source)


def test_masks_of_copies_touch_only_blocks_that_they_hide_in_part():
    source = write_without_hidden(attend(causal), 384, 384)
    assert len(re.findall(r"affine_select\(dst=(.*), pattern.*on_true_tile=\1,", source)) == 1
    assert "i_row : i_row + 1, :], pattern=[[-128, 1], [-1, 128]]" in source


@pytest.mark.parametrize("late", [(0, 0), (6, 0), (7, 4)])
@pytest.mark.parametrize("ways", [1, 2, 4])
@pytest.mark.parametrize(("mask", "size"), [(causal, 250), (window, 1024)])
def test_iterations_side_by_side_and_late_compute_the_same(mask, size, ways, late):
    shapes = [(2, size, 64)] * 3
    spec, formula, inputs, outputs = translate(attend(mask), shapes)
    layout = KernelLayout(leaves_out=True)
    source = KernelWriter(load_expression(formula, shapes), make_signature(spec, "full"), layout).write()
    source = interleave_kernel(source, ways) or source
    assert_computes(delay_last(source, *late) or source, inputs, outputs)


def test_a_smaller_number_hides_scores_that_a_function_bounds():
    def reference(q, k, v):
        scores = 30.0 * np.tanh(q @ np.swapaxes(k, -1, -2) / 30.0)
        weights = np.exp(np.where(causal(256, 256), scores, -1e9))
        return weights / weights.sum(axis=-1, keepdims=True) @ v

    assert "affine_range(i_row + 1)" in write_without_hidden(reference, 256, 256)


def hides_rows(queries, keys):
    return causal(queries, keys) & (np.arange(queries)[:, None] > 3)


@pytest.mark.parametrize(
    "reference",
    [
        attend(causal, -1e9),  # scores of huge inputs are smaller, so hidden keys would count
        attend(hides_rows, -1e30),  # rows that see nothing have the mean of all values
    ],
)
def test_what_counts_somewhere_is_not_left_out(reference):
    source = write_without_hidden(reference, 256, 256)
    assert not re.search(r"affine_range\([^)\d]", source)


def test_hidden_weights_that_are_results_are_computed():
    def reference(q, k, v):
        scores = np.where(causal(256, 256), q @ np.swapaxes(k, -1, -2), -np.inf)
        return np.exp(scores - scores.max(axis=-1, keepdims=True))

    assert not re.search(r"affine_range\([^)\d]", write_without_hidden(reference, 256, 256))


def test_leaving_out_is_a_layout_of_masked_sums_only():
    for mask, wanted in ((causal, {True, False}), (lambda *_: True, {False})):
        spec, formula, _, _ = translate(attend(mask), [(2, 256, 64)] * 3)
        layouts = [KernelLayout.from_name(name) for _, name in write_variants(spec, "full", formula)]
        assert {layout.leaves_out for layout in layouts} == wanted


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3, 3, 3], "3"),
        ([0, 1, 2], "i_row"),
        ([2, 4, 6], "i_row * 2 + 2"),
        ([0, 0, 1, 2], "max(0, i_row - 1)"),
        ([1, 2, 3, 3], "min(3, i_row + 1)"),
        ([1, 4, 2], "(1, 4, 2)[i_row]"),
    ],
)
def test_counts_are_written_in_terms_of_the_tile(numbers, text):
    assert write_sequence(numbers) == text
    assert [eval(text, {"i_row": at}) for at in range(len(numbers))] == numbers
