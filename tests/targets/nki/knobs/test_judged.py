"""Rendered kernels before the judge: problems of `seeds/` that the knob surface can express."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

import seeds
from remote.local import LocalEvaluator
from state.model import EvaluationRequest, Level, Verdict
from targets.nki.knobs.carried import FILE, read
from targets.nki.knobs.narrowing import default
from targets.nki.knobs.render import render
from targets.nki.knobs.sampling import sample
from targets.nki.knobs.tracing import trace
from targets.nki.knobs.tuning.problem import files
from targets.nki.knobs.variants import variants
from tests.support.blobs import Blobs
from tests.support.workloads import WORKLOADS

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def evaluator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalEvaluator]:
    home: Path = tmp_path_factory.mktemp("home")
    made = LocalEvaluator(home=home, slots=1, allow_weak_jail=True, secret="a secret of tests")
    yield made
    await made.aclose()


@pytest.mark.parametrize("name", [name for name in seeds.problems() if FILE in seeds.load(name).files])
async def test_the_judge_finds_the_graph_of_each_problem_right(name: str, evaluator: LocalEvaluator) -> None:
    """Its default, and a point drawn."""
    problem = seeds.load(name)
    graph = read(problem.files[FILE], "reduced", "trn2")
    for ir in (default(graph), sample(default(graph), Random(7))):
        await _check(problem, render(ir), evaluator)


@pytest.mark.parametrize(
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
    problem = seeds.load(name)
    graphs = {item.name: item.graph for item in variants(read(problem.files[FILE], "reduced", "trn2"))}
    await _check(problem, render(default(graphs[variant])), evaluator)


ATTENTION = """
import numpy as np


def reference(q, k, v):
    scores = q @ k.T * np.float32(0.125)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) @ v
"""


async def test_the_judge_finds_attention_in_rounds_right(evaluator: LocalEvaluator) -> None:
    specs = {"q": ((128, 64), "float32"), "k": ((512, 64), "float32"), "v": ((512, 64), "float32")}
    graph = trace(WORKLOADS["attention"].function, specs)
    graphs = {item.name: item.graph for item in variants(graph)}
    problem = seeds.from_files(files(graph, ATTENTION))
    source = render(default(graphs["online+affine+epilogue"]))
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
    graph = trace(WORKLOADS["attention"].function, {key: (item, "bfloat16") for key, item in shapes.items()})
    problem = seeds.from_files(files(graph, NARROW))
    await _check(problem, render(default(graph)), evaluator, size="full")


async def _check(
    problem: seeds.Problem, source: str, evaluator: LocalEvaluator, size: str = "reduced"
) -> None:
    blobs = Blobs()
    for data in problem.files.values():
        blobs.put(data)
    request = EvaluationRequest(
        candidate="r0.b0.p0.k0.f0", author="builtin", source=blobs.put(source.encode()),
        problem=problem.ref(), size=size, target="trn2", toolchain=evaluator.toolchain(),
        level=Level.SLICES,
    )  # fmt: skip
    answer = await evaluator.evaluate(request, blobs)
    assert answer.evaluation.verdict is Verdict.CORRECT, f"{answer.evaluation}\n{source}"
