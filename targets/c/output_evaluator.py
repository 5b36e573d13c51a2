"""What evaluators share that run kernels on a device and judge the outputs at home, as those of hosts are.

One evaluation: static rules, compilation, a run on the judge's input sets, the comparison of its outputs in a
worker, and a measurement. Subclasses say how kernels are compiled, run and measured.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from remote.cache import required_level
from remote.evaluation_context import (
    EvaluationContext,
    begin_evaluation,
    lint_kernel,
    make_answer,
    select_input_sets,
)
from remote.evaluator import BlobReader, EvaluationAnswer, PredictionRequest
from remote.judge.job import HostOutputs, JudgeOutcome
from remote.judge.suite import secret_set
from remote.judge_service import JudgeService, select_judged_sets
from state.model import ErrorInfo, EvaluationRequest, PredictedLatency, Verdict
from targets.c.compiler import BuiltKernel
from targets.c.judge import NOT_PREDICTED
from targets.c.runner import ComparisonTask, ComputedOutputs
from targets.registry import describe_change

_TIMED_SETS = 2
"""Seeds on whose inputs kernels are timed, besides the secret set: bounded for the memory of large
problems."""


class OutputEvaluator(ABC):
    """Judges and measures kernels of one device."""

    name: str

    def __init__(self, judge: JudgeService) -> None:
        self._judge = judge

    @abstractmethod
    def toolchain(self) -> str:
        """Return what compiles and runs kernels.

        Raises:
            InfrastructureError: it is not here.
        """

    @abstractmethod
    async def build(self, run: EvaluationContext) -> BuiltKernel | JudgeOutcome:
        """Compile a kernel; return the verdict on one that does not compile."""

    @abstractmethod
    async def compute(
        self, run: EvaluationContext, built: BuiltKernel, task: ComparisonTask
    ) -> ComputedOutputs:
        """Run a kernel on input sets, in order, until it fails on one."""

    @abstractmethod
    async def measure(
        self,
        run: EvaluationContext,
        built: BuiltKernel,
        outcome: JudgeOutcome,
        kept: Mapping[str, Sequence[bytes]],
    ) -> JudgeOutcome:
        """Measure a kernel whose outputs are right; `kept` are those of the timed sets."""

    async def check_relations(self, run: EvaluationContext, built: BuiltKernel) -> JudgeOutcome | None:
        """Return the verdict on a kernel that breaks a relation of the problem; None if it keeps them."""
        del run, built
        return None

    async def prepare(self) -> None:
        """Look for what compiles and runs kernels.

        Raises:
            InfrastructureError: it is not here.
        """
        await asyncio.to_thread(self.toolchain)

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge and measure one candidate; cancelling ends its jail.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        run = begin_evaluation(request, blobs)
        run.device_s = 0.0
        async with self._judge.slots:
            outcome = await self._judge_kernel(run)
        changed = describe_change(request.target, request.toolchain) if request.toolchain else None
        if changed is not None:
            warning = ErrorInfo(code="target_changed", message=changed)
            outcome = outcome.model_copy(update={"warnings": (*outcome.warnings, warning)})
        return make_answer(run, outcome, self.toolchain())

    async def predict(self, request: PredictionRequest, blobs: BlobReader, /) -> Sequence[PredictedLatency]:
        """Return for each kernel the reason why there is no prediction."""
        del blobs
        return [PredictedLatency(error=NOT_PREDICTED) for _ in request.sources]

    async def aclose(self) -> None:
        """Kill every worker."""
        await self._judge.aclose()

    async def _judge_kernel(self, run: EvaluationContext) -> JudgeOutcome:
        async with run.time_stage("lint"):
            refused = lint_kernel(run.source, run.request.target)
        if refused is not None:
            return refused
        self._judge.require_trusted(run.request.author)
        async with run.time_stage("compile"):
            built = await self.build(run)
        if isinstance(built, JudgeOutcome):
            return built
        outcome, kept = await self._compare_outputs(run, built)
        if outcome.verdict is not Verdict.CORRECT:
            return outcome
        if run.problem.spec.relations:
            async with run.time_stage("relations"):
                broken = await self.check_relations(run, built)
            if broken is not None:
                return broken
        async with run.time_stage("benchmark"):
            outcome = await self.measure(run, built, outcome, kept)
        wanted = required_level(run.request, outcome.benchmark)
        if wanted is not run.level:
            run.level = wanted
            again, _ = await self._compare_outputs(run, built)
            if again.verdict is not Verdict.CORRECT:
                return again
            outcome = outcome.model_copy(update={"rel_l2": again.rel_l2})
        return outcome

    async def _compare_outputs(
        self, run: EvaluationContext, built: BuiltKernel
    ) -> tuple[JudgeOutcome, Mapping[str, Sequence[bytes]]]:
        """Run the kernel on what the level compares, and judge its outputs; return those of the timed sets
        too."""
        from remote.judge import host_outputs

        secret = self._judge.references.secret
        wholes, sets = select_input_sets(run, secret)
        async with run.time_stage("references"):
            found = await self._judge.load_references(run, wholes, sets)
            judged, wanted = await asyncio.to_thread(select_judged_sets, run, found, wholes, sets)
        spec, size = run.problem.spec, run.request.size
        compared = [name for name in wholes if name in wanted]
        brief = host_outputs.request_pieces(
            spec, size, secret=secret, artefact=built.digest.encode(), sets=judged, wholes=compared
        )
        pieces = host_outputs.request_full_pieces(spec, size, brief)
        timed = [name for name in _timed_sets(run, secret) if name in wanted]
        task = ComparisonTask(wanted, pieces, timed)
        async with run.time_stage("execute"):
            found_outputs = await self.compute(run, built, task)
        shown, fault = found_outputs.shown, found_outputs.fault
        if fault is not None and fault.where not in wanted:
            return fault.outcome("execute"), {}
        async with run.time_stage("compare"):
            with TemporaryDirectory(prefix="outputs-") as folder:
                path = Path(folder) / "pieces.bin"
                path.write_bytes(b"".join(shown.values()))
                ended = {fault.where: (fault.verdict, fault.error)} if fault else {}
                told = HostOutputs(file=str(path), pieces=tuple(shown), seed="", ended=ended)
                outcome = await self._judge.judge_outputs(run, found, b"", shown=told, device=True)
        assert isinstance(outcome, JudgeOutcome), "nothing is a sketch, so nothing can be unsure"
        return outcome, found_outputs.kept


def _timed_sets(run: EvaluationContext, secret: str) -> list[str]:
    """The sets on whose inputs kernels are timed."""
    return [*(str(seed) for seed in run.problem.spec.seeds[:_TIMED_SETS]), secret_set(secret)]
