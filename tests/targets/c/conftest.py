"""An evaluator of C kernels with short measurements, and a way to judge one source."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.evaluator import EvaluationAnswer
from remote.jail_backends import JailStrength, jail_strength
from remote.judge_service import JudgeService
from seeds import Problem, build_problem
from state.model import Evaluation
from targets.c import evaluator, runner
from targets.c.evaluator import CpuEvaluator
from targets.c.runner import TimingTask
from tests.targets.c.kernels import PROBLEM
from tests.targets.evaluating import evaluate_kernel

SHORT = TimingTask(warmups=1, pairs=8, rounds=3, seconds=30.0)
Answer = Callable[..., EvaluationAnswer]
Judge = Callable[..., Evaluation]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for a module: references are computed once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Evaluates one source, by default for the problem of `kernels`, and returns its artefacts too."""
    if not (shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("needs gcc")
    if jail_strength() is JailStrength.WEAK:
        pytest.skip("needs bubblewrap")
    monkeypatch.setattr(runner, "CALL_S", 3.0)
    monkeypatch.setattr(evaluator, "UNSTABLE_RATIO", 100.0)  # no test depends on how busy the machine is

    def evaluate(source: str, *, problem: Problem | None = None, **base: Any) -> EvaluationAnswer:
        cpu = CpuEvaluator(JudgeService(home=home, slots=1), task=SHORT)
        wanted = problem or build_problem(PROBLEM)
        return asyncio.run(evaluate_kernel(cpu, source, wanted, target="x86", **base))

    return evaluate


@pytest.fixture
def judge(answer: Answer) -> Judge:
    """Judges one source, by default for the problem of `kernels`."""
    return lambda source, **more: answer(source, **more).evaluation
