"""The simulator on a host, standing in for a device: its traced programs are judged as those made here.

The program comes home, as the host's compiler output does not: rules, identity and the predicted time follow
from it here, and what the host says of its time has to be the same.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import asdict

from remote.asked import Run, ended_badly
from remote.judge.job import Outcome, Ruled
from remote.local import LocalEvaluator
from remote.sandbox import JailResult
from remote.ssh.errors import HostDisagreesError, HostProtocolError
from remote.ssh.job import Reader
from remote.ssh.measure import BadSamplesError, checked, protocol_for
from remote.ssh.steps import LONG_S, SHORT_S, Answer, Compiled, Steps, artefact_key, calling, drawing_of
from targets.nki.tracer import NkiTracer

_SAME = 1e-9
_KEPT_BYTES = 64 << 20


class Programs:
    """Programs that came home before, by digest, so that they need not come again."""

    def __init__(self, max_bytes: int = _KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._found: OrderedDict[str, bytes] = OrderedDict()

    def get(self, digest: str) -> bytes | None:
        return self._found.get(digest)

    def keep(self, digest: str, data: bytes) -> None:
        self._found[digest] = data
        while sum(map(len, self._found.values())) > self._max_bytes:
            self._found.popitem(last=False)


class Simulated:
    """The simulator, on a host."""

    def __init__(self, local: LocalEvaluator) -> None:
        self._limits = local.jail_limits
        self._workers = local.workers
        self._programs = Programs()

    async def compile(self, steps: Steps, run: Run) -> Compiled | Outcome:
        """Have the kernel traced; the verdict where that ended badly."""
        dims = run.problem.spec.dims(run.request.size)
        asked = NkiTracer().request(run.source.decode(), run.problem, dims, run.request.target).decode()
        key = artefact_key(steps, asked, str(self._limits))
        payload = {
            "artefact": key,
            "request": asked,
            "limits": asdict(self._limits),
            "strength": steps.strength,
        }
        answer = await steps.ask("compile", payload, deadline_s=2 * self._limits.wall_s + SHORT_S)
        program = await self._program(steps, answer)
        ended = ended_badly(_jail_result(steps, answer, program))
        if ended is None:
            ruled = Ruled(spec=run.problem.spec, size=run.request.size, target=run.request.target)
            ended = await self._workers.refusal(ruled, program)
        if ended is not None:
            return ended
        digest = hashlib.sha256(program).hexdigest()
        call = {"artefact": key, "memory_bytes": self._workers.limits.memory_bytes, **calling(run)}
        return Compiled(key=key, digest=digest, program=program, drawn_by=program, call=call)

    async def timed(self, steps: Steps, run: Run, compiled: Compiled, outcome: Outcome) -> Outcome:
        """Check what the host says of the kernel's time: the model here has the last word."""
        if outcome.benchmark is None:
            return outcome
        async with run.at("benchmark"):
            samples = await self.clock(steps, run, compiled)
        expected = outcome.benchmark.latency_ms
        if any(abs(sample - expected) > _SAME * expected for sample in samples):
            text = f"{steps.address} predicts {samples[0]:.6g} ms, the same model here {expected:.6g} ms"
            raise HostDisagreesError(text)
        return outcome

    async def clock(
        self, steps: Steps, run: Run, compiled: Compiled, *, core: int | None = None
    ) -> tuple[float, ...]:
        """Return the host's samples, all of which are the one prediction."""
        protocol = protocol_for(run.request.target)
        spec = run.problem.spec
        payload = {
            **drawing_of(spec, run.request.size), **compiled.call, "artefacts": [compiled.key], "work": 1,
            "set": str(spec.seeds[0]), "warmups": 0, "runs": protocol.runs, "dry": True,
        }  # fmt: skip
        answer = await steps.ask("benchmark", payload, cores=1, prefer=core, deadline_s=LONG_S)
        told = answer.fields.get("samples_ms")
        try:
            return checked(told[0] if isinstance(told, list) and told else None, protocol)
        except BadSamplesError as error:
            raise HostProtocolError(f"{steps.address}: {error}") from error

    async def _program(self, steps: Steps, answer: Answer) -> bytes:
        known = self._programs.get(str(answer.fields.get("digest")))
        if known is None:
            known = await steps.fetch(answer, "artefact", most=self._limits.answer_bytes)
            self._programs.keep(hashlib.sha256(known).hexdigest(), known)
        return known


def _jail_result(steps: Steps, answer: Answer, program: bytes) -> JailResult:
    """How the jailed tracer ended, as it would have been told here."""
    reader = Reader(answer.fields, steps.address)
    return JailResult(
        answer=program,
        exit_status=reader.integer("exit_status"),
        stderr=reader.text("stderr"),
        truncated=reader.flag("truncated"),
        cpu_exhausted=reader.flag("cpu_exhausted"),
        asleep=reader.flag("asleep"),
    )
