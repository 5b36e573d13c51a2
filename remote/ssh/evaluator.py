"""Evaluation on one host: compiled and run there, judged here from what came back.

One evaluation: static rules here; on the host the kernel's Python in a jail (`compile`), then what came of
it on the judge's inputs, which are drawn there (`execute`); only then is the host told what it has to show
of the outputs (`compare`), and a worker here judges that. Times are believed as far as they follow from the
samples (`measure`). Where the host has no SDK the simulator stands in for the device, and every result says
so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import median

import seeds
from remote.asked import Run, answered, check_request, lint, read_blob, read_problem, rejection
from remote.cache import needed
from remote.errors import InfrastructureError
from remote.evaluator import Blobs, EvaluationAnswer, PredictionRequest
from remote.judge.job import Outcome
from remote.local import LocalEvaluator
from remote.ssh import devices, score
from remote.ssh.comparing import Comparer, fault
from remote.ssh.devices import Device
from remote.ssh.errors import HostCalibrationError, HostJailError, HostPythonError
from remote.ssh.facts import DeviceFacts, read
from remote.ssh.job import HostFacts
from remote.ssh.steps import (
    DEVICE_S,
    SHORT_S,
    Compiled,
    JobsLike,
    KernelFailedError,
    StepEndedError,
    Steps,
)
from seeds.faults import REDUCED
from state.model import (
    PERSON,
    TRUSTED_AUTHORS,
    EvaluationRequest,
    Level,
    Predicted,
    ScoreConfig,
    Verdict,
    canonical_json,
    digest_of,
)

_EXTRA = 4
"""Evaluations under way beyond the host's CPUs: some wait for home, others for a NeuronCore."""

DEVICE_ERROR = "device_error"
"""The code with which a worker tells that the device's run time refused a run."""

CALIBRATION = "silu"
"""The problem whose kernel is timed again and again, to tell a host that drifts."""


class HostEvaluator:
    """Judges kernels that run on one host.

    `jobs` is the way there, `address` what messages call it. `local` computes what is computed here:
    references, judgements, predictions; several hosts share one, and whoever made it closes it.
    """

    name = "ssh"

    def __init__(
        self,
        jobs: JobsLike,
        *,
        address: str,
        local: LocalEvaluator,
        allow_weak_jail: bool = False,
        scoring: ScoreConfig | None = None,
    ) -> None:
        self._jobs = jobs
        self._address = address
        self._local = local
        self._allow_weak_jail = allow_weak_jail
        self._score = scoring if scoring is not None and scoring.command else None
        self._comparer = Comparer(local)
        self._found: tuple[HostFacts, DeviceFacts, Device] | None = None
        self._preparing = asyncio.Lock()
        self._slots = asyncio.Semaphore(1)

    @property
    def host(self) -> HostFacts:
        """The machine, as its worker greeted.

        Raises:
            InfrastructureError: host_unprepared.
        """
        return self._prepared()[0]

    async def prepare(self) -> None:
        """Reach the host and find out what it has, once."""
        async with self._preparing:
            if self._found is None:
                host = await self._jobs.hello()
                steps = Steps(self._jobs, self._address, "nki_sim")
                answer = await steps.ask("probe", {}, deadline_s=SHORT_S)
                facts = read(answer.fields, self._address)
                if facts.jail == "none":
                    text = f"Python {facts.python} there builds no jail, and kernels are compiled in one"
                    raise HostPythonError(
                        f"{self._address}: {text}; name one of 3.10 or later (`python` of run.hosts)"
                    )
                self._slots = asyncio.Semaphore(host.cpus + _EXTRA)
                self._found = host, facts, devices.of(facts, self._local)
                await steps.done()

    async def facts(self) -> DeviceFacts:
        """Return what the host has.

        Raises:
            InfrastructureError: it cannot be reached, or does not answer as it should.
        """
        await self.prepare()
        return self._prepared()[1]

    def toolchain(self) -> str:
        """Return what compiles and times there, with versions.

        Raises:
            InfrastructureError: host_unprepared: nobody has looked yet.
        """
        known = self._prepared()[1].toolchain
        if self._score is None:
            return known
        told = digest_of(canonical_json(self._score.model_dump(mode="json")))
        return f"{known} scored by {told[:12]}"

    async def evaluate(self, request: EvaluationRequest, blobs: Blobs, /) -> EvaluationAnswer:
        """Judge one candidate; cancelling it ends its jobs on the host.

        Raises:
            InfrastructureError: no verdict could be reached, through no fault of the kernel.
        """
        source = read_blob(blobs, request.source)
        run = Run(request, read_problem(blobs, request.problem), source, request.level)
        check_request(run)
        await self.prepare()
        run.device_s = 0.0
        refused = lint(source, request.target)
        if refused is None:
            self._admit(request.author)
            async with self._slots:
                refused = await self._judge(run)
        return answered(run, refused, self.toolchain())

    async def predict(self, request: PredictionRequest, blobs: Blobs, /) -> Sequence[Predicted]:
        """Predict kernels without judging them: here, by the simulator.

        Raises:
            InfrastructureError: they could not be looked at.
        """
        return await self._local.predict(request, blobs)

    async def calibrate(self, core: int | None = None) -> float:
        """Return how many milliseconds a kernel that is always the same takes on the host, on `core` if free.

        Raises:
            HostCalibrationError: the host cannot run it.
            InfrastructureError: the host could not be asked.
        """
        await self.prepare()
        _, facts, device = self._prepared()
        run = _calibration(facts.architecture or "trn2")
        steps = self._steps(run)
        try:
            compiled = await device.compile(steps, run)
            if isinstance(compiled, Outcome):
                text = "does not compile the kernel that hosts are compared by"
                raise HostCalibrationError(f"{self._address} {text}: {compiled.error}")
            return median(await device.clock(steps, run, compiled, core=core))
        except KernelFailedError as error:
            text = "does not run the kernel that hosts are compared by"
            raise HostCalibrationError(f"{self._address} {text}: {error.told.get('message')}") from error
        finally:
            await steps.done()

    async def aclose(self) -> None:
        """Leave the host; what is running there ends with its lease."""

    def _prepared(self) -> tuple[HostFacts, DeviceFacts, Device]:
        if self._found is None:
            raise InfrastructureError("host_unprepared", f"{self._address} has not been looked at yet")
        return self._found

    def _steps(self, run: Run) -> Steps:
        kind, author = self._prepared()[1].device_kind, run.request.author
        return Steps(self._jobs, self._address, kind, weak_jail=self._weak_jail_will_do(author))

    def _weak_jail_will_do(self, author: str) -> bool:
        return author in TRUSTED_AUTHORS or self._allow_weak_jail

    @property
    def any_author(self) -> bool:
        """Whether kernels of any author may be compiled there."""
        return self._allow_weak_jail or self._prepared()[1].strong_jail

    def _admit(self, author: str) -> None:
        if not self.any_author and author not in TRUSTED_AUTHORS:
            raise HostJailError(f"{self._address}: {weakly_jailed(author)}")

    async def _judge(self, run: Run) -> Outcome:
        device = self._prepared()[2]
        steps = self._steps(run)
        try:
            async with run.at("compile"):
                compiled = await device.compile(steps, run)
            if isinstance(compiled, Outcome):
                return compiled
            outcome = await self._compared(run, steps, compiled)
            outcome = await device.timed(steps, run, compiled, outcome)
            wanted = needed(run.request, outcome.benchmark)
            if wanted is not run.level:
                run.level = wanted
                again = await self._compared(run, steps, compiled)
                if again.error or again.benchmark:
                    outcome = again
                else:
                    outcome = outcome.model_copy(update={"rel_l2": again.rel_l2, "identity": again.identity})
            return await self._scored(run, steps, outcome)
        except StepEndedError as error:
            return await self._ended_by_kernel(error)
        except KernelFailedError as error:
            await self.calibrate(error.core)
            verdict, found = fault(error.told)
            return Outcome(verdict=verdict, stage=error.step, error=found)
        finally:
            run.device_s = steps.device_s
            await steps.done()

    async def _compared(self, run: Run, steps: Steps, compiled: Compiled) -> Outcome:
        outcome = await self._comparer.judge(run, steps, compiled)
        if outcome.error is not None and outcome.error.code == DEVICE_ERROR:
            await self.calibrate()  # on a device that lost its mind every kernel fails
        return outcome

    async def _scored(self, run: Run, steps: Steps, outcome: Outcome) -> Outcome:
        """Score a correct kernel end to end: as the objective each one, for the gate those judged on all."""
        config = self._score
        if config is None or outcome.verdict is not Verdict.CORRECT or outcome.benchmark is None:
            return outcome
        first = run.source.decode() == run.problem.kernel
        if config.use == "gate" and (run.level is not Level.WHOLE or first):
            return outcome
        async with run.at("score"):
            try:
                found = await score.scored(steps, run, config, self._local.workers)
            except score.ScoreError as error:
                return score.failed(error)
        if config.use == "gate":
            return score.gate(outcome, found, config)
        return score.objective(outcome, found)

    async def _ended_by_kernel(self, error: StepEndedError) -> Outcome:
        """The verdict on a kernel that hung the device, or took the runtime's process with it.

        It is one only where the device works for another kernel; else the device is at fault.

        Raises:
            InfrastructureError: the device is, or nothing ran on one.
        """
        hung = error.status == "deadline"
        on_device = error.step in {"execute", "benchmark"} and not self._prepared()[1].predicted
        if not on_device or not (hung or error.killed):
            raise error
        await self.calibrate(error.core)
        if hung:
            text = f"the device did not answer within {DEVICE_S:g} s"
            return rejection(Verdict.TIMEOUT, error.step, "device_hang", text)
        last = (error.log_tail.strip().splitlines() or ["nothing"])[-1]
        text = f"running the kernel ended the runtime's process: {last[:500]}"
        return rejection(Verdict.RUNTIME_ERROR, error.step, "device_crash", text)


def weakly_jailed(author: str) -> str:
    """Why a kernel is not compiled on a host, and what mends it."""
    return (
        f"only a weak jail works there, so kernels written by {author} are not compiled; install bubblewrap "
        "there, or set daemon.allow_weak_jail"
    )


def _kernel_of(problem: seeds.Problem) -> bytes:
    return problem.kernel.encode()


def _calibration(target: str) -> Run:
    """The evaluation whose kernel is timed to compare hosts; nothing of it is judged."""
    problem = seeds.load(CALIBRATION)
    source = _kernel_of(problem)
    request = EvaluationRequest(
        candidate="calibration", author=PERSON, source=digest_of(source), problem=problem.ref(),
        size=REDUCED, target=target, toolchain="", level=Level.SLICES,
    )  # fmt: skip
    return Run(request, problem, source, request.level)
