"""The embedded evaluator: kernels are traced in a jail on this machine, judged and timed by the simulator.

One evaluation has three places: static rules run in this process, the kernel's Python runs once in the jail,
and everything else runs in a worker that sees only the program. The reference's outputs come from a jail of
their own, once per problem. It serves every target that has a tracer and a judge of programs.
"""

from __future__ import annotations

from remote.cache import required_level
from remote.errors import NoTimelineError
from remote.evaluation_context import (
    EvaluationContext,
    begin_evaluation,
    check_sizes,
    lint_kernel,
    make_answer,
    may_round,
    read_problem,
    select_input_sets,
    tracer_failure,
)
from remote.evaluator import BlobReader, EvaluationAnswer, ExplanationRequest, PredictionRequest
from remote.judge import suite
from remote.judge.job import CheckJob, ExplainJob, JudgeOutcome, TimelineJob
from remote.judge_service import JudgeService
from remote.predictions import KernelPredictor
from remote.tracing import load_tracer
from state.model import Digest, EvaluationRequest, KernelExplanation, Level, PredictedLatency, Verdict


class LocalEvaluator:
    """Judges the kernels of one family of targets on this machine; every latency is predicted.

    `target` is one of the family. The evaluator closes `judge` when it is closed.
    """

    name = "sim"

    def __init__(self, judge: JudgeService, *, target: str) -> None:
        self.judge = judge
        self._target = target
        self._tracer = load_tracer(target)
        self._predictor = KernelPredictor(judge)

    def toolchain(self) -> str:
        """Return the simulator's name, version and model version."""
        return self._tracer.toolchain() + self.judge.calibration_note

    async def prepare(self) -> None:
        """Do nothing: everything needed is in this process."""

    async def warm_up(self, problem: Digest, size: str) -> None:
        """Start a worker for kernels of a problem before one comes; a failure shows when one does."""
        await self.judge.warm_up(self._target, problem, size)

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate; cancelling kills its jail and its worker.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        run = begin_evaluation(request, blobs)
        async with self.judge.slots:
            outcome = await self._judge_kernel(run)
        return make_answer(run, outcome, self.toolchain())

    async def predict(self, request: PredictionRequest, blobs: BlobReader, /) -> list[PredictedLatency]:
        """Predict kernels without judging them; cancelling kills their jail and its worker.

        Raises:
            InfrastructureError: the kernels could not be predicted.
        """
        problem = read_problem(blobs, request.problem)
        check_sizes(problem, request.size, request.target)
        self.judge.require_trusted(request.author)
        return await self._predictor.predict(request, problem, self._tracer)

    async def predict_timeline(self, request: EvaluationRequest, blobs: BlobReader, /) -> bytes:
        """Return the predicted run of one kernel as Chrome trace events; nothing is judged.

        Names in it are the kernel's. Cancelling kills its jail and its worker.

        Raises:
            NoTimelineError: the kernel breaks a rule, or the model cannot time it.
            InfrastructureError: the kernel could not be traced or timed.
        """
        run = begin_evaluation(request, blobs)
        refused = lint_kernel(run.source, run.request.target)
        async with self.judge.slots:
            if refused is None:
                self.judge.require_trusted(request.author)
                result = await self.judge.trace_kernel(run)
                refused = tracer_failure(result)
            if refused is not None:
                raise NoTimelineError(refused.error.message if refused.error else refused.verdict.value)
            return await self.judge.workers.predict_timeline(
                TimelineJob(target=request.target, constants=self.judge.constants_of(request.target)),
                result.answer,
            )

    async def explain(
        self, request: ExplanationRequest, blobs: BlobReader, /
    ) -> KernelExplanation | JudgeOutcome:
        """Check one kernel's program against the rules, and explain its predicted latency.

        Raises:
            InfrastructureError: the kernel could not be traced or timed.
        """
        judged = EvaluationRequest(
            candidate="explained",
            author=request.author,
            source=request.source,
            problem=request.problem,
            size=request.size,
            target=request.target,
            toolchain=self.toolchain(),
        )
        run = begin_evaluation(judged, blobs)
        refused = lint_kernel(run.source, request.target)
        if refused is not None:
            return refused
        self.judge.require_trusted(request.author)
        async with self.judge.slots:
            result = await self.judge.trace_kernel(run)
            refused = tracer_failure(result)
            if refused is not None:
                return refused
            job = ExplainJob(
                spec=run.problem.spec,
                size=request.size,
                target=request.target,
                source=run.source.decode(errors="replace"),
                topics=request.topics,
            )
            return await self.judge.workers.explain_program(job, result.answer)

    async def aclose(self) -> None:
        """Kill every worker."""
        await self.judge.aclose()

    async def _judge_kernel(self, run: EvaluationContext) -> JudgeOutcome:
        async with run.time_stage("lint"):
            refused = lint_kernel(run.source, run.request.target)
        if refused is not None:
            return refused
        self.judge.require_trusted(run.request.author)
        async with run.time_stage("jail"):
            result = await self.judge.trace_kernel(run)
            if result.asleep:
                # A second kill in a row is not the machine's fault.
                result = await self.judge.trace_kernel(run)
        ended = tracer_failure(result) or await self._refuse_early(run, result.answer)
        if ended is not None:
            return ended
        outcome = await self._compare_outputs(run, result.answer)
        wanted = required_level(run.request, outcome.benchmark)
        if wanted is not run.level:
            run.level = wanted
            outcome = await self._compare_outputs(run, result.answer)
        if outcome.verdict is not Verdict.CORRECT:
            return outcome
        async with run.time_stage("retrace"):
            differs = await self.judge.retrace_kernel(run, result.answer)
        return differs or outcome

    async def _refuse_early(self, run: EvaluationContext, reply: bytes) -> JudgeOutcome | None:
        """Return the verdict on a kernel without a valid program, where it would wait for the reference."""
        if self.judge.references.has_outputs(run.problem, run.request.size):
            return None
        job = CheckJob(spec=run.problem.spec, size=run.request.size, target=run.request.target)
        return await self.judge.workers.find_broken_rule(job, reply)

    async def _compare_outputs(self, run: EvaluationContext, reply: bytes) -> JudgeOutcome:
        """Judge a traced program on what the level compares."""
        wholes, sets = select_input_sets(run, self.judge.references.secret)
        if run.level is Level.ONE_SEED and may_round(run):
            wholes = (*wholes, suite.ROUNDING_SET)
        async with run.time_stage("references"):
            found = await self.judge.load_references(run, wholes, sets)
        outcome = await self.judge.judge_outputs(run, found, reply)
        assert isinstance(outcome, JudgeOutcome), "only what a host shows can be too little to judge"
        return outcome
