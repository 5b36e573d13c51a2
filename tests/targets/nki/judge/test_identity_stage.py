"""The stage of identity, from a traced kernel and a file of what the reference computes to a verdict."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import seeds
from remote.judge.identity.tracing.recording import record_reference
from remote.judge.job import JudgeJob
from remote.judge.numerics import BadReferenceError
from remote.judge.rejection import RejectedError
from seeds.from_reference import OutputShape, make_problem, read_reference
from state.model import Verdict
from targets.nki.judge.identity import stage
from targets.nki.judge.identity.stage import IdentityFailedError, identify
from targets.nki.translation.translator import write_kernels
from tests.adversarial.model import edit
from tests.remote.identity.programs import shapes_of, trace_kernel
from tests.support.sweeps import QUICK_PROBLEMS, parametrize_sweep


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Makes jobs whose reference was followed; files are made once."""
    folder = tmp_path_factory.mktemp("expressions")

    def make(name: str) -> JudgeJob:
        problem = seeds.load_problem(name)
        path = folder / f"{name}.npz"
        if not path.exists():
            path.write_bytes(_followed(problem).to_bytes())
        return JudgeJob(
            spec=problem.spec, problem=problem.digest, size="reduced", target="trn2", references={},
            expression=str(path),
        )  # fmt: skip

    return make


def _followed(problem):
    names: dict[str, object] = {}
    exec(problem.files["reference.py"], names)
    dims = problem.spec.dims("reduced")
    inputs = [(item.resolve_shape(dims), np.dtype(item.dtype)) for item in problem.spec.inputs]
    return record_reference(
        names["reference"], inputs, [item.resolve_shape(dims) for item in problem.spec.outputs]
    )


def judged(job: JudgeJob, kernel: str):
    program = trace_kernel(kernel, shapes_of(job.spec.name))
    return identify(program, kernel.encode(), job)


def rejection(job: JudgeJob, kernel: str) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        judged(job, kernel)
    return caught.value


@parametrize_sweep("name", seeds.builtin_problems(), quick=QUICK_PROBLEMS)
def test_initial_kernels_are_proven(name: str, job) -> None:
    found = judged(job(name), seeds.load_problem(name).kernel)
    assert found.verdict == "proven", found.reason
    assert found.elements >= 8
    dims = job(name).spec.dims("reduced")
    size = sum(int(np.prod(item.resolve_shape(dims))) for item in job(name).spec.outputs)
    assert found.share_percent == pytest.approx(100 * found.elements / size)


def test_the_only_element_of_an_output_counts_once(tmp_path) -> None:
    path = tmp_path / "total.py"
    path.write_text('INPUT_SPECS = {"x": ((40, 30), "float32")}\n\n\ndef reference(x):\n    return x.sum()\n')
    problem = make_problem(read_reference(path), [OutputShape((1,), "float32")])
    names: dict[str, object] = {}
    exec(problem.files["reference.py"], names)
    formula = record_reference(names["reference"], [((40, 30), np.dtype("float32"))], [(1,)]).to_bytes()
    kernel = write_kernels(problem.spec, "full", formula)[0]
    (tmp_path / "total.npz").write_bytes(formula)
    job = JudgeJob(
        spec=problem.spec, problem=problem.digest, size="full", target="trn2", references={},
        expression=str(tmp_path / "total.npz"),
    )  # fmt: skip
    found = identify(trace_kernel(kernel, ((40, 30),)), kernel.encode(), job)
    assert (found.verdict, found.elements, found.share_percent) == ("proven", 1, 100.0)


def test_verdicts_repeat(job) -> None:
    kernel = edit("adamw", ("DECAY = 1.0 - 1e-5", "DECAY = 1.0"))
    assert str(rejection(job("adamw"), kernel)) == str(rejection(job("adamw"), kernel))


WRONG = {
    "weight decay left out": ("adamw", "DECAY = 1.0 - 1e-5", "DECAY = 1.0"),
    "an epsilon left out": ("add_rmsnorm_matmul", ", op1=nl.add, operand1=EPSILON", ""),
    "the last columns of a sum left out": (
        "bmm_softmax", "op=nl.add, data=exps, axis=1", "op=nl.add, data=exps[:, 0 : n - 1], axis=1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_other_formulas_are_rejected(what: str, job) -> None:
    name, old, new = WRONG[what]
    found = rejection(job(name), edit(name, (old, new)))
    assert (found.verdict, found.error.code) == (Verdict.INCORRECT, "not_identical")
    assert str(found).startswith(f"{job(name).spec.outputs[0].name}[")
    assert "differ by" in str(found)


def test_what_rounding_could_explain_is_not_rejected(job) -> None:
    found = judged(job("silu"), edit("silu", ("scale=-1.0", "scale=-1.000001")))
    assert found.verdict == "tested"


def test_an_input_that_cannot_matter_is_named(job) -> None:
    kernel = edit(
        "silu",
        ("op=nl.exp, data=x_tile, scale=-1.0", "op=nl.relu, data=x_tile"),
        ("data1=x_tile, data2=sigmoid, op=nl.multiply", "data1=exp_neg, data2=exp_neg, op=nl.maximum"),
        ("src=x[i_m * TILE_M : (i_m + 1) * TILE_M, i_n * TILE_N : (i_n + 1) * TILE_N]",
         "src=x[i_m * TILE_M : (i_m + 1) * TILE_M, 0:TILE_N]"),
    )  # fmt: skip
    found = rejection(job("silu"), kernel)
    assert found.error.code == "missing_dependence"
    assert re.match(r"out(\[\d+, [12]\d\d\d\]) cannot depend on x\1, the reference's does", str(found))


def test_without_a_followed_reference_kernels_are_tested(job) -> None:
    bare = job("silu").model_copy(update={"expression": ""})
    found = judged(bare, seeds.load_problem("silu").kernel)
    assert (found.verdict, found.elements) == ("tested", 0)
    assert "reference" in found.reason


def test_a_fault_of_an_evaluation_is_no_kernel_s(job, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(stage, "compare_formulas", fail)
    with pytest.raises(IdentityFailedError, match="the evaluation failed: MemoryError: no room"):
        judged(job("silu"), seeds.load_problem("silu").kernel)


def test_a_damaged_file_makes_no_verdict_wrong(job, tmp_path) -> None:
    path = Path(tmp_path) / "damaged.npz"
    path.write_bytes(b"PK not an expression")
    damaged = job("silu").model_copy(update={"expression": str(path)})
    assert judged(damaged, seeds.load_problem("silu").kernel).verdict == "tested"
    path.unlink()
    with pytest.raises(BadReferenceError):
        judged(damaged, seeds.load_problem("silu").kernel)
