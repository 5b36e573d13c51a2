"""References and initial kernels: the right mathematics, correct on every seed, legal everywhere, plain."""

from __future__ import annotations

import ast
from functools import cache

import numpy as np
import pytest

import nki_sim
import seeds
from nki_sim import targets
from nki_sim.checks import program as checks
from nki_sim.program.ir import ArraySpec
from nki_sim.running import numerics
from remote.judge.numerics import output_fault, rel_l2
from seeds.inputs import draw_inputs
from targets.nki.judge import rules
from tests.seeds.statements import STATEMENTS
from tests.support.sweeps import QUICK_PROBLEMS, parametrize_sweep

PROBLEMS = seeds.builtin_problems()


def reference(problem):
    names = {}
    exec(problem.files["reference.py"], names)
    return names["reference"]


@cache
def trace_seed(name, size, target):
    problem = seeds.load_problem(name)
    dims = problem.spec.dims(size)
    args = [ArraySpec(item.resolve_shape(dims), item.dtype) for item in problem.spec.inputs]
    return nki_sim.trace(problem.kernel, args=args, target=target)


@parametrize_sweep("name", PROBLEMS, quick=QUICK_PROBLEMS)
def test_reference_agrees_with_an_independent_statement(name):
    problem = seeds.load_problem(name)
    inputs = draw_inputs(problem.spec, "reduced", 7)
    out = reference(problem)(*inputs)
    truth = STATEMENTS[name](*[array.astype(np.float64) for array in inputs])
    assert out.dtype == np.float32
    assert rel_l2([out], [truth]) < 1e-7


@parametrize_sweep("name", PROBLEMS, quick=QUICK_PROBLEMS)
def test_every_input_counts_and_stays_as_it_is(name):
    problem = seeds.load_problem(name)
    inputs = draw_inputs(problem.spec, "reduced", 0)
    kept = [array.copy() for array in inputs]
    out = reference(problem)(*inputs)
    assert all(np.array_equal(array, copy) for array, copy in zip(inputs, kept, strict=True))
    for place, array in enumerate(inputs):
        changed = [*inputs[:place], np.flip(array), *inputs[place + 1 :]]
        assert rel_l2([reference(problem)(*changed)], [out]) > problem.spec.rel_l2, place


@pytest.mark.parametrize("name", ["bmm_softmax", "gqa_full", "silu", "swiglu"])
def test_references_with_exponentials_survive_large_inputs(name):
    problem = seeds.load_problem(name)
    inputs = [array * np.float32(1000) for array in draw_inputs(problem.spec, "reduced", 0)]
    with np.errstate(all="raise", under="ignore"):
        out = reference(problem)(*inputs)
    assert np.isfinite(out).all()
    assert out.any()


def test_silu_reference_survives_extreme_inputs():
    x = np.array([[-1e30, -200.0, 0.0, 200.0, 1e30]], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        out = reference(seeds.load_problem("silu"))(x)
    assert np.isfinite(out).all()
    assert out.tolist()[0][2:] == [0.0, 200.0, np.float32(1e30)]


@parametrize_sweep("name", PROBLEMS, quick=QUICK_PROBLEMS)
def test_correct_on_every_seed_at_the_reduced_size(name):
    problem = seeds.load_problem(name)
    program = trace_seed(name, "reduced", "trn2")
    assert output_fault(program.array_specs(program.outputs), problem.spec, "reduced") is None
    for seed in problem.spec.seeds:
        inputs = draw_inputs(problem.spec, "reduced", seed)
        assert rel_l2(numerics.run(program, inputs), [reference(problem)(*inputs)]) < problem.spec.rel_l2


@pytest.mark.parametrize("target", targets.names())
@parametrize_sweep("size", ["reduced", "full"], quick=1)
@pytest.mark.parametrize("name", PROBLEMS)
def test_obeys_every_rule(name, size, target):
    assert checks.check(trace_seed(name, size, target), targets.load(target)) == []


@parametrize_sweep("name", PROBLEMS, quick=QUICK_PROBLEMS)
def test_the_reduced_size_keeps_the_loops_and_the_tails_of_the_full_one(name):
    full, reduced = (instructions(trace_seed(name, size, "trn2")) for size in ("full", "reduced"))
    assert {line: len(set(forms)) for line, forms in full.items()} == {
        line: len(set(forms)) for line, forms in reduced.items()
    }
    assert {line for line in full if len(full[line]) > 1} == {
        line for line in reduced if len(reduced[line]) > 1
    }


def instructions(program):
    """Per line of the kernel its instructions, each as the number of its form: shapes and flags."""
    found = {}
    for line, form in zip(program.lines.tolist(), program.form_ids.tolist(), strict=True):
        found.setdefault(line, []).append(form)
    return found


@pytest.mark.parametrize("name", PROBLEMS)
def test_passes_the_static_rules_and_is_plain(name):
    source = seeds.load_problem(name).kernel
    tree = ast.parse(source)
    assert rules.check_source(tree, source) == []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions] == [name]
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    assert loops
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.While)]
    written = {word.arg for word in ast.walk(tree) if isinstance(word, ast.keyword)}
    assert not written & {"engine", "address", "dge_mode", "priority", "perf_mode", "tile_position"}
