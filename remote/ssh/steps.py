"""Runs the steps of one evaluation on one host: sends payloads with their files, returns typed answers."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from remote.concurrency import gather_or_cancel
from remote.errors import InfrastructureError
from remote.evaluation_context import EvaluationContext
from remote.ssh import step_archives
from remote.ssh.errors import HostLacksError, HostProtocolError, HostStepError
from remote.ssh.job import HostFacts, JobResult, JobSpec
from remote.ssh.step_archives import StepArchive
from seeds.spec import ProblemSpec
from state.model import canonical_json
from targets.registry import find_device

SHORT_S, LONG_S = 300.0, 3600.0
"""Deadlines in seconds, counted from a step's turn: for steps that inspect, and for steps that compute."""

DEVICE_S = 600.0
"""Seconds for a step on a device: kernels take milliseconds, and one that hangs blocks its core."""


class JobTransport(Protocol):
    """Where jobs go: `remote.ssh.jobs.JobClient`, or a test double."""

    async def greet_host(self) -> HostFacts: ...

    async def upload_blobs(self, blobs: Mapping[str, bytes], /) -> int: ...

    async def run_job(self, job: JobSpec, /) -> JobResult: ...

    async def fetch_files(self, key: str, names: Sequence[str], /) -> dict[str, bytes]: ...

    async def forget_job(self, key: str, /) -> None: ...


class StepEndedError(HostStepError):
    """A step ended without an answer.

    `status` says how, `log_tail` is the end of its log, `killed` tells whether a signal ended it.
    """

    def __init__(self, step: str, address: str, result: JobResult) -> None:
        last = (result.log_tail.strip().splitlines() or [f"exit status {result.exit_status}"])[-1]
        text = f"{address}: step {step} ended without an answer ({result.status}): {last[:500]}"
        super().__init__(text)
        self.step = step
        self.status = result.status
        self.core = result.core
        self.log_tail = result.log_tail
        self.killed = result.exit_status is not None and result.exit_status < 0


class KernelFailedError(Exception):
    """A step reports that the device refused a kernel or failed on it; who is at fault stays open.

    `told` is the host's account of it, `core` the core where it was tried.
    """

    def __init__(self, step: str, answer: StepAnswer) -> None:
        told = answer.fields["error"]
        super().__init__(f"step {step}: the kernel failed")
        self.step = step
        self.told: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        self.core = answer.result.core


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """A step's answer, the key of its files, and how long it ran."""

    key: str
    fields: Mapping[str, Any]
    result: JobResult


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel compiled on a host: the key under which it is kept there, and the digest of its artefact.

    `program` is what came home of it, empty where nothing does. `drawn_by` decides which tiles are compared.
    `call` tells steps how to run it. `device`: a device runs it, and its program is only a second opinion.
    """

    key: str
    digest: str
    program: bytes
    drawn_by: bytes
    call: Mapping[str, Any]
    device: bool = False


@dataclass
class EvaluationSteps:
    """The steps of one evaluation on a kind of `device`; empty while the host is only probed.

    `discard_jobs` removes what they left.
    `weak_jail`: whether a weak jail may hold the kernel. `device_s`: seconds that the steps had a device's
    core, by the host's account, capped by the time waited here.
    """

    jobs: JobTransport
    address: str
    device: str
    weak_jail: bool = False
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)
    keys: list[str] = field(default_factory=list)
    sent: bool = False
    device_s: float = 0.0

    @property
    def weakest_jail(self) -> str:
        """The weakest jail that the host may use; what the probe found may be gone by now."""
        return "weak" if self.weak_jail else "namespaces"

    async def run_step(
        self, step: str, payload: Mapping[str, Any], *, cores: int = 0, prefer: int | None = None,
        deadline_s: float = LONG_S,
    ) -> StepAnswer:  # fmt: skip
        """Run a step with the archives it needs; try once more if the host lost them meanwhile.

        Raises:
            StepEndedError: it ended without an answer.
            InfrastructureError: the host could not be reached.
        """
        asked: dict[str, Any] = {**payload, "device": self.device}
        sent = self.required_archives()
        inputs = {item.name: item.digest for item in sent}
        told = canonical_json([step, asked, inputs, self.nonce])
        spec = JobSpec(
            key=hashlib.sha256(told).hexdigest(), step=step, payload=asked, inputs=inputs, cores=cores,
            prefer=prefer, deadline_s=deadline_s,
        )  # fmt: skip
        began = time.monotonic()
        result = await self._run_job(spec, {item.digest: item.data for item in sent})
        if cores and not self._is_stand_in():
            self.device_s += min(result.ran_s, time.monotonic() - began)
        if result.status != "done":
            raise StepEndedError(step, self.address, result)
        if not isinstance(result.answer, Mapping):
            raise HostProtocolError(f"{self.address}: step {step} did not answer with an object")
        return StepAnswer(spec.key, result.answer, result)

    async def _run_job(self, spec: JobSpec, blobs: Mapping[str, bytes]) -> JobResult:
        self.keys.append(spec.key)
        if not self.sent:
            await self.jobs.upload_blobs(blobs)
            self.sent = True
        try:
            return await self.jobs.run_job(spec)
        except HostLacksError:  # the host's cleanup removed it since
            await self.jobs.upload_blobs(blobs)
            return await self.jobs.run_job(spec)

    async def fetch_file(self, answer: StepAnswer, name: str, *, most: int) -> bytes:
        """Return a file of at most `most` bytes that a step left.

        Raises:
            InfrastructureError: it could not be fetched.
        """
        if name not in answer.result.files:
            raise HostProtocolError(f"{self.address}: a step left no {name}")
        size = answer.result.files[name][1]
        if size > most:
            raise HostProtocolError(f"{self.address}: {name} has {size} bytes, and may have {most}")
        return (await self.jobs.fetch_files(answer.key, [name]))[name]

    async def discard_jobs(self) -> None:
        """Remove what these steps left on the host, as far as it can be reached."""
        keys, self.keys = self.keys, []
        with suppress(InfrastructureError):  # the host removes old jobs by itself
            await gather_or_cancel([self.jobs.forget_job(key) for key in keys])

    def required_archives(self) -> tuple[StepArchive, ...]:
        own = find_device(self.device)[1].packages if self.device else ()
        return step_archives.judge_archive(), *map(step_archives.package_archive, own)

    def _is_stand_in(self) -> bool:
        return bool(self.device and find_device(self.device)[1].stand_in)


def artefact_key(steps: EvaluationSteps, *parts: str) -> str:
    """Return the key under which a host keeps what this version of the code compiles from these parts."""
    archives = [item.digest for item in steps.required_archives()]
    return hashlib.sha256(canonical_json([steps.device, archives, *parts])).hexdigest()


def drawing_payload(spec: ProblemSpec, size: str) -> dict[str, Any]:
    """Return the payload for drawing inputs on a host: resolved shapes, and the key to keep them under."""
    dims = spec.dims(size)
    inputs = [
        {
            "name": item.name,
            "shape": list(item.resolve_shape(dims)),
            "dtype": item.dtype,
            "distribution": item.distribution,
            "scale": item.scale,
        }
        for item in spec.inputs
    ]
    told = {"inputs": inputs, "seeds": list(spec.seeds)}
    key = hashlib.sha256(canonical_json([told, step_archives.judge_archive().digest])).hexdigest()
    return {"key": key[:40], "spec": told}


def call_payload(run: EvaluationContext) -> dict[str, Any]:
    """Return the payload that calls the kernel: the inputs' shapes, scalars by position, the outputs."""
    spec, dims = run.problem.spec, run.problem.spec.dims(run.request.size)
    return {
        "shapes": [list(item.resolve_kernel_shape(dims)) for item in spec.inputs],
        "target": run.request.target,
    }
