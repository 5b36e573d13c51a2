"""What is done to a kernel's text: orders of functions, products that raise a clock, fewer copies."""

from __future__ import annotations

import re

import numpy as np
import pytest

from targets.nki.translation.epilogues import fuse_epilogues
from targets.nki.translation.function_tables import order_functions
from targets.nki.translation.kernel_layout import Choices, KernelLayout
from targets.nki.translation.translator import write_kernels, write_variants
from targets.nki.translation.warm_up import warm_up
from tests.targets.nki.translation.test_kernels import assert_computes, translate


def write_first(reference, *shapes):
    """The first layout's kernel, inputs and outputs."""
    spec, formula, inputs, outputs = translate(reference, shapes)
    return write_kernels(spec, "full", formula)[0], inputs, outputs


def log_sums(x, y):
    return sum(np.log(np.exp(item - item.max(1, keepdims=True)).sum(1)) for item in (x, y))


def functions_of(source):
    return re.findall(r"op=nl\.(exp|log)\b", source)


def test_functions_of_one_table_follow_each_other():
    source, inputs, outputs = write_first(log_sums, (300, 40), (300, 40))
    ordered = order_functions(source)
    assert functions_of(source) == ["exp", "log", "exp", "log"]
    assert functions_of(ordered) == ["exp", "exp", "log", "log"]
    assert_computes(ordered, inputs, outputs)


def test_functions_that_need_each_other_keep_their_order():
    source, *_ = write_first(lambda x: np.exp(np.log(x * x + 1.0) * 0.3 + x), (300, 40))
    assert order_functions(source) is None


def test_a_function_waits_with_what_replaces_its_operand():
    source = """
def kernel(a):
    nisa.activation(dst=b, op=nl.exp, data=a)
    nisa.activation(dst=c, op=nl.log, data=a)
    nisa.memset(dst=a, value=0.0)
    nisa.activation(dst=d, op=nl.exp, data=a)
    nisa.activation(dst=e, op=nl.exp, data=b)
"""
    results = re.findall(r"dst=(\w)", order_functions(source))
    assert results == ["b", "e", "c", "a", "d"]


def test_products_of_zeros_come_before_all_others():
    source, inputs, outputs = write_first(lambda x, w: x @ w, (128, 64), (64, 32))
    warm = warm_up(source, 5)
    first = re.search(r"nisa\.(nc_matmul|nc_transpose)\(.*", warm)
    assert first[0].startswith("nisa.nc_matmul(dst=warm_bank")
    assert "affine_range(5)" in warm
    assert_computes(warm, inputs, outputs)
    assert warm_up(source, 0) is None


def test_the_names_of_products_of_zeros_are_free():
    warm = warm_up("def kernel(zeros, warm_bank):\n    nisa.nc_transpose(dst=i_warm, data=zeros)\n", 2)
    assert re.search(r"moving=zeros_2\)", warm)
    assert re.search(r"dst=warm_bank_2\b", warm)
    assert re.search(r"for i_warm_2 in", warm)


@pytest.mark.parametrize("reference", [lambda x: np.tanh(x) + x, lambda x, w: x @ w])
def test_clocks_are_raised_only_for_products(reference):
    shapes = [(128, 64), (64, 64)][: reference.__code__.co_argcount]
    spec, formula, *_ = translate(reference, shapes)
    names = [name for _, name in write_variants(spec, "full", formula, KernelLayout().name)]
    counts = {KernelLayout.from_name(name).warm_products for name in names}
    assert counts == ({0} if len(shapes) == 1 else {0, 2, 5, 8})


def convolve(x, w, bias):
    product = np.einsum("bik,io->bok", x, w)
    return np.maximum(product + bias[:, None], 0)


@pytest.mark.parametrize("rows", [48, 200])
def test_what_follows_a_product_in_parts_reads_it_in_psum(rows):
    source, inputs, outputs = write_first(convolve, (3, 64, 300), (64, rows), (rows,))
    assert not re.search(r"tensor_copy\(dst=matmul", source)
    assert re.search(r"activation\(dst=.*op=nl.relu, data=bank.*bias=", source)
    assert_computes(source, inputs, outputs)


COPIES = """
def kernel(a):
    matmul = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
    for i_part in nl.affine_range(2):
        bank = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=a, moving=a)
        nisa.tensor_copy(dst=matmul[:, i_part * 4:i_part * 4 + 4], src=bank)
    column = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    BETWEEN
    sums = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=sums, data=matmul, op0=nl.add, operand0=column)
"""


@pytest.mark.parametrize(
    "between",
    [
        "nisa.dma_copy(dst=column, src=a)",
        "nisa.tensor_reduce(dst=other, op=nl.add, data=matmul, axis=1)",
    ],
)
def test_what_is_not_there_yet_or_needed_elsewhere_is_copied(between):
    assert fuse_epilogues(COPIES.replace("BETWEEN", between)) is None


def test_shorter_tiles_are_tried_side_by_side():
    layouts = [*KernelLayout(late=3).neighbours(Choices(), is_first=False)]
    assert {(one.ways, one.late) for one in layouts if one.tile_length == 512} == {(1, 3), (4, 0)}
