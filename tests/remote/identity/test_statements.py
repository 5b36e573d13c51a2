"""Two statements of each problem are the same formula, proven; one with a small fault is another."""

from __future__ import annotations

import math

import numpy as np
import pytest

from remote.judge.identity.expression_evaluation import evaluate_boxes
from remote.judge.identity.residues import DoubtFlags, ResidueDomain
from remote.judge.identity.tracing.recording import record_reference
from remote.judge.tiles import OutputTile
from tests.remote.identity.test_tracing import reference_of, small_spec
from tests.seeds.statements import STATEMENTS

UNFOLLOWED = {"rope_single_freq_apply"}  # it computes with complex numbers


def compare_statements(name, one, other, seed=b"a secret", descending=False):
    """Residues of two statements in some boxes of the output, and the marks of both."""
    spec = small_spec(name)
    dims = spec.dims("reduced")
    inputs = [(item.resolve_shape(dims), np.dtype(np.float32)) for item in spec.inputs]
    shape = spec.outputs[0].resolve_shape(dims)
    boxes = [
        OutputTile(0, tuple((0, min(3, size)) for size in shape)),
        OutputTile(0, tuple((max(size - 3, 0), size) for size in shape)),
    ]
    domain = ResidueDomain(seed, descending=descending)
    found = []
    for statement in (one, other):
        expression = record_reference(statement, inputs, [shape])
        found.append(evaluate_boxes(expression, boxes, domain))
    values = [np.concatenate([value.arrays[0].reshape(-1) for value in side]) for side in found]
    marks = [np.concatenate([domain.doubt_flags(value).reshape(-1) for value in side]) for side in found]
    return values, marks[0] | marks[1]


@pytest.mark.parametrize("name", sorted({*STATEMENTS} - UNFOLLOWED))
def test_two_statements_of_a_problem_are_one_formula(name):
    (one, other), marks = compare_statements(name, reference_of(name), STATEMENTS[name])
    agree = one == other
    # Roots of sums that have none in this field are not those of their multiples.
    assert agree[marks & DoubtFlags.ROOT == 0].all()
    assert (marks & DoubtFlags.ROOT == 0).any()


def test_turning_pairs_is_a_product_of_complex_numbers():
    def turned(x, cos, sin):
        half = len(x) // 2
        real = x[:half] * cos - x[half:] * sin
        return np.concatenate([real, x[half:] * cos + x[:half] * sin])

    (one, other), marks = compare_statements(
        "rope_single_freq_apply", reference_of("rope_single_freq_apply"), turned
    )
    assert (one == other).all()
    assert not marks.any()


def _no_decay(theta, g, m, v):
    root = np.sqrt((0.999 * v + 0.001 * g * g) * 1000.0)
    return theta - 0.01 * (0.9 * m + 0.1 * g) / (root + 1e-8)


def _no_epsilon(theta, g, m, v):
    root = np.sqrt((0.999 * v + 0.001 * g * g) * 1000.0)
    return theta * 0.99999 - 0.01 * (0.9 * m + 0.1 * g) / root


def _mean_off(theta, g, m, v):
    root = np.sqrt((0.999 * v + 0.001 * g * g) * 1000.0)
    return theta * 0.99999 - 0.01 * (0.9 * m + 0.1001 * g) / (root + 1e-8)


def _inverse(rows, epsilon):
    return 1.0 / np.sqrt(np.mean(rows * rows, axis=1, keepdims=True) + epsilon)


def _attention(q, k, v, scale=None, keys=None):
    group = q.shape[2] // k.shape[2]
    scale = scale or 1.0 / math.sqrt(q.shape[3])
    out = np.empty((q.shape[0], q.shape[2], q.shape[1], q.shape[3]))
    for head in range(q.shape[2]):
        scores = q[0, :, head] @ k[0, :keys, head // group].T * scale
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[0, head] = weights @ v[0, :keys, head // group] / weights.sum(axis=1, keepdims=True)
    return out


def _forgotten(delta, u, a, b, c):
    state, out = np.zeros(a.shape), np.empty(delta.shape)
    for t in range(delta.shape[1]):
        step = delta[:, t, None]
        state = np.exp(step * a) * state * (t != 20) + step * u[:, t, None] * b[:, t]
        out[:, t] = state @ c[:, t]
    return out


FAULTS = {
    "adamw without decay": ("adamw", _no_decay),
    "adamw without epsilon": ("adamw", _no_epsilon),
    "adamw with a constant off": ("adamw", _mean_off),
    "another epsilon": ("add_rmsnorm_matmul", lambda x, w, z, g: ((x + z) * _inverse(x + z, 1e-6) * g) @ w),
    "no gain": ("add_rmsnorm_matmul", lambda x, w, z, g: ((x + z) * _inverse(x + z, 1e-5)) @ w),
    "an epsilon too many": ("rmsnorm_matmul", lambda x, w: (x * _inverse(x, 1e-8)) @ w),
    "a sum for a mean": ("rmsnorm_matmul", lambda x, w: (x / np.linalg.norm(x, axis=1)[:, None]) @ w),
    "a norm before the sum": (
        "matmul_add_rmsnorm",
        lambda x, w, z, g: (x @ w * _inverse(x @ w, 1e-5) + z) * g,
    ),
    "a short product": ("matmul", lambda x, w: x[:, :-1] @ w[:-1]),
    "no low rank": ("lora", lambda x, w, a, b: x @ w),
    "a batch twice": ("bmm", lambda x, y: np.stack([x[0] @ y[0]] * 2)),
    "softmax over the wrong axis": ("bmm_softmax", lambda x, y: _softmax(x @ y, 1)),
    "unscaled attention": ("gqa_full", lambda q, k, v: _attention(q, k, v, scale=1.0)),
    "the last keys skipped": ("gqa_full", lambda q, k, v: _attention(q, k, v, keys=-4)),
    "a step that forgets": ("mamba", _forgotten),
    "another activation": ("silu", lambda x: x / (1.0 + np.exp(-1.702 * x))),
    "up and gate swapped": ("swiglu", lambda x, u, d, g: ((x @ u) / (1 + np.exp(-(x @ u))) * (x @ g)) @ d),
    "not transposed": ("transpose_matmul", lambda x, y: x.T[::-1] @ y),
    "sines swapped": (
        "rope_single_freq_apply",
        lambda x, c, s: np.concatenate([x[:64] * c + x[64:] * s, x[64:] * c - x[:64] * s]),
    ),
}  # fmt: skip


def _softmax(scores, axis):
    exps = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return exps / exps.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_formula_with_a_fault_is_another(fault):
    """Somewhere they differ, though all that reached the element is covered and no order matters."""
    name, statement = FAULTS[fault]
    certain = False
    for seed in (b"a secret", b"another", b"a third"):
        values, marks = compare_statements(name, reference_of(name), statement, seed)
        others, _ = compare_statements(name, reference_of(name), statement, seed, descending=True)
        stays = (values[0] == others[0]) & (values[1] == others[1])
        marks = np.where(stays, marks & ~np.uint8(DoubtFlags.ORDER), marks)
        certain |= bool(((values[0] != values[1]) & (marks == 0)).any())
    assert certain
