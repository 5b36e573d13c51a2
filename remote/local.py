"""The embedded evaluator: kernels are traced in a jail on this machine, judged and timed by the simulator.

One evaluation has three places: static rules run in this process, the kernel's Python runs once in the jail,
and everything else runs in a worker that sees only the program. The reference's outputs come from a jail of
their own, once per problem.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from remote.cache import required_level
from remote.errors import InfrastructureError, NoTimelineError
from remote.evaluation_context import (
    EvaluationContext,
    check_request,
    check_sizes,
    lint_kernel,
    make_answer,
    make_judge_job,
    read_blob,
    read_problem,
    select_input_sets,
    tracer_failure,
)
from remote.evaluator import BlobReader, EvaluationAnswer, PredictionRequest
from remote.jail_backends import JailLimits, JailStrength, jail_strength
from remote.judge.job import JudgeOutcome, TimelineJob
from remote.pool import WorkerLimits, WorkerPool
from remote.predictions import KernelPredictor
from remote.references import ReferenceStore
from remote.sandbox import JailResult, run_jailed
from remote.tracing import load_default_tracer
from state.model import TRUSTED_AUTHORS, EvaluationRequest, PredictedLatency


class LocalEvaluator:
    """Judges kernels on this machine; every latency is predicted.

    `slots` evaluations run at a time; the others wait. If only a weak jail is available, kernels that a model
    wrote are refused unless `allow_weak_jail`. `home` holds the cache of reference outputs, and the secret
    that decides where outputs are compared, unless `secret` is given.
    """

    name = "sim"

    def __init__(
        self,
        *,
        home: Path,
        slots: int | None = None,
        allow_weak_jail: bool = False,
        jail_limits: JailLimits | None = None,
        worker_limits: WorkerLimits | None = None,
        strength: JailStrength | None = None,
        secret: str | None = None,
    ) -> None:
        count = slots or os.cpu_count() or 1
        self._strength = strength or jail_strength()
        self._home = home
        self._tracer = load_default_tracer()
        self._allow_weak_jail = allow_weak_jail
        self._jail_limits = jail_limits or JailLimits()
        self._slots = asyncio.Semaphore(count)
        self._workers = WorkerPool(worker_limits or WorkerLimits.for_slots(count))
        self._predictor = KernelPredictor(self._workers, self._slots)
        self._references = ReferenceStore(home, strength=self._strength, secret=secret, jails=count)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the living workers."""
        return self._workers.worker_pids

    @property
    def home(self) -> Path:
        """The folder that holds the caches and the secret."""
        return self._home

    @property
    def jail_limits(self) -> JailLimits:
        """The limits on the kernels' Python."""
        return self._jail_limits

    @property
    def workers(self) -> WorkerPool:
        """The trusted workers, for evaluators whose kernels run elsewhere."""
        return self._workers

    @property
    def references(self) -> ReferenceStore:
        """The reference's outputs, for evaluators whose kernels run elsewhere."""
        return self._references

    def toolchain(self) -> str:
        """Return the simulator's name, version and model version."""
        return self._tracer.toolchain()

    async def prepare(self) -> None:
        """Do nothing: everything needed is in this process."""

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate; cancelling kills its jail and its worker.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        source = read_blob(blobs, request.source)
        run = EvaluationContext(request, read_problem(blobs, request.problem), source, request.level)
        check_request(run)
        async with self._slots:
            outcome = await self._judge_kernel(run)
        return make_answer(run, outcome, self.toolchain())

    async def predict(self, request: PredictionRequest, blobs: BlobReader, /) -> list[PredictedLatency]:
        """Predict kernels without judging them; cancelling kills their jail and its worker.

        Raises:
            InfrastructureError: the kernels could not be predicted.
        """
        problem = read_problem(blobs, request.problem)
        check_sizes(problem, request.size, request.target)
        self._check_author(request.author)
        return await self._predictor.predict(request, problem, self._tracer, self._run_in_jail)

    async def predict_timeline(self, request: EvaluationRequest, blobs: BlobReader, /) -> bytes:
        """Return the predicted run of one kernel as Chrome trace events; nothing is judged.

        Names in it are the kernel's. Cancelling kills its jail and its worker.

        Raises:
            NoTimelineError: the kernel breaks a rule, or the model cannot time it.
            InfrastructureError: the kernel could not be traced or timed.
        """
        run = EvaluationContext(
            request, read_problem(blobs, request.problem), read_blob(blobs, request.source), request.level
        )
        check_request(run)
        refused = lint_kernel(run.source, run.request.target)
        async with self._slots:
            if refused is None:
                self._check_author(request.author)
                result = await self._run_tracer(run)
                refused = tracer_failure(result)
            if refused is not None:
                raise NoTimelineError(refused.error.message if refused.error else refused.verdict.value)
            return await self._workers.predict_timeline(TimelineJob(target=request.target), result.answer)

    async def aclose(self) -> None:
        """Kill every worker."""
        await self._workers.aclose()

    async def trace_kernel(self, run: EvaluationContext) -> bytes:
        """Return the tracer's reply on a kernel; empty where the tracer did not end by itself.

        Raises:
            InfrastructureError: the jail failed.
        """
        async with self._slots:
            result = await self._run_tracer(run)
        return b"" if tracer_failure(result) else result.answer

    async def _judge_kernel(self, run: EvaluationContext) -> JudgeOutcome:
        async with run.time_stage("lint"):
            refused = lint_kernel(run.source, run.request.target)
        if refused is not None:
            return refused
        self._check_author(run.request.author)
        async with run.time_stage("jail"):
            result = await self._run_tracer(run)
            if result.asleep:
                result = await self._run_tracer(run)  # a second kill in a row is not the machine's fault
        ended = tracer_failure(result)
        if ended is not None:
            return ended
        outcome = await self._compare_outputs(run, result.answer)
        wanted = required_level(run.request, outcome.benchmark)
        if wanted is not run.level:
            run.level = wanted
            outcome = await self._compare_outputs(run, result.answer)
        return outcome

    async def _run_tracer(self, run: EvaluationContext) -> JailResult:
        dims = run.problem.spec.dims(run.request.size)
        asked = self._tracer.request(run.source.decode(), run.problem, dims, run.request.target, repeat=True)
        return await self._run_in_jail(asked)

    async def _run_in_jail(self, request: bytes, *flags: str) -> JailResult:
        program = self._tracer.program(self._jail_limits, *flags)
        return await run_jailed(program, request, strength=self._strength)

    async def _compare_outputs(self, run: EvaluationContext, reply: bytes) -> JudgeOutcome:
        """Judge a traced program on what the level compares."""
        wholes, sets = select_input_sets(run, at_home=True)
        async with run.time_stage("references"):
            found = await self._references.load_files(
                run.problem, run.request.size, wholes=wholes, tiles=sets, expression=True
            )
        job = make_judge_job(run, found, self._references.secret)
        try:
            outcome = await self._workers.judge(job, reply)
        except InfrastructureError as error:
            if error.code == "bad_reference":
                # A cache file may be damaged; the next attempt computes the reference again.
                self._references.delete_files(run.problem, run.request.size)
            raise
        run.stage_ms.update(outcome.stage_ms)
        return outcome

    def _check_author(self, author: str) -> None:
        trusted = author in TRUSTED_AUTHORS
        if self._strength is JailStrength.WEAK and not trusted and not self._allow_weak_jail:
            text = (
                f"only a weak jail works here, so kernels written by {author} are not run; "
                "install bubblewrap or set daemon.allow_weak_jail"
            )
            raise InfrastructureError("weak_jail", text, retryable=False)
