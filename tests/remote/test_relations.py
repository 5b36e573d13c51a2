"""Metamorphic relations: right kernels keep them, references are held to them, and what else they catch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import nki_sim
import remote.local
import seeds
from nki_sim.program.ir import ArraySpec
from nki_sim.running import numerics
from remote.errors import InfrastructureError
from remote.evaluation_context import select_input_sets
from remote.judge import relations, suite
from remote.judge.tiled_reference import as_outputs
from seeds.inputs import draw_inputs
from seeds.spec import RelationSpec
from state.model import Verdict
from tests.support.sweeps import QUICK_PROBLEMS, parametrize_sweep

PROBLEMS = seeds.builtin_problems()


def find_relation(problem, run, *, size="reduced", tolerance=None, key=b"key", relation=None):
    spec = problem.spec
    if relation is not None:
        spec = spec.model_copy(update={"relations": (RelationSpec.model_validate(relation),)})
    inputs = draw_inputs(spec, size, spec.seeds[0])
    limit = spec.rel_l2 if tolerance is None else tolerance
    return relations.find_broken_relation(spec, size, inputs, run, tolerance=limit, key=key)


def reference_of(problem):
    names = {}
    exec(problem.files["reference.py"], names)
    return lambda arrays, boxes: as_outputs(names["reference"](*arrays), problem.spec)


def kernel_of(problem, source=None, size="reduced"):
    dims = problem.spec.dims(size)
    arrays = [ArraySpec(item.resolve_kernel_shape(dims), item.dtype) for item in problem.spec.inputs]
    program = nki_sim.trace(source or problem.kernel, args=arrays, target="trn2")
    return lambda arrays, boxes: numerics.run(program, arrays, only=boxes)


def smaller(problem):
    """Attention over half as many keys: its cost grows with their square."""
    if problem.name != "gqa_full":
        return problem
    sizes = {"reduced": {**problem.spec.dims("reduced"), "N": 512}}
    return replace(problem, spec=problem.spec.model_copy(update={"sizes": sizes}))


@parametrize_sweep("name", PROBLEMS, quick=QUICK_PROBLEMS)
def test_every_problem_says_what_must_hold_and_its_initial_kernel_keeps_it(name):
    problem = smaller(seeds.load_problem(name))
    permuted = [item for item in problem.spec.relations if "permute" in " ".join(item.inputs.values())]
    assert permuted, "what is drawn in secret needs an order to be drawn"
    assert find_relation(problem, kernel_of(problem)) is None


@parametrize_sweep(
    "name",
    ["bmm_softmax", "mamba", "rope_single_freq_apply", "rmsnorm_matmul"],
    quick=["bmm_softmax", "rmsnorm_matmul"],
)
def test_references_keep_them_to_rounding(name):
    problem = seeds.load_problem(name)
    assert find_relation(problem, reference_of(problem), tolerance=1e-7) is None


WRONG = {
    "silu is not linear": ("silu", {"linear": ["x"]}),
    "silu is not odd": ("silu", {"inputs": {"x": "negate"}, "outputs": {"out": "negate"}}),
    "softmax is not linear in scores": ("bmm_softmax", {"linear": ["rhs"]}),
    "rows of keys are in the order of out": ("bmm", {"inputs": {"rhs": "permute 2"}}),
    "time has a direction": (
        "mamba",
        {
            "inputs": {"delta": "permute 1", "u": "permute 1", "b": "permute 1", "c": "permute 1"},
            "outputs": {"out": "permute 1"},
        },
    ),
    "a scale that changes the result": ("matmul", {"inputs": {"lhs": "scale 2"}}),
    "a shift that does not cancel": ("bmm_softmax", {"inputs": {"rhs": "shift 1"}}),
    "an epsilon is in the way": (
        "add_rmsnorm_matmul",
        {"inputs": {"x": "scale 0.001953125", "z": "scale 0.001953125"}},
    ),
}


@parametrize_sweep(
    ("name", "relation"),
    WRONG.values(),
    ids=WRONG,
    quick=["silu is not linear", "an epsilon is in the way", "softmax is not linear in scores"],
)
def test_what_does_not_hold_of_the_mathematics_is_found_on_the_reference(name, relation):
    problem = seeds.load_problem(name)
    said = find_relation(problem, reference_of(problem), relation={"name": "claimed", **relation})
    assert said is not None
    assert said.startswith("relation 'claimed' does not hold: relative L2 error ")


def test_what_is_drawn_repeats_for_the_same_program_and_differs_between_programs():
    problem = seeds.load_problem("silu")
    seen = {}
    for key in (b"one", b"one", b"other"):
        taken = []

        def run(arrays, boxes, taken=taken):
            taken.append(arrays[0].copy())
            return [arrays[0]]

        assert find_relation(problem, run, key=key) is None
        seen.setdefault(key, []).append(taken[1])
    assert np.array_equal(*seen[b"one"])
    assert not np.array_equal(seen[b"one"][0], seen[b"other"][0])


@pytest.mark.slow
def test_only_parts_of_large_outputs_are_asked_for():
    problem = seeds.load_problem("silu")
    asked = []

    def run(arrays, boxes):
        asked.extend(boxes[0])
        return [arrays[0]]

    assert find_relation(problem, run, size="full") is None
    assert all(sum(end - first for first, end in box) <= 64 + 256 for box in asked)


def test_what_only_all_relations_together_show_is_said_of_them_all():
    problem = seeds.load_problem("silu")
    runs = []

    def run(arrays, boxes):
        runs.append(boxes)
        return [np.zeros_like(arrays[0]) if len(runs) == 2 else arrays[0]]

    assert find_relation(problem, run).startswith("relation 'all after each other' does not hold")


def test_outputs_that_are_not_finite_break_any_relation():
    problem = seeds.load_problem("silu")
    runs = []

    def run(arrays, boxes):
        runs.append(boxes)
        return [np.full_like(arrays[0], np.nan) if len(runs) % 2 == 0 else arrays[0]]

    assert "relative L2 error inf" in find_relation(problem, run)


@pytest.mark.parametrize(("length", "turn"), [(5, 0), (5, 3), (7, 7), (1, 9)])
def test_orders_of_arrays_and_of_their_parts_agree(length, turn):
    array = np.arange(length)
    turned = relations._turn_axis(array, 0, turn)
    assert turned.tolist() == [(turn - i) % length for i in range(length)]
    assert sorted(turned) == array.tolist()


# --- kernels that no comparison with the reference catches --------------------------

SELECTED = """
            known = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            corner = x[0:1, 0:1].broadcast(0, TILE_M)
            nisa.dma_copy(dst=known, src=corner)
            right = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=right, value=0.0)
            for value in VALUES:
                same = nl.ndarray((TILE_M, 1), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(dst=same, data=known, op0=nl.equal, operand0=value)
                nisa.tensor_tensor(dst=right, data1=right, data2=same, op=nl.maximum)
            nisa.tensor_scalar(dst=out_tile, data=out_tile, op0=nl.multiply, operand0=right)
"""
"""Zeroes the result unless the first element of x is one that the judge is known to draw."""


def knowing(problem) -> str:
    """A silu that is right on all inputs of the suite, and on no others."""
    sets = suite.all_sets(problem.spec)
    values = sorted({float(suite.draw_set(problem.spec, "reduced", name)[0][0, 0]) for name in sets})
    source = problem.kernel.replace(
        "\n            nisa.dma_copy(\n                dst=out[",
        SELECTED + "\n            nisa.dma_copy(\n                dst=out[",
    )
    return source.replace("\n\n\n@nki.jit", f"\nVALUES = {values!r}\n\n\n@nki.jit")


@pytest.mark.slow
async def test_a_kernel_that_knows_the_judges_inputs_is_caught_by_what_it_says_of_others(
    silu, evaluator, monkeypatch
):
    problem, source = silu.problem, knowing(silu.problem)
    honest, knows = kernel_of(problem), kernel_of(problem, source)
    for name in suite.all_sets(problem.spec):
        inputs = suite.draw_set(problem.spec, "reduced", name)
        assert np.array_equal(*(kernel(inputs, None)[0] for kernel in (honest, knows))), name
    assert not knows([np.ones((256, 2048), np.float32)], None)[0].any()

    answer = await evaluator.evaluate(silu.request(source, level="slices"), silu.blobs)
    assert answer.evaluation.verdict is Verdict.INCORRECT
    assert answer.evaluation.error.code == "wrong_result"
    assert "the input set that the home's secret decides" in answer.evaluation.error.message

    # Without that set relations are left.
    def select_known_sets(run, secret):
        wholes, sets = select_input_sets(run, secret)
        return wholes, tuple(name for name in sets if name != suite.secret_set(secret))

    monkeypatch.setattr(remote.local, "select_input_sets", select_known_sets)
    answer = await evaluator.evaluate(silu.request(source, level="one_seed"), silu.blobs)
    assert answer.evaluation.verdict is Verdict.INCORRECT
    assert answer.evaluation.error.code == "relation_broken"
    assert "do not depend on each other" in answer.evaluation.error.message


@pytest.mark.slow
async def test_a_wrong_declaration_is_the_problems_fault_not_a_kernels(bench, evaluator):
    files = dict(seeds.load_problem("silu").files)
    files["problem.toml"] = files["problem.toml"].replace(
        b"[work]", b'[[relations]]\nname = "linear, they say"\nlinear = ["x"]\n\n[work]'
    )
    made = bench(seeds.build_problem(files))
    with pytest.raises(InfrastructureError, match="'linear, they say' does not hold") as caught:
        await evaluator.evaluate(made.request(), made.blobs)
    assert caught.value.code == "reference_failed"
    assert not caught.value.retryable
