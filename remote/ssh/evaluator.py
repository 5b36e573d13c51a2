"""Evaluates kernels on one host: compiles and runs them there, and judges here what comes back.

One evaluation: static rules run here. The host runs the kernel's Python in a jail (`compile`), then the
compiled kernel on the judge's inputs, which it draws itself (`execute`). Only then home tells the host which
parts of the outputs to show (`compare`), and a worker here judges them. Times are accepted only as far as
they follow from the samples (`measure`). If the host has no SDK, the simulator stands in for the device, and
every result says so.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from statistics import median

import seeds
from remote.cache import required_level
from remote.errors import InfrastructureError
from remote.evaluation_context import (
    EvaluationContext,
    begin_evaluation,
    lint_kernel,
    make_answer,
    rejected_outcome,
)
from remote.evaluator import BlobReader, EvaluationAnswer
from remote.judge.job import JudgeOutcome
from remote.judge_service import JudgeService
from remote.ssh import devices, score
from remote.ssh.device_facts import DeviceFacts, parse_device_facts
from remote.ssh.devices import HostDevice
from remote.ssh.errors import HostCalibrationError, HostJailError, HostPythonError
from remote.ssh.job import HostFacts
from remote.ssh.output_comparison import OutputComparer, parse_kernel_fault
from remote.ssh.steps import (
    DEVICE_S,
    SHORT_S,
    CompiledKernel,
    EvaluationSteps,
    JobTransport,
    KernelFailedError,
    StepEndedError,
)
from seeds import Problem
from seeds.faults import REDUCED
from state.model import (
    PERSON,
    TRUSTED_AUTHORS,
    EvaluationRequest,
    Level,
    ScoreConfig,
    Verdict,
    canonical_json,
    digest_of,
)
from targets.registry import load_target, starting_kernel

_EXTRA = 4
"""Evaluations in progress beyond the host's CPUs: some wait for home, others for a device core."""

DEVICE_ERROR = "device_error"
"""The code with which a worker reports that the device's runtime refused a run."""

CALIBRATION = "silu"
"""The problem whose kernel is timed again and again, to detect a drifting host."""


@dataclass(frozen=True, slots=True)
class TimedProgram:
    """A device's time for a kernel, and the tracer's reply on it; empty where it could not be traced."""

    latency_ms: float
    program: bytes


class HostEvaluator:
    """Judges kernels that run on one host.

    `jobs` sends work to the host, `address` names it in messages. `judge` computes what is computed here;
    several hosts share it, and its creator closes it. The host is used for the devices of the family of
    `target`.
    """

    def __init__(
        self,
        jobs: JobTransport,
        *,
        address: str,
        judge: JudgeService,
        target: str,
        allow_weak_jail: bool = False,
        scoring: ScoreConfig | None = None,
    ) -> None:
        self._jobs = jobs
        self._address = address
        self._judge = judge
        self._target = load_target(target)
        self._allow_weak_jail = allow_weak_jail
        self._score = scoring if scoring is not None and scoring.command else None
        self._comparer = OutputComparer(judge)
        self._found: tuple[HostFacts, DeviceFacts, HostDevice] | None = None
        self._preparing = asyncio.Lock()
        self._slots = asyncio.Semaphore(1)

    @property
    def host_facts(self) -> HostFacts:
        """The facts from the worker's greeting.

        Raises:
            InfrastructureError: host_unprepared.
        """
        return self._require_prepared()[0]

    async def prepare(self) -> None:
        """Reach the host and probe it, once."""
        async with self._preparing:
            if self._found is None:
                host = await self._jobs.greet_host()
                steps = EvaluationSteps(self._jobs, self._address, device="")
                answer = await steps.run_step("probe", {"devices": self._device_kinds()}, deadline_s=SHORT_S)
                facts = parse_device_facts(answer.fields, self._address)
                if facts.jail == "none":
                    text = f"Python {facts.python} there builds no jail, and kernels are compiled in one"
                    raise HostPythonError(
                        f"{self._address}: {text}; name one of 3.10 or later (`python` of run.hosts)"
                    )
                self._slots = asyncio.Semaphore(host.cpus + _EXTRA)
                self._found = host, facts, devices.create_device(facts, self._judge)
                await steps.discard_jobs()

    async def device_facts(self) -> DeviceFacts:
        """Return what the probe found on the host.

        Raises:
            InfrastructureError: it cannot be reached, or its answer is invalid.
        """
        await self.prepare()
        return self._require_prepared()[1]

    def toolchain(self) -> str:
        """Return what compiles and times there, with versions.

        Raises:
            InfrastructureError: host_unprepared: the host was not probed yet.
        """
        known = self._require_prepared()[1].toolchain
        if self._score is None:
            return known
        told = digest_of(canonical_json(self._score.model_dump(mode="json")))
        return f"{known} scored by {told[:12]}"

    async def evaluate(self, request: EvaluationRequest, blobs: BlobReader, /) -> EvaluationAnswer:
        """Judge one candidate; cancelling ends its jobs on the host.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        run = begin_evaluation(request, blobs)
        await self.prepare()
        run.device_s = 0.0
        refused = lint_kernel(run.source, request.target)
        if refused is None:
            self._check_author(request.author)
            async with self._slots:
                refused = await self._judge_kernel(run)
        return make_answer(run, refused, self.toolchain())

    async def calibrate(self, core: int | None = None) -> float:
        """Return the milliseconds of a fixed kernel on the host, on `core` if that is free.

        Raises:
            HostCalibrationError: the host cannot run it.
            InfrastructureError: the host could not be reached.
        """
        problem = seeds.load_problem(CALIBRATION)
        source = starting_kernel(problem, await self._device_target())
        try:
            return (await self.time_kernel(problem, source, core=core)).latency_ms
        except HostCalibrationError as error:
            raise HostCalibrationError(f"{error}; that is the kernel that hosts are compared by") from error

    async def time_kernel(self, problem: Problem, source: bytes, *, core: int | None = None) -> TimedProgram:
        """Time a kernel of this project on the host at reduced size, without judging it.

        Raises:
            HostCalibrationError: the host does not compile or run it.
            InfrastructureError: the host could not be reached.
        """
        run = _timing_context(problem, source, await self._device_target())
        device = self._require_prepared()[2]
        steps = self._make_steps(run)
        try:
            compiled = await device.compile_kernel(steps, run)
            if isinstance(compiled, JudgeOutcome):
                text = f"does not compile the starting kernel of {problem.name}"
                raise HostCalibrationError(f"{self._address} {text}: {compiled.error}")
            samples = await device.sample_times(steps, run, compiled, core=core)
            return TimedProgram(median(samples), compiled.program)
        except KernelFailedError as error:
            text = f"does not run the starting kernel of {problem.name}"
            raise HostCalibrationError(f"{self._address} {text}: {error.told.get('message')}") from error
        finally:
            await steps.discard_jobs()

    async def _device_target(self) -> str:
        await self.prepare()
        return self._require_prepared()[1].architecture or self._target.name

    async def aclose(self) -> None:
        """Disconnect from the host; jobs that run there end with their leases."""

    def _device_kinds(self) -> list[str]:
        hosts = self._target.parts.hosts
        assert hosts is not None, f"{self._target.name} runs on no hosts"
        return list(hosts.devices)

    def _require_prepared(self) -> tuple[HostFacts, DeviceFacts, HostDevice]:
        if self._found is None:
            raise InfrastructureError("host_unprepared", f"{self._address} has not been looked at yet")
        return self._found

    def _make_steps(self, run: EvaluationContext) -> EvaluationSteps:
        kind, author = self._require_prepared()[1].device_kind, run.request.author
        return EvaluationSteps(self._jobs, self._address, kind, weak_jail=self._allows_weak_jail(author))

    def _allows_weak_jail(self, author: str) -> bool:
        return author in TRUSTED_AUTHORS or self._allow_weak_jail

    @property
    def accepts_any_author(self) -> bool:
        """Whether kernels of any author may be compiled there."""
        return self._allow_weak_jail or self._require_prepared()[1].has_strong_jail

    def _check_author(self, author: str) -> None:
        if not self.accepts_any_author and author not in TRUSTED_AUTHORS:
            raise HostJailError(f"{self._address}: {weak_jail_reason(author)}")

    async def _judge_kernel(self, run: EvaluationContext) -> JudgeOutcome:
        device = self._require_prepared()[2]
        steps = self._make_steps(run)
        try:
            async with run.time_stage("compile"):
                compiled = await device.compile_kernel(steps, run)
            if isinstance(compiled, JudgeOutcome):
                return compiled
            outcome = await self._compare_outputs(run, steps, compiled)
            outcome = await device.measure_kernel(steps, run, compiled, outcome)
            wanted = required_level(run.request, outcome.benchmark)
            if wanted is not run.level:
                run.level = wanted
                again = await self._compare_outputs(run, steps, compiled)
                if again.error or again.benchmark:
                    outcome = again
                else:
                    outcome = outcome.model_copy(update={"rel_l2": again.rel_l2, "identity": again.identity})
            return await self._score_outcome(run, steps, outcome)
        except StepEndedError as error:
            return await self._judge_device_failure(error)
        except KernelFailedError as error:
            await self.calibrate(error.core)
            verdict, found = parse_kernel_fault(error.told)
            return JudgeOutcome(verdict=verdict, stage=error.step, error=found)
        finally:
            run.device_s = steps.device_s
            await steps.discard_jobs()

    async def _compare_outputs(
        self, run: EvaluationContext, steps: EvaluationSteps, compiled: CompiledKernel
    ) -> JudgeOutcome:
        outcome = await self._comparer.judge(run, steps, compiled)
        if outcome.error is not None and outcome.error.code == DEVICE_ERROR:
            await self.calibrate()  # every kernel fails on a broken device
        return outcome

    async def _score_outcome(
        self, run: EvaluationContext, steps: EvaluationSteps, outcome: JudgeOutcome
    ) -> JudgeOutcome:
        """Score a correct kernel end to end; for a gate only if it was judged on whole outputs."""
        config = self._score
        if config is None or outcome.verdict is not Verdict.CORRECT or outcome.benchmark is None:
            return outcome
        first = run.source == starting_kernel(run.problem, run.request.target)
        if config.use == "gate" and (run.level is not Level.WHOLE or first):
            return outcome
        async with run.time_stage("score"):
            try:
                found = await score.measure_score(steps, run, config=config, workers=self._judge.workers)
            except score.ScoreError as error:
                return score.failure_outcome(error)
        if config.use == "gate":
            return score.apply_gate(outcome, found, config)
        return score.apply_objective(outcome, found)

    async def _judge_device_failure(self, error: StepEndedError) -> JudgeOutcome:
        """The verdict on a kernel that hung the device, or killed the runtime's process.

        The kernel gets the blame only if the device works for another kernel.

        Raises:
            InfrastructureError: the device is at fault, or no device was used.
        """
        hung = error.status == "deadline"
        on_device = error.step in {"execute", "benchmark"} and not self._require_prepared()[1].is_predicted
        if not on_device or not (hung or error.killed):
            raise error
        await self.calibrate(error.core)
        if hung:
            text = f"the device did not answer within {DEVICE_S:g} s"
            return rejected_outcome(Verdict.TIMEOUT, error.step, "device_hang", text)
        last = (error.log_tail.strip().splitlines() or ["nothing"])[-1]
        text = f"running the kernel ended the runtime's process: {last[:500]}"
        return rejected_outcome(Verdict.RUNTIME_ERROR, error.step, "device_crash", text)


def weak_jail_reason(author: str) -> str:
    """Return why a kernel is not compiled on a host, and what helps."""
    return (
        f"only a weak jail works there, so kernels written by {author} are not compiled; install bubblewrap "
        "there, or set daemon.allow_weak_jail"
    )


def _timing_context(problem: Problem, source: bytes, target: str) -> EvaluationContext:
    """The evaluation context of a kernel that is timed, not judged."""
    request = EvaluationRequest(
        candidate="calibration", author=PERSON, source=digest_of(source), problem=problem.make_ref(),
        size=REDUCED, target=target, toolchain="", level=Level.SLICES,
    )  # fmt: skip
    return EvaluationContext(request, problem, source, request.level)
