"""Graphs of references' formulas: they compute the reference, or the reason is named."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from remote.judge.identity.tracing.recording import record_reference
from remote.judge.numerics import rel_l2
from seeds.from_reference import read_reference
from targets.nki.knobs.errors import WorkloadError
from targets.nki.knobs.formula_graph import graph_of_formula
from targets.nki.knobs.interpret import interpret_kernel
from targets.nki.knobs.lowering import lower_kernel
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.variants import make_variants

ENGINEERS = Path(__file__).parents[1] / "translation" / "engineers"
SHAPES = {"x": (128, 256), "y": (128, 256), "w": (256, 128), "row": (256,), "column": (128, 1), "one": (128,)}


def graph_of(reference, inputs):
    result = np.asarray(reference(*(item.astype(np.float64) for item in inputs.values())))
    types = [(item.shape, item.dtype) for item in inputs.values()]
    formula = record_reference(reference, types, [result.shape])
    specs = {name: (item.shape, "float32") for name, item in inputs.items()}
    return graph_of_formula(formula.to_bytes(), specs, name="kernel", target="trn2"), result


def drawn(*names, positive=False):
    rng = np.random.default_rng(2)
    found = {name: rng.standard_normal(SHAPES[name]).astype(np.float32) for name in names}
    return {name: np.abs(item) + 0.1 for name, item in found.items()} if positive else found


@pytest.mark.parametrize(
    ("names", "reference"),
    [
        ("xw", lambda x, w: x @ w),
        ("x", lambda x: x.T),
        ("xy", lambda x, y: x @ y.T),
        ("xy", lambda x, y: x.T @ y),
        ("wxy", lambda w, x, y: np.tanh((x + y) @ w).T),
        ("xy", lambda x, y: 3.0 - x / np.sqrt(y)),
        ("xy", lambda x, y: np.maximum(x, 0.0) / (1.0 + np.exp(-y))),
        ("x", lambda x: x**0.5 + 1 / x),
        ("x", lambda x: (x - x.max(1, keepdims=True)) / x.sum(axis=1)[:, None]),
        ("x", lambda x: 1.0 - x / (x * x).sum(1, keepdims=True) ** 0.5),
        ("x", lambda x: np.sum(np.abs(x), axis=1)),
        (("x", "row"), lambda x, row: row - x * 2),
        (("x", "one"), lambda x, one: one[:, None] - x),
        (("x", "y", "one"), lambda x, y, one: (x * one[:, None]) @ y.T),
    ],
)
def test_a_graph_computes_its_formula(names, reference):
    inputs = drawn(*names, positive=True)
    graph, result = graph_of(reference, inputs)
    for variant in make_variants(graph):
        found = interpret_kernel(lower_kernel(default_ir(variant.graph)), inputs)
        assert rel_l2([np.asarray(found).reshape(result.shape)], [result]) < 2e-6
    assert [*graph.inputs] == [*inputs]


@pytest.mark.parametrize(
    "name", ["cosine_pairs", "kl_divergence_rows", "triplet_margin", "weight_norm_linear"]
)
def test_references_of_engineers_have_graphs(name):
    file = read_reference(ENGINEERS / f"{name}.py")
    rng = np.random.default_rng(4)
    inputs = {
        key: (np.abs(rng.standard_normal(shape)) + 0.05).astype(np.float32)
        for key, (shape, _) in file.inputs.items()
    }
    graph, result = graph_of(runpy.run_path(str(ENGINEERS / f"{name}.py"))["reference"], inputs)
    found = interpret_kernel(lower_kernel(default_ir(graph)), inputs)
    assert rel_l2([np.asarray(found).reshape(result.shape)], [result]) < file.tolerance


@pytest.mark.parametrize(
    ("names", "reference", "message"),
    [
        ("x", lambda x: np.cumsum(x, axis=1), "is no number"),
        ("x", lambda x: x.sum(axis=0), "no operator folds the axes"),
        ("x", lambda x: x[:, :128] + x[:, 128:], "no operator gives the part"),
        ("x", lambda x: np.where(x > 0, x, 0.0), "no operator computes select"),
        ("x", np.sin, "no operator computes np.sin"),
        ("xy", lambda x, y: x + 1.0, "input 'y' reaches no result"),
        (("x", "column"), lambda x, column: x * column, "no axis of one element"),
        ("x", lambda x: x @ x.T, "one dimension"),
    ],
)
def test_what_operators_cannot_express_is_named(names, reference, message):
    with pytest.raises(WorkloadError, match=message):
        graph_of(reference, drawn(*names))
