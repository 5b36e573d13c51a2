"""Workbenches for tools on a real problem, judged by the simulator; they may share one `SimulatedLab`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import remote
import seeds
from agent_core.effects import LearningContext
from agent_core.prompting import builtin_prompts
from agent_core.tools.rewriting import KernelPlace, create_rewriter
from agent_core.tools.workbench import KernelTask, LabVerdict, RefusedKernel, Workbench
from remote.evaluator import ExplanationRequest
from remote.judge.job import JudgeOutcome
from remote.judge_service import JudgeService
from remote.local import LocalEvaluator
from state.errors import BlobMissing
from state.model import (
    Candidate,
    EvaluationRequest,
    KernelExplanation,
    Level,
    digest_of,
)
from targets.registry import starting_kernel

EMPTY = LearningContext(memory=(), reflections=(), attempts=(), credits={})


@dataclass
class Blobs:
    blobs: dict[str, bytes] = field(default_factory=dict)

    def add(self, data: bytes) -> str:
        self.blobs[digest_of(data)] = data
        return digest_of(data)

    def get_blob(self, digest: str, /) -> bytes:
        if digest not in self.blobs:
            raise BlobMissing(digest)
        return self.blobs[digest]


class SimulatedLab:
    """Judges kernels of one problem with the simulator, and remembers verdicts."""

    def __init__(self, home: Path, *, problem: str = "silu", size: str = "reduced", target: str = "trn2"):
        self.problem, self.size, self.target = seeds.load_problem(problem), size, target
        judge = JudgeService(home=home, slots=1, allow_weak_jail=True, secret="a secret of tests")
        self.evaluator = LocalEvaluator(judge, target=target)
        self.rewriter = create_rewriter(target)
        self.blobs = Blobs()
        for data in self.problem.files.values():
            self.blobs.add(data)
        self._known: dict[str, LabVerdict] = {}

    async def explain(self, source: str, topics: Sequence[str]) -> KernelExplanation | RefusedKernel:
        request = ExplanationRequest(
            author="model",
            source=self.blobs.add(source.encode()),
            problem=self.problem.make_ref(),
            size=self.size,
            target=self.target,
            topics=tuple(topics),
        )
        found = await self.evaluator.explain(request, self.blobs)
        if isinstance(found, JudgeOutcome):
            return RefusedKernel(verdict=found.verdict, stage=found.stage, error=found.error)
        return found

    async def evaluate(self, source: str) -> LabVerdict:
        if source not in self._known:
            self._known[source] = await self._judge(source)
        return self._known[source]

    async def _judge(self, source: str) -> LabVerdict:
        request = EvaluationRequest(
            candidate="r1.b0.p0.k0.f0",
            author="model",
            source=self.blobs.add(source.encode()),
            problem=self.problem.make_ref(),
            size=self.size,
            target=self.target,
            toolchain=self.evaluator.toolchain(),
            level=Level.SLICES,
        )
        answer = await self.evaluator.evaluate(request, self.blobs)
        found = answer.evaluation
        profile: Mapping[str, Any] = json.loads(answer.artefacts[found.profile]) if found.profile else {}
        return LabVerdict(found, profile, cache_key=digest_of(source.encode()))

    async def aclose(self) -> None:
        await self.evaluator.aclose()
        if self.rewriter is not None:
            await self.rewriter.aclose()


async def create_workbench(lab: SimulatedLab, context: LearningContext = EMPTY) -> Workbench:
    """Return the workbench of a session that begins with the problem's kernel."""
    source = starting_kernel(lab.problem, lab.target).decode()
    first = (await lab.evaluate(source)).evaluation
    assert first.benchmark is not None
    parent = Candidate(
        id="r0.b0.p0.k0.f0",
        parent=None,
        lineage="r0.b0.p0.k0.f0",
        round=0,
        source=digest_of(source.encode()),
        code=first.code,
        technique=None,
        title="initial",
        benchmark=first.benchmark,
        profile=None,
        bottleneck=first.bottleneck,
    )
    task = KernelTask(
        place=KernelPlace(lab.problem.spec, lab.size, lab.target),
        parent=parent,
        bounds=remote.compute_bounds(lab.problem, lab.size, lab.target),
        within_percent=2.0,
    )
    return Workbench(
        task=task,
        lab=lab,
        context=context,
        prompts=builtin_prompts(),
        versions=[source],
        rewriter=lab.rewriter,
    )
