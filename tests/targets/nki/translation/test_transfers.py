"""Transfers: what is only moved needs no tile, borders are written once, and long tiles come in parts."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest

from remote.judge.identity.expression import load_expression
from targets.nki.translation.borders import split_borders
from targets.nki.translation.translator import write_variants
from tests.targets.nki.translation.test_kernels import assert_computes, translate
from tests.targets.nki.translation.test_layouts import count, first_kernel, write_with_row


def reorder(x, y):
    left, middle, right = np.split(x, 3, axis=1)
    return np.pad(np.concatenate([right, y, left, middle], axis=1), ((0, 0), (4, 8)))


def test_columns_that_are_only_moved_never_come_to_the_chip():
    source = first_kernel(reorder, (150, 300), (150, 90))
    assert count(source, r"dma_copy\(dst=out_0\[.*src=[ab]\b") == 4
    assert count(source, r"nisa\.(?!dma_copy|memset|dge_mode)") == 0
    assert count(source, r"dma_copy\(dst=out_0\.ap\(.*src=constant") == 4  # two borders of 128 and 22 rows


@pytest.mark.parametrize(
    ("reference", "shapes", "copies"),
    [
        (lambda x, y: np.concatenate([x, y]), [(6, 512), (3, 512)], 2),  # one run each, in 16 parts
        (lambda x: np.concatenate([x[33:], x[:33]]), [(40, 96)], 2),
        (lambda x: np.concatenate([x, x[:, ::-1]], axis=1), [(20, 80)], 0),  # one tile with what is turned
        (lambda x: x.reshape(4, 32, 128).transpose(1, 0, 2), [(128, 128)], 1),
        (lambda x: np.repeat(x[:, None, :], 3, axis=1), [(32, 64)], 1),
        (lambda x: x[:, 5:45], [(64, 64)], 0),  # short runs
        (lambda x: x.T, [(64, 96)], 0),
        (lambda x: x[:7, :], [(16, 67)], 1),  # few engines, and little for each
        (lambda x: x[:17, :], [(18, 4099)], 0),  # one engine would have twice as much as the others
    ],
)
def test_long_runs_are_copied_within_hbm(reference, shapes, copies):
    source = first_kernel(reference, *shapes)
    assert count(source, r"dma_copy\(dst=out_0.*src=[ab]\b") == copies


@pytest.mark.parametrize("shape", [(5,), (300,), (3, 300), (2, 70, 9)])
def test_one_number_is_written_by_transfers_of_one_tile(shape):
    source = first_kernel(lambda x: (np.full(shape, -2.5), x * x), (4, 4))
    filled = source[source.index("constant") :]
    assert count(filled, r"memset\(dst=constant, value=-2.5\)") == 1
    assert count(filled, r"dma_copy\(dst=out_0.*src=constant") == (2 if prod(shape) > 128 else 1)


def written_elements(reference, *shapes):
    """How many elements the stages of an output write, of which an array of one number is the rest."""
    _, formula, _, _ = translate(reference, shapes)
    expression = split_borders(load_expression(formula, shapes))
    (output,) = expression.outputs
    base, *pieces = expression.nodes[output].args
    sizes = [int(np.prod(expression.nodes[at].shape)) for at in pieces]
    return sum(sizes) + (expression.nodes[base].kind != "unknown") * int(
        np.prod(expression.nodes[base].shape)
    )


def put_apart(x):
    out = np.zeros((40, 50))
    for at in range(5):
        out[8 * at : 8 * at + 4, 10 * at : 10 * at + 5] = x[:4, :5] * (at + 1)
    return out


def put_every_second(x):
    out = np.ones((32, 64))
    out[::2] = np.abs(x)
    return out


@pytest.mark.parametrize(
    ("reference", "shape", "elements"),
    [
        (lambda x: np.pad(x * x, ((1, 2), (3, 0))), (30, 40), 33 * 43),
        (lambda x: np.pad(np.exp(x), ((0, 0), (1, 1), (1, 1)), constant_values=2.0), (3, 8, 8), 3 * 100),
        (put_apart, (4, 5), 40 * 50 + 5 * 20),  # too many boxes around: all is filled first
        (put_every_second, (16, 64), 32 * 64 + 16 * 64),
    ],
)
def test_borders_are_written_by_themselves(reference, shape, elements):
    assert written_elements(reference, shape) == elements
    first_kernel(reference, shape)


def test_descriptors_are_made_before_the_launch():
    source = first_kernel(lambda x, y: np.tanh(x @ y).T, (130, 200), (200, 140))
    assert count(source, r"dma_copy\(") == count(source, r"dma_copy\(.*dge_mode=nisa.dge_mode.none\)") > 2


@pytest.mark.parametrize(("parts", "loops"), [(1, 0), (2, 2), (4, 3), (8, 6)])
def test_tiles_are_cut_in_parts(parts, loops):
    """Six batches are in one tile, or in a loop of two, three or six parts."""
    source = write_with_row(lambda x: np.abs(x) * x + 1.0, [(6, 100, 30)], 1, parts=parts)
    assert re.findall(r"for i_0 in nl.affine_range\((\d)\)", source) == ([str(loops)] if loops else [])


def test_parts_are_among_the_layouts_and_rows_that_fill_more_partitions_too():
    def reference(x):
        return np.where(np.tri(300, 64), x, -4.0)

    spec, formula, inputs, outputs = translate(reference, [(6, 300, 64)])
    first = write_variants(spec, "full", formula)
    assert "(100, 3, 64)" in first[0][0].replace("6, ", "")
    assert any("by 4" in name for _, name in first)
    near = write_variants(spec, "full", formula, first[0][1])
    parts = [source for source, name in near if '"parts": 4' in name]
    assert parts
    assert_computes(parts[0], inputs, outputs)


def test_whole_rows_are_loaded_before_tiles_take_columns_of_them():
    source = write_with_row(lambda x: x.T, [(140, 300)], 0, holds_rows=True)
    before, loop = source.split("for i_row in")
    assert count(before, r"dma_copy\(dst=a_tile.*src=a\[") == 1  # in a loop over two chunks of 128 rows
    assert "a_tile" in loop
    assert count(loop, r"dma_copy\(.*src=a\b") == 0
    assert count(loop, r"data=a_tile\[.*i_row \* 128 : i_row \* 128 \+ rows\]") == 1


def test_chunks_of_long_rows_come_one_by_one():
    spec, formula, _, _ = translate(lambda x, w: x @ w, [(128, 256), (256, 512)])
    source = next(source for source, _ in write_variants(spec, "full", formula) if "b_tile" in source)
    assert re.search(
        r"for (i_chunk\w*) in nl.affine_range\(2\):\n +nisa.dma_copy\(dst=b_tile\[:, \1, :\]", source
    )


def gated(x, gate, up):
    return np.tanh(x @ gate / 16) * (x @ up / 16)


def test_operands_come_in_the_order_in_which_products_need_them():
    """All rows, which are transposed; then columns of both weights in turn, all chunks of each."""
    source = first_kernel(gated, (256, 256), (256, 1024), (256, 1024))
    before, loop = source.split("for i_row in")
    assert before.index("src=a") < before.index("src=c") < before.index("src=b")
    assert count(before, "for i_part") == 1
    assert count(before, r"dst=[bc]_tile\[:, i_chunk\w*, i_part \* 512:i_part \* 512 \+ 512\]") == 2
    assert count(loop, "dma_copy") == 1  # of the results


def test_chunks_of_products_are_read_in_psum_before_the_next_ones():
    def reference(x, w, v):
        return np.tanh(x @ w / 16) @ v / 16

    source = write_with_row(reference, [(256, 256), (256, 512), (512, 256)], 1)
    lines = source.splitlines()
    at = next(number for number, line in enumerate(lines) if "nl.tanh" in line)
    assert "data=bank" in lines[at]
    assert "nc_matmul(dst=bank" in lines[at - 1]
    assert not any("matmul = " in line for line in lines)


def test_short_chunks_come_in_groups():
    """Of 8 chunks of 128 columns four make a transfer; of 2 both do, and of 5 all: no number divides them."""
    groups = {8: ("2", "4"), 2: None, 5: None}
    for chunks, group in groups.items():
        source = first_kernel(lambda x: x.sum(axis=0) / 64, (128 * chunks, 128))
        found = re.search(
            r"for i_part in nl.affine_range\((\d)\):\n +nisa.dma_copy\(.*i_part \* (\d) :", source
        )
        assert (found and found.groups()) == group
