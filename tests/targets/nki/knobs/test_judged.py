"""Rendered kernels before the judge: problems of `seeds/` that the knob surface can express."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

import seeds
from remote.judge_service import JudgeService
from remote.local import LocalEvaluator
from state.model import EvaluationRequest, Level, Verdict
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.sampling import sample_ir
from targets.nki.knobs.tracing import trace_workload
from targets.nki.knobs.tuning.problem import problem_files
from targets.nki.knobs.variants import make_variants
from targets.nki.knobs.workload_file import WORKLOAD_FILE, load_graph
from tests.support.blobs import Blobs
from tests.support.sweeps import parametrize_sweep
from tests.support.workloads import WORKLOADS

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def evaluator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalEvaluator]:
    home: Path = tmp_path_factory.mktemp("home")
    made = LocalEvaluator(
        JudgeService(home=home, slots=1, allow_weak_jail=True, secret="a secret of tests"), target="trn2"
    )
    yield made
    await made.aclose()


@parametrize_sweep(
    "name",
    [name for name in seeds.builtin_problems() if WORKLOAD_FILE in seeds.load_problem(name).files],
    quick=["silu"],
)
async def test_the_judge_finds_the_graph_of_each_problem_right(name: str, evaluator: LocalEvaluator) -> None:
    """Its default, and a point drawn."""
    problem = seeds.load_problem(name)
    graph = load_graph(problem.files[WORKLOAD_FILE], "reduced", "trn2")
    for ir in (default_ir(graph), sample_ir(default_ir(graph), Random(7))):
        await _check(problem, render_kernel(ir), evaluator)


@parametrize_sweep(
    ("name", "variant"),
    [
        ("rmsnorm_matmul", "row_scale+epilogue"),
        ("add_rmsnorm_matmul", "row_scale"),
        ("bmm_softmax", "affine+epilogue"),
    ],
)
async def test_the_judge_finds_variants_of_problems_right(
    name: str, variant: str, evaluator: LocalEvaluator
) -> None:
    problem = seeds.load_problem(name)
    graphs = {
        item.name: item.graph
        for item in make_variants(load_graph(problem.files[WORKLOAD_FILE], "reduced", "trn2"))
    }
    await _check(problem, render_kernel(default_ir(graphs[variant])), evaluator)


ATTENTION = """
import numpy as np


def reference(q, k, v):
    scores = q @ k.T * np.float32(0.125)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) @ v
"""


@pytest.mark.slow
async def test_the_judge_finds_attention_in_rounds_right(evaluator: LocalEvaluator) -> None:
    specs = {"q": ((128, 64), "float32"), "k": ((512, 64), "float32"), "v": ((512, 64), "float32")}
    graph = trace_workload(WORKLOADS["attention"].function, specs)
    graphs = {item.name: item.graph for item in make_variants(graph)}
    problem = seeds.build_problem(problem_files(graph, ATTENTION))
    source = render_kernel(default_ir(graphs["online+affine+epilogue"]))
    assert "fade" in source
    await _check(problem, source, evaluator, size="full")


NARROW = """
import numpy as np


def reference(q, k, v):
    q, k, v = (item.astype(np.float32) for item in (q, k, v))
    scores = q @ k.T * np.float32(0.125)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) @ v
"""


async def test_the_judge_finds_attention_in_bfloat16_right(evaluator: LocalEvaluator) -> None:
    """Also beside inputs for which the largest score of a row is one of chance."""
    shapes = {"q": (128, 64), "k": (512, 64), "v": (512, 64)}
    graph = trace_workload(
        WORKLOADS["attention"].function, {key: (item, "bfloat16") for key, item in shapes.items()}
    )
    problem = seeds.build_problem(problem_files(graph, NARROW))
    await _check(problem, render_kernel(default_ir(graph)), evaluator, size="full")


async def _check(
    problem: seeds.Problem, source: str, evaluator: LocalEvaluator, size: str = "reduced"
) -> None:
    blobs = Blobs()
    for data in problem.files.values():
        blobs.put(data)
    request = EvaluationRequest(
        candidate="r0.b0.p0.k0.f0", author="builtin", source=blobs.put(source.encode()),
        problem=problem.make_ref(), size=size, target="trn2", toolchain=evaluator.toolchain(),
        level=Level.SLICES,
    )  # fmt: skip
    answer = await evaluator.evaluate(request, blobs)
    assert answer.evaluation.verdict is Verdict.CORRECT, f"{answer.evaluation}\n{source}"
