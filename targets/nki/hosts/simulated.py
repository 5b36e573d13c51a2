"""The simulator on a host, standing in for a device: its traced programs are judged like those traced here.

Unlike compiler output, the program comes home. Rules, identity and the predicted time follow from it here,
and the host must report the same time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import asdict

from remote.evaluation_context import EvaluationContext, tracer_failure
from remote.judge.job import CheckJob, JudgeOutcome
from remote.judge_service import JudgeService, reject_other_program
from remote.sandbox import JailResult
from remote.ssh.errors import HostDisagreesError, HostProtocolError
from remote.ssh.job import AnswerReader
from remote.ssh.measure import BadSamplesError, check_samples
from remote.ssh.steps import (
    LONG_S,
    SHORT_S,
    CompiledKernel,
    EvaluationSteps,
    StepAnswer,
    artefact_key,
    call_payload,
    drawing_payload,
)
from targets.nki.hosts.neuron import protocol_for
from targets.nki.tracer import NkiTracer

_SAME = 1e-9
_KEPT_BYTES = 64 << 20


class ProgramCache:
    """Programs that came home before, by digest, so that they are not sent again."""

    def __init__(self, max_bytes: int = _KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._found: OrderedDict[str, bytes] = OrderedDict()

    def get(self, digest: str) -> bytes | None:
        return self._found.get(digest)

    def add(self, digest: str, data: bytes) -> None:
        self._found[digest] = data
        while sum(map(len, self._found.values())) > self._max_bytes:
            self._found.popitem(last=False)


class SimulatedDevice:
    """The simulator, on a host."""

    def __init__(self, judge: JudgeService) -> None:
        self._judge = judge
        self._limits = judge.jail_limits
        self._workers = judge.workers
        self._programs = ProgramCache()

    async def compile_kernel(
        self, steps: EvaluationSteps, run: EvaluationContext
    ) -> CompiledKernel | JudgeOutcome:
        """Trace the kernel; return the verdict where that failed."""
        key, answer = await self._trace_there(steps, _trace_request(run, repeat=True))
        program = await self._fetch_program(steps, answer)
        ended = tracer_failure(_jail_result(steps, answer, program))
        if ended is None:
            ruled = CheckJob(spec=run.problem.spec, size=run.request.size, target=run.request.target)
            ended = await self._workers.find_broken_rule(ruled, program)
        if ended is not None:
            return ended
        digest = hashlib.sha256(program).hexdigest()
        call = {"artefact": key, "memory_bytes": self._workers.limits.memory_bytes, **call_payload(run)}
        return CompiledKernel(key=key, digest=digest, program=program, drawn_by=program, call=call)

    async def _trace_there(
        self, steps: EvaluationSteps, request: str, hash_seed: int | None = None
    ) -> tuple[str, StepAnswer]:
        """Trace a kernel on the host; return the key of what the tracer said, and how it ended."""
        key = artefact_key(
            steps, request, str(self._limits), *([] if hash_seed is None else [str(hash_seed)])
        )
        payload = {
            "artefact": key,
            "request": request,
            "limits": asdict(self._limits),
            "strength": steps.weakest_jail,
            "hash_seed": hash_seed,
        }
        return key, await steps.run_step("compile", payload, deadline_s=2 * self._limits.wall_s + SHORT_S)

    async def _retrace_there(
        self, steps: EvaluationSteps, run: EvaluationContext, compiled: CompiledKernel
    ) -> JudgeOutcome | None:
        """Trace a kernel in another process there; return the verdict if it builds another program."""
        seed = self._judge.draw_hash_seed(run)
        _, answer = await self._trace_there(steps, _trace_request(run, repeat=False), seed)
        if answer.fields.get("digest") == compiled.digest:
            return None
        program = await self._fetch_program(steps, answer)
        return tracer_failure(_jail_result(steps, answer, program)) or reject_other_program()

    async def measure_kernel(
        self, steps: EvaluationSteps, run: EvaluationContext, compiled: CompiledKernel, outcome: JudgeOutcome
    ) -> JudgeOutcome:
        """Check the time that the host reports for the kernel: the model here has the last word."""
        if outcome.benchmark is None:
            return outcome
        async with run.time_stage("retrace"):
            differs = await self._retrace_there(steps, run, compiled)
        if differs is not None:
            return differs
        async with run.time_stage("benchmark"):
            samples = await self.sample_times(steps, run, compiled)
        expected = outcome.benchmark.latency_ms
        if any(abs(sample - expected) > _SAME * expected for sample in samples):
            text = f"{steps.address} predicts {samples[0]:.6g} ms, the same model here {expected:.6g} ms"
            raise HostDisagreesError(text)
        return outcome

    async def sample_times(
        self,
        steps: EvaluationSteps,
        run: EvaluationContext,
        compiled: CompiledKernel,
        *,
        core: int | None = None,
    ) -> tuple[float, ...]:
        """Return the host's samples, which all equal the one prediction."""
        protocol = protocol_for(run.request.target)
        spec = run.problem.spec
        payload = {
            **drawing_payload(spec, run.request.size), **compiled.call,
            "artefacts": [compiled.key], "work": 1,
            "set": str(spec.seeds[0]), "warmups": 0, "runs": protocol.runs, "dry": True,
        }  # fmt: skip
        answer = await steps.run_step("benchmark", payload, cores=1, prefer=core, deadline_s=LONG_S)
        told = answer.fields.get("samples_ms")
        try:
            return check_samples(told[0] if isinstance(told, list) and told else None, protocol)
        except BadSamplesError as error:
            raise HostProtocolError(f"{steps.address}: {error}") from error

    async def _fetch_program(self, steps: EvaluationSteps, answer: StepAnswer) -> bytes:
        known = self._programs.get(str(answer.fields.get("digest")))
        if known is None:
            known = await steps.fetch_file(answer, "artefact", most=self._limits.answer_bytes)
            self._programs.add(hashlib.sha256(known).hexdigest(), known)
        return known


def _trace_request(run: EvaluationContext, *, repeat: bool) -> str:
    dims, target = run.problem.spec.dims(run.request.size), run.request.target
    asked = NkiTracer().request(run.source.decode(), run.problem, dims, target=target, repeat=repeat)
    return asked.decode()


def _jail_result(steps: EvaluationSteps, answer: StepAnswer, program: bytes) -> JailResult:
    """Return how the jailed tracer ended, in the form in which the sandbox here reports it."""
    reader = AnswerReader(answer.fields, steps.address)
    return JailResult(
        answer=program,
        exit_status=reader.read_integer("exit_status"),
        stderr=reader.read_text("stderr"),
        truncated=reader.read_flag("truncated"),
        cpu_exhausted=reader.read_flag("cpu_exhausted"),
        asleep=reader.read_flag("asleep"),
    )
