"""Loops of sums: they keep apart from the loops of what is summed up, and equal products have one tile."""

from __future__ import annotations

import re

import numpy as np
import pytest

from targets.nki.translation.access import Atom, make_access
from targets.nki.translation.patterns import find_cut
from targets.nki.translation.renaming import find_alike
from targets.nki.translation.stage import Store
from targets.nki.translation.translator import write_kernels
from targets.nki.translation.values import Binary, Buffer, Contract, Load, Unary
from tests.targets.nki.translation.test_kernels import assert_computes, translate


def product_with_a_function_of_its_operand(q, w, k, v):
    h, s = np.tanh(q @ w), k.T @ v
    return h @ (s - np.tanh(s @ w))


def polynomial_of_a_product(x):
    a = x @ x.T / x.shape[1]
    return (3.4 * x + (2.0 * a @ a - 4.7 * a) @ x) / 16


def polynomial_of_another_product(x, w):
    a = np.tanh(x @ w)
    return (a + a @ a / 16) @ x / 64


def newton_schulz(x):
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(2):
        a = x @ x.T
        x = 3.4445 * x + (2.0315 * a @ a - 4.775 * a) @ x
    return x


def two_steps(x):
    for _ in range(2):
        x = 1.5 * x - 0.5 * (x @ x.T / x.shape[1]) @ x
    return x


def chunks(q, k, v, g):
    state, found = np.zeros((16, 16)), []
    for at in range(0, 64, 16):
        qc, kc, vc = q[at : at + 16], k[at : at + 16], v[at : at + 16]
        b = np.cumsum(-np.abs(g[at : at + 16]) * 0.1)
        decay = np.tril(np.exp(b[:, None] - b[None, :]))
        found.append((qc @ kc.T * decay) @ vc + np.exp(b)[:, None] * (qc @ state))
        state = np.exp(b[-1]) * state + (kc * np.exp(b[-1] - b)[:, None]).T @ vc
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("reference", "shapes"),
    [
        (product_with_a_function_of_its_operand, [(32, 16), (16, 16), (16, 16), (16, 16)]),
        (polynomial_of_a_product, [(24, 40)]),
        (polynomial_of_a_product, [(200, 64)]),
        (polynomial_of_another_product, [(24, 40), (40, 24)]),
        (polynomial_of_another_product, [(200, 64), (64, 200)]),
        (newton_schulz, [(24, 40)]),
        (two_steps, [(256, 96)]),
        (chunks, [(64, 16), (64, 16), (64, 16), (64,)]),
        (lambda x: x.sum(axis=0) @ x, [(24, 24)]),
        (lambda x: np.exp(x).sum() + np.exp(np.diagonal(x)).sum(), [(24, 24)]),
    ],
)
def test_a_sum_has_loops_of_its_own(reference, shapes):
    spec, formula, inputs, outputs = translate(reference, shapes)
    assert_computes(write_kernels(spec, "full", formula)[0], inputs, outputs)


def test_a_product_is_computed_once_for_all_loops_that_it_is_needed_along():
    spec, formula, inputs, outputs = translate(polynomial_of_a_product, [(256, 320)])
    source = write_kernels(spec, "full", formula)[0]
    assert_computes(source, inputs, outputs)
    assert len(re.findall(r"nc_matmul\(", source)) == 3  # x @ x.T, a @ a, and the one with x


def load(buffer, *terms):
    return Load(0, buffer, make_access(0, terms))


def make_product(buffer, row, column, over, *, function="tanh"):
    left, right = load(buffer, (row, 8), (over, 1)), load(buffer, (column, 8), (over, 1))
    return Contract(1, ((Unary(2, function, left), Unary(2, "tanh", right)),), ((over,),))


def test_products_along_other_loops_are_the_same_with_either_operand_first():
    x, (a, b, c, k) = Buffer("x", (8, 8)), (Atom(name, 8) for name in "abck")
    one, two = make_product(x, a, b, k), make_product(x, b, c, a)
    others = make_product(x, a, b, k, function="exp"), make_product(Buffer("y", (8, 8)), a, b, k)
    found = find_alike([one, two, *others])
    assert found[one] == [(two, {b: a, c: b}), (two, {c: a, b: b})]
    assert [other for other, _ in found[two]] == [one, one]
    assert not any(found[other] for other in others)


def test_a_stage_without_sums_is_cut_in_the_middle():
    x, a = Buffer("x", (8,)), Atom("a", 8)
    value = load(x, (a, 1))
    for node in range(1, 8):
        value = Binary(node, "multiply", Unary(node, "tanh", value), load(x, (a, 1)))
    assert find_cut([Store(value, Buffer("out", (8,)), make_access(0, [(a, 1)]))]) in {3, 4}


@pytest.mark.parametrize(
    "reference",
    [
        lambda x, y: (x[:, :, None] * y[:, None, :]).mean(axis=0),
        lambda x, y: (x.T[:, :, None] * y[None, :, :]).sum(axis=1) / 16,
    ],
)
def test_products_that_are_broadcast_and_summed_up_are_those_of_matrices(reference):
    spec, formula, inputs, outputs = translate(reference, [(40, 24), (40, 16)])
    source = write_kernels(spec, "full", formula)[0]
    assert_computes(source, inputs, outputs)
    assert "nc_matmul" in source
    assert "tensor_reduce" not in source
