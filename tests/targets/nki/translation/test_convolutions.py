"""Convolutions: rows are packed on the partitions, however the reference is written."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from targets.nki.translation.kernel_layout import KernelLayout
from targets.nki.translation.translator import write_variants
from tests.targets.nki.translation.test_kernels import assert_computes, translate


def pad(x, count):
    return np.pad(x, ((0, 0), (0, 0), (count, count), (count, count)))


def shifted_products(x, w):
    padded, size = pad(x, 1), x.shape[-1]
    return sum(
        np.einsum("nchw,oc->nohw", padded[:, :, i : i + size, j : j + size], w[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )


def bias_then_products(x, w):
    y = w[:, 0, 0, 0][None, :, None, None]
    for i in range(3):
        for j in range(3):
            y = y + np.einsum("nchw,oc->nohw", x[:, :, i : i + 12, j : j + 12], w[:, :, i, j])
    return np.maximum(y, 0)


def windows(x, w):
    found = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", found, w)


def windows_with_a_border(x, w):
    found = np.lib.stride_tricks.sliding_window_view(pad(x, 1), (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    return np.einsum("nchwij,ocij->nohw", found, w)


def strided(x, w):
    padded = pad(x, 1)
    return sum(
        np.einsum("nchw,oc->nohw", padded[:, :, i : i + 13 : 2, j : j + 13 : 2], w[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )


def dilated(x, w):
    padded, size = pad(x, 2), x.shape[-1]
    return x + sum(
        np.einsum("nchw,oc->nohw", padded[:, :, 2 * i : 2 * i + size, 2 * j : 2 * j + size], w[:8, :, i, j])
        for i in range(3)
        for j in range(3)
    )


def columns_by_hand(x, w):
    padded, size = pad(x, 1), x.shape[-1]
    columns = np.empty((x.shape[0], x.shape[1], 3, 3, size, size), x.dtype)
    for i in range(3):
        for j in range(3):
            columns[:, :, i, j] = padded[:, :, i : i + size, j : j + size]
    columns = columns.reshape(x.shape[0], -1, size * size)
    return (w.reshape(w.shape[0], -1) @ columns).reshape(x.shape[0], -1, size, size)


def stacked_along_a_row(x, w):
    rows = x.reshape(x.shape[0], x.shape[1], -1)
    padded = np.pad(rows, ((0, 0), (0, 0), (4, 0)))
    columns = np.stack([padded[:, :, k : k + rows.shape[2]] for k in range(5)], axis=2)
    return np.einsum("nckl,ock->nol", columns, w.reshape(w.shape[0], -1)[:, :40].reshape(-1, 8, 5))


def grouped(x, w):
    padded = pad(x, 1).reshape(x.shape[0], 2, 4, 16, 16)
    own = w.reshape(2, 8, 8, 3, 3)[:, :, :4]
    y = 0.0
    for i in range(3):
        for j in range(3):
            window = padded[:, :, :, i : i + 14, j : j + 14]
            y = y + np.einsum("ngchw,goc->ngohw", window, own[:, :, :, i, j])
    return y


SPELLINGS = (
    shifted_products, bias_then_products, windows, windows_with_a_border, strided, dilated, columns_by_hand,
    stacked_along_a_row, grouped,
)  # fmt: skip


@pytest.mark.parametrize("reference", SPELLINGS, ids=lambda reference: reference.__name__)
def test_every_layout_of_a_convolution_computes_it(reference):
    spec, formula, inputs, outputs = translate(reference, [(2, 8, 14, 14), (16, 8, 3, 3)])
    variants = write_variants(spec, "full", formula)
    assert "weights = nl.ndarray" in variants[0][0]
    assert "private_hbm" not in variants[0][0]
    for source in (source for source, _ in variants if "weights" in source):
        assert_computes(source, inputs, outputs)


@pytest.mark.parametrize(("border", "stride", "dilation"), [(0, 1, 1), (1, 1, 1), (1, 2, 1), (2, 1, 2)])
def test_channels_that_are_neighbours_get_to_the_partitions_by_transposes(border, stride, dilation):
    def convolve(x, w, bias):
        padded = np.pad(x, ((0, 0), (border, border), (border, border), (0, 0)))
        size = padded.shape[1] - 2 * dilation
        y = np.zeros((x.shape[0], -(-size // stride), -(-size // stride), w.shape[3]))
        for i in range(3):
            for j in range(3):
                top, left = dilation * i, dilation * j
                y += padded[:, top : top + size : stride, left : left + size : stride] @ w[i, j]
        return np.maximum(y + bias, 0)

    spec, formula, inputs, outputs = translate(convolve, [(2, 14, 14, 8), (3, 3, 8, 16), (16,)])
    packed = [source for source, _ in write_variants(spec, "full", formula) if "weights" in source]
    assert packed
    for source in packed:
        assert_computes(source, inputs, outputs)
        assert len(re.findall(r"src=a\b", source)) == 1
        loads = re.findall(r"src=(\w+)\.ap\((\[\[.*?\]\])", source)
        assert all(runs.endswith("[1, 8]]") for name, runs in loads if name == "a")


def count_columns(source):
    """How many products a kernel makes without loops around them, and the rows and columns of weights."""
    (shape,) = re.findall(r"weights = nl.ndarray\(\((\d+), (\d+), (\d+)\)", source)
    return len(re.findall("nc_matmul", source)), tuple(map(int, shape))


def test_rows_of_the_input_and_of_the_result_share_products():
    spec, formula, _, _ = translate(shifted_products, [(2, 8, 14, 14), (16, 8, 3, 3)])
    source = write_variants(spec, "full", formula)[0][0]
    # 7 rows of results need 9 rows of the input, of 8 channels each; taps along a row are shifted views
    assert count_columns(source) == (3, (72, 3, 112))


def test_transfers_move_all_stacked_rows_and_results_of_an_image():
    spec, formula, _, _ = translate(shifted_products, [(2, 8, 14, 14), (16, 8, 3, 3)])
    source = write_variants(spec, "full", formula)[0][0]
    transfers = re.findall(r"dma_copy\(dst=(\w+).*src=(\w+)", source)
    # the first and the last step lack a row, which is the border
    assert [pair for pair in transfers if pair[1] == "a"] == [("a_rows", "a")] * 2
    assert [pair for pair in transfers if pair[0] == "out_0"] == [("out_0", "matmul")]
    assert [pair for pair in transfers if pair[1] == "b"] == [("b_tile", "b")]
    assert len(transfers) == 4  # weights get to their places by transposes


def test_weights_of_several_taps_are_one_copy():
    spec, formula, inputs, outputs = translate(shifted_products, [(1, 8, 14, 14), (16, 8, 3, 3)])
    source = write_variants(spec, "full", formula)[0][0]
    # of 7 rows of results, each meets three neighbouring rows of the input
    assert len(re.findall(r"tensor_copy\(dst=bands.*src=b_tile", source)) == 7
    assert "taps" not in source
    assert_computes(source, inputs, outputs)


def test_convolutions_of_the_same_windows_share_stacked_rows():
    def gate(x, v, w):
        return shifted_products(x, v) / (1 + np.exp(-shifted_products(x, w)))

    shapes = [(2, 8, 14, 14), (16, 8, 3, 3), (16, 8, 3, 3)]
    spec, formula, inputs, outputs = translate(gate, shapes)
    source = write_variants(spec, "full", formula)[0][0]
    assert len(re.findall(r"a_rows\w* = nl.ndarray", source)) == 1
    assert len(re.findall(r"weights\w* = nl.ndarray", source)) == 2
    assert_computes(source, inputs, outputs)


def test_volumes_are_packed_in_transfers_of_few_loops():
    def convolve(x, w):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1), (1, 1)))
        taps = [(i, j, k) for i in range(3) for j in range(3) for k in range(3)]
        return sum(
            np.einsum("ncdhw,oc->nodhw", padded[:, :, i : i + 6, j : j + 6, k : k + 6], w[:, :, i, j, k])
            for i, j, k in taps
        )

    spec, formula, inputs, outputs = translate(convolve, [(2, 4, 6, 6, 6), (8, 4, 3, 3, 3)])
    source = write_variants(spec, "full", formula)[0][0]
    assert "weights = nl.ndarray" in source
    assert_computes(source, inputs, outputs)


def test_long_rows_are_packed_in_shorter_tiles():
    def convolve(x, w):
        padded = np.pad(x, ((0, 0), (0, 0), (8, 0)))
        return sum(w[:, :, k] @ padded[:, :, 4 * k : 4 * k + x.shape[2]] for k in range(3))

    spec, formula, inputs, outputs = translate(
        lambda x, w: np.tanh(convolve(x, w)) + x, [(16, 8, 1024), (8, 8, 3)]
    )
    source = write_variants(spec, "full", formula)[0][0]
    assert "weights = nl.ndarray" in source
    assert_computes(source, inputs, outputs)


def test_a_convolution_with_enough_channels_is_not_packed():
    spec, formula, inputs, outputs = translate(shifted_products, [(1, 128, 6, 6), (128, 128, 3, 3)])
    source = write_variants(spec, "full", formula)[0][0]
    assert "weights" not in source
    assert_computes(source, inputs, outputs)


def test_weights_that_are_computed_are_packed_too():
    spec, formula, inputs, outputs = translate(
        lambda x, w: shifted_products(x, w * 0.5 + 1), [(1, 8, 14, 14), (16, 8, 3, 3)]
    )
    source = write_variants(spec, "full", formula)[0][0]
    assert count_columns(source)[0] == 3
    assert_computes(source, inputs, outputs)


def test_strided_windows_with_a_border_are_parts_of_one_load():
    def pool(x):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        return sum(padded[:, :, i : i + 12 : 2, j : j + 12 : 2] for i in range(3) for j in range(3)) / 9

    spec, formula, inputs, outputs = translate(pool, [(4, 32, 12, 12)])
    for source, _ in write_variants(spec, "full", formula):
        assert len(re.findall(r"src=a\b", source)) == 1
        assert_computes(source, inputs, outputs)


@pytest.mark.parametrize("zeros_last", [False, True])
def test_rows_that_zeros_were_put_beside_are_parts_of_one_load(zeros_last):
    def shift(x, gap):
        zeros = np.zeros((x.shape[0], gap), x.dtype)
        parts = [x[:, gap:], zeros] if zeros_last else [zeros, x[:, :-gap]]
        return np.concatenate(parts, axis=1)

    def reference(x, w):
        return w[:, :1] * x + sum(w[:, k : k + 1] * shift(x, k) for k in range(1, 4))

    spec, formula, inputs, outputs = translate(reference, [(64, 256), (64, 4)])
    sources = [source for source, _ in write_variants(spec, "full", formula)]
    for source in sources:
        assert_computes(source, inputs, outputs)
    joined = [source for source in sources if len(re.findall(r"src=a\b", source)) == 1]
    assert joined
    assert not any("tensor_copy" in source for source in joined), "shifted rows are not copied"


def test_tiles_of_packed_rows_may_be_cut_along_no_loop():
    spec, formula, inputs, outputs = translate(shifted_products, [(4, 8, 14, 14), (16, 8, 3, 3)])
    first, name = write_variants(spec, "full", formula)[0]
    near = [KernelLayout.from_name(own) for _, own in write_variants(spec, "full", formula, name)]
    assert len({layout.late for layout in near}) > 1
    cut = replace(KernelLayout.from_name(name), parts=4)
    source, _ = write_variants(spec, "full", formula, cut.name)[0]
    assert source == first
    assert_computes(source, inputs, outputs)


@pytest.mark.parametrize(("height", "width"), [(8, 10), (14, 12)])
def test_results_whose_channels_are_neighbours_are_transposed_many_at_a_time(height, width):
    def convolve(x, w, bias):
        taps = [(i, j) for i in range(3) for j in range(3)]
        return bias + sum(x[:, i : i + height, j : j + width] @ w[i, j] for i, j in taps)

    shapes = [(1, height + 2, width + 2, 8), (3, 3, 8, 16), (16,)]
    spec, formula, inputs, outputs = translate(convolve, shapes)
    joined = re.compile(r"nc_transpose\(.*data=\w+\.flatten_dims\(1, 2\)")
    sources = [source for source, _ in write_variants(spec, "full", formula) if joined.search(source)]
    assert sources
    for source in sources:
        assert_computes(source, inputs, outputs)


@pytest.mark.parametrize(
    ("length", "border", "stride", "dilation", "channels"),
    [(300, 0, 1, 1, 24), (300, 2, 1, 1, 24), (200, 4, 1, 2, 8), (200, 2, 2, 1, 8), (20, 1, 1, 1, 16)],
)
def test_rows_along_one_loop_are_stacked_by_transposes(length, border, stride, dilation, channels):
    def convolve(x, w, bias):
        padded = np.pad(x, ((0, 0), (border, border), (0, 0)))
        size = padded.shape[1] - 4 * dilation
        return bias + sum(padded[:, dilation * k : dilation * k + size : stride] @ w[k] for k in range(5))

    spec, formula, inputs, outputs = translate(convolve, [(2, length, channels), (5, channels, 32), (32,)])
    packed = [source for source, _ in write_variants(spec, "full", formula) if "a_rows" in source]
    assert packed
    for source in packed:
        assert_computes(source, inputs, outputs)
        if "bands" not in source:  # of single rows of results, weights are loaded to their places
            assert re.search(r"dma_copy\(dst=weights", source)
