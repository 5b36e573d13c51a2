"""The embedded evaluator: kernels traced in a jail on this machine, judged and timed by the simulator.

One evaluation: static rules in this process; the kernel's Python in the jail, once; everything else in a
worker that sees only the program. The reference's outputs come from a jail of their own, once per problem.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from remote.asked import (
    Run,
    answered,
    check_request,
    check_sizes,
    compared,
    ended_badly,
    job_of,
    lint,
    read_blob,
    read_problem,
)
from remote.cache import needed
from remote.errors import InfrastructureError, NoTimelineError
from remote.evaluator import Blobs, EvaluationAnswer, PredictionRequest
from remote.judge.job import Outcome, Timed
from remote.pool import WorkerLimits, WorkerPool
from remote.predictions import Predictor
from remote.references import ReferenceStore
from remote.sandbox import JailResult, run_jailed
from remote.tracing import load_default_tracer
from remote.walls import JailStrength, Limits, jail_strength
from state.model import TRUSTED_AUTHORS, EvaluationRequest, Predicted


class LocalEvaluator:
    """Judges kernels on this machine; every latency is predicted.

    `slots` evaluations run at a time, the others wait. Where only a weak jail is available, kernels
    that a model wrote are refused unless `allow_weak_jail`. `home` holds the cache of
    reference outputs, and the secret that decides where outputs are looked at, unless `secret` is given.
    """

    name = "sim"

    def __init__(
        self,
        *,
        home: Path,
        slots: int | None = None,
        allow_weak_jail: bool = False,
        jail_limits: Limits | None = None,
        worker_limits: WorkerLimits | None = None,
        strength: JailStrength | None = None,
        secret: str | None = None,
    ) -> None:
        count = slots or os.cpu_count() or 1
        self._strength = strength or jail_strength()
        self._home = home
        self._tracer = load_default_tracer()
        self._allow_weak_jail = allow_weak_jail
        self._jail_limits = jail_limits or Limits()
        self._slots = asyncio.Semaphore(count)
        self._workers = WorkerPool(worker_limits or WorkerLimits.for_slots(count))
        self._predictor = Predictor(self._workers, self._slots)
        self._references = ReferenceStore(home, strength=self._strength, secret=secret, jails=count)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers alive."""
        return self._workers.pids

    @property
    def home(self) -> Path:
        """The folder of caches and of the secret."""
        return self._home

    @property
    def jail_limits(self) -> Limits:
        """What the kernels' Python may use."""
        return self._jail_limits

    @property
    def workers(self) -> WorkerPool:
        """The trusted workers, for evaluators whose kernels run elsewhere."""
        return self._workers

    @property
    def references(self) -> ReferenceStore:
        """The reference's outputs, for the same."""
        return self._references

    def toolchain(self) -> str:
        """Return the simulator's name, version and model version."""
        return self._tracer.toolchain()

    async def prepare(self) -> None:
        """Do nothing: all that is needed is in this process."""

    async def evaluate(self, request: EvaluationRequest, blobs: Blobs, /) -> EvaluationAnswer:
        """Judge one candidate; cancelling it kills its jail and its worker.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        source = read_blob(blobs, request.source)
        run = Run(request, read_problem(blobs, request.problem), source, request.level)
        check_request(run)
        async with self._slots:
            outcome = await self._judge(run)
        return answered(run, outcome, self.toolchain())

    async def predict(self, request: PredictionRequest, blobs: Blobs, /) -> list[Predicted]:
        """Predict kernels without judging them; cancelling it kills their jail and its worker.

        Raises:
            InfrastructureError: they could not be looked at.
        """
        problem = read_problem(blobs, request.problem)
        check_sizes(problem, request.size, request.target)
        self._admit(request.author)
        return await self._predictor.predict(request, problem, self._tracer, self._jailed)

    async def timeline(self, request: EvaluationRequest, blobs: Blobs, /) -> bytes:
        """Return the predicted run of one kernel as Chrome trace events; nothing is judged.

        The names in it are the kernel's. Cancelling it kills its jail and its worker.

        Raises:
            NoTimelineError: the kernel breaks a rule, or the model cannot time it.
            InfrastructureError: it could not be looked at.
        """
        run = Run(
            request, read_problem(blobs, request.problem), read_blob(blobs, request.source), request.level
        )
        check_request(run)
        refused = lint(run.source, run.request.target)
        async with self._slots:
            if refused is None:
                self._admit(request.author)
                result = await self._trace(run)
                refused = ended_badly(result)
            if refused is not None:
                raise NoTimelineError(refused.error.message if refused.error else refused.verdict.value)
            return await self._workers.time(Timed(target=request.target), result.answer)

    async def aclose(self) -> None:
        """Kill every worker."""
        await self._workers.aclose()

    async def trace(self, run: Run) -> bytes:
        """Return the tracer's reply on a kernel; nothing where the tracer did not end by itself.

        Raises:
            InfrastructureError: the jail failed.
        """
        async with self._slots:
            result = await self._trace(run)
        return b"" if ended_badly(result) else result.answer

    async def _judge(self, run: Run) -> Outcome:
        async with run.at("lint"):
            refused = lint(run.source, run.request.target)
        if refused is not None:
            return refused
        self._admit(run.request.author)
        async with run.at("jail"):
            result = await self._trace(run)
            if result.asleep:
                result = await self._trace(run)  # as it cannot be put down to the machine twice
        ended = ended_badly(result)
        if ended is not None:
            return ended
        outcome = await self._compare(run, result.answer)
        wanted = needed(run.request, outcome.benchmark)
        if wanted is not run.level:
            run.level = wanted
            outcome = await self._compare(run, result.answer)
        return outcome

    async def _trace(self, run: Run) -> JailResult:
        dims = run.problem.spec.dims(run.request.size)
        asked = self._tracer.request(run.source.decode(), run.problem, dims, run.request.target)
        return await self._jailed(asked)

    async def _jailed(self, request: bytes, *flags: str) -> JailResult:
        program = self._tracer.program(self._jail_limits, *flags)
        return await run_jailed(program, request, strength=self._strength)

    async def _compare(self, run: Run, reply: bytes) -> Outcome:
        """Judge a traced program on what the level asks for."""
        wholes, sets = compared(run)
        async with run.at("references"):
            found = await self._references.get(
                run.problem, run.request.size, wholes=wholes, tiles=sets, expression=True
            )
        job = job_of(run, found, self._references.secret)
        try:
            outcome = await self._workers.judge(job, reply)
        except InfrastructureError as error:
            if error.code == "bad_reference":
                # A file of the cache may be damaged; the next attempt starts from the reference itself.
                self._references.forget(run.problem, run.request.size)
            raise
        run.stage_ms.update(outcome.stage_ms)
        return outcome

    def _admit(self, author: str) -> None:
        trusted = author in TRUSTED_AUTHORS
        if self._strength is JailStrength.WEAK and not trusted and not self._allow_weak_jail:
            text = (
                f"only a weak jail works here, so kernels written by {author} are not run; "
                "install bubblewrap or set daemon.allow_weak_jail"
            )
            raise InfrastructureError("weak_jail", text, retryable=False)
