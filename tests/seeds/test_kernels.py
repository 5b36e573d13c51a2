"""The initial kernels: correct on every seed, legal on every target, and plain."""

from __future__ import annotations

import ast

import numpy as np
import pytest

import nki_sim
import seeds
from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.program.ir import ArraySpec
from nki_sim.running import numerics
from remote.judge import rules
from seeds.inputs import draw


def reference(problem):
    names = {}
    exec(problem.files["reference.py"], names)
    return names["reference"]


def independent(name, arrays):
    """Second statements of the mathematics, not sharing code or formulation with the references."""
    arrays = [np.asarray(array, dtype=np.longdouble) for array in arrays]
    if name == "silu":
        (x,) = arrays
        return x * (0.5 * (1 + np.tanh(x / 2)))
    left, right = arrays
    product = np.einsum("mk,kn->mn", left, right)
    if name == "matmul":
        return product
    return product * (left.shape[1] ** 0.5) / np.sqrt((left * left).sum(axis=1))[:, None]


def traced(problem, size, target):
    dims = problem.spec.dims(size)
    args = [ArraySpec(item.resolve(dims), item.dtype) for item in problem.spec.inputs]
    return nki_sim.trace(problem.kernel, args=args, target=target)


def error(out, truth):
    truth = truth.astype(np.float64)
    return np.linalg.norm(out.astype(np.float64) - truth) / np.linalg.norm(truth)


@pytest.mark.parametrize("name", ["matmul", "rmsnorm_matmul", "silu"])
def test_reference_agrees_with_an_independent_statement(name):
    problem = seeds.load(name)
    generator = np.random.default_rng(7)
    dims = {"M": 24, "N": 40, "K": 16}
    shapes = [item.resolve(dims) for item in problem.spec.inputs]
    arrays = [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]
    out = reference(problem)(*arrays)
    assert out.dtype == np.float32
    assert error(out, independent(name, arrays)) < 1e-7


def test_silu_reference_survives_extreme_inputs():
    x = np.array([[-1e30, -200.0, 0.0, 200.0, 1e30]], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        out = reference(seeds.load("silu"))(x)
    assert np.isfinite(out).all()
    assert out.tolist()[0][2:] == [0.0, 200.0, np.float32(1e30)]


@pytest.mark.parametrize("name", ["matmul", "rmsnorm_matmul", "silu"])
def test_correct_on_every_seed_at_the_reduced_size(name):
    problem = seeds.load(name)
    program = traced(problem, "reduced", "trn2")
    for seed in problem.spec.seeds:
        inputs = draw(problem.spec, "reduced", seed)
        (out,) = numerics.run(program, inputs)
        assert error(out, reference(problem)(*inputs)) < problem.spec.rel_l2


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("matmul", "reduced"),
        ("rmsnorm_matmul", "reduced"),
        ("rmsnorm_matmul", "full"),
        ("silu", "reduced"),
        ("silu", "full"),
    ],
)
def test_obeys_every_rule(name, size, target):
    problem = seeds.load(name)
    assert checks.check(traced(problem, size, target), targets.load(target)) == []


@pytest.mark.parametrize("name", ["matmul", "rmsnorm_matmul", "silu"])
def test_passes_the_static_rules_and_is_plain(name):
    source = seeds.load(name).kernel
    tree = ast.parse(source)
    assert rules.check(tree, source) == []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions] == [name]
    constants = [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)]
    assert all(constant.startswith("TILE_") for constant in constants)
