"""Folders of targets, and a way to judge one source for them."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from remote.jail_backends import JailStrength, jail_strength
from remote.registry import EvaluatorResources, EvaluatorSpec
from seeds import Problem, build_problem
from state.model import ErrorInfo, Evaluation, Verdict
from targets.c import runner
from targets.folders.evaluators import create_evaluator
from targets.folders.target import SHIPPED
from tests.targets.c.kernels import PROBLEM
from tests.targets.evaluating import evaluate_kernel
from tests.targets.folders.command_target import write_command_target


@dataclass(frozen=True)
class Judged:
    """An evaluation and the counters of its profile."""

    evaluation: Evaluation
    counters: dict[str, float]

    @property
    def verdict(self) -> Verdict:
        return self.evaluation.verdict

    @property
    def error(self) -> ErrorInfo | None:
        return self.evaluation.error

    @property
    def latency_ms(self) -> float:
        assert self.evaluation.benchmark is not None, self.error
        return self.evaluation.benchmark.latency_ms


FolderJudge = Callable[..., Judged]


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A copy of the shipped RISC-V target, as a user's own."""
    return Path(shutil.copytree(SHIPPED / "riscv64", tmp_path / "mine"))


@pytest.fixture
def command_folder(tmp_path: Path) -> Path:
    """A target whose kernels a command runs."""
    return write_command_target(tmp_path / "adder")


@pytest.fixture(scope="module")
def module_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for a module: references are computed once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def judge(module_home: Path, monkeypatch: pytest.MonkeyPatch) -> FolderJudge:
    """Judges one source for a target, by default for the problem of the kernels in C."""
    if jail_strength() is JailStrength.WEAK:
        pytest.skip("needs bubblewrap")
    monkeypatch.setattr(runner, "CALL_S", 10.0)

    def evaluate(
        target: str | Path, source: str, *, toolchain: str = "", problem: Problem | None = None
    ) -> Judged:
        name = str(target)
        made = create_evaluator(EvaluatorSpec("folder", name), EvaluatorResources(module_home, slots=1))
        wanted = problem or build_problem(PROBLEM)
        answer = asyncio.run(evaluate_kernel(made, source, wanted, target=name, toolchain=toolchain))
        profile = answer.evaluation.profile
        told = json.loads(answer.artefacts[profile])["counters"] if profile else {}
        return Judged(answer.evaluation, told)

    return evaluate
