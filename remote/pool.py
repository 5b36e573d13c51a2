"""The worker processes of an evaluator: started when needed, kept, killed when a job must end.

A worker that dies, hangs or is cancelled is killed and dropped; the next job starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter

from remote import framing
from remote.errors import InfrastructureError, NoTimelineError
from remote.judge.job import (
    CheckJob,
    CheckReply,
    DigestJob,
    DigestReply,
    ExplainJob,
    ExplainReply,
    FailureReply,
    GrepJob,
    GrepReply,
    Job,
    JudgeJob,
    JudgeOutcome,
    JudgeReply,
    LintJob,
    LintReply,
    PartsReply,
    PiecesNeeded,
    PredictJob,
    PredictReply,
    Reply,
    TimelineJob,
    TimelineReply,
)
from remote.processes import kill_process, start_process
from state.model import KernelExplanation, PredictedLatency

_MESSAGE_LIMIT_BYTES = 1 << 20
_REPLIES: TypeAdapter[Reply] = TypeAdapter(Reply)
R = TypeVar("R", bound=Reply)

KeepParts = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Takes parts of a judgement as they come; the first ones, of none, say that the worker begins."""

_LEAST_MEMORY_BYTES = 4 << 30  # address space; the largest problem's arrays and NumPy itself take about half


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The limits of one worker: address space, bytes of inputs it keeps, and wall-clock time per job."""

    memory_bytes: int
    input_bytes: int = 512 << 20
    wall_s: float = 1800.0

    @classmethod
    def for_slots(cls, slots: int) -> WorkerLimits:
        """Return limits such that `slots` workers fit into this machine, at least what judging needs."""
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(memory_bytes=max(_LEAST_MEMORY_BYTES, physical * 3 // 4 // slots))


class WorkerPool:
    """Workers that answer one job at a time each; as many are started as jobs run at once."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self._idle: list[asyncio.subprocess.Process] = []
        self._busy: set[asyncio.subprocess.Process] = set()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the living workers."""
        return tuple(process.pid for process in (*self._idle, *self._busy))

    async def judge(
        self, job: JudgeJob, reply: bytes, *, keep: KeepParts | None = None
    ) -> JudgeOutcome | PiecesNeeded:
        """Have a worker judge a tracer's reply, or what a host showed, which may be too little.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed, bad_reference, bad_pieces.
        """
        return (await self._send_job(job, JudgeReply, reply, keep)).result

    async def warm_up(self, target: str) -> None:
        """Start a worker for kernels of a target, unless there is one; a job may be sent to it at once.

        Raises:
            OSError: no process can be started.
        """
        if not self._idle and not self._busy:
            self._idle.append(await self._start_worker(target))

    async def predict_latencies(self, job: PredictJob, replies: bytes) -> tuple[PredictedLatency, ...]:
        """Have a worker predict the latencies of a tracer's programs.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        return (await self._send_job(job, PredictReply, replies)).predictions

    async def read_sources(self, job: LintJob) -> tuple[PredictedLatency, ...]:
        """Have a worker read kernels' texts.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        return (await self._send_job(job, LintReply)).readings

    async def find_broken_rule(self, job: CheckJob, reply: bytes) -> JudgeOutcome | None:
        """Have a worker find the rule that a tracer's program breaks; None if it breaks none.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        return (await self._send_job(job, CheckReply, reply)).refusal

    async def draw_digests(self, job: DigestJob) -> dict[str, tuple[str, ...]]:
        """Have a worker draw input sets; return the digests of their arrays.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        return (await self._send_job(job, DigestReply)).digests

    async def find_matches(self, job: GrepJob) -> tuple[tuple[str, ...], ...]:
        """Have a worker search texts for a pattern; return the matches in each.

        Raises:
            InfrastructureError: pattern_too_slow; worker_deadline, worker_died, worker_failed.
        """
        return (await self._send_job(job, GrepReply)).matches

    async def predict_timeline(self, job: TimelineJob, reply: bytes) -> bytes:
        """Have a worker predict when each instruction of a tracer's program runs, as Chrome trace events.

        Raises:
            NoTimelineError: the program has no timeline, and why.
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        result = (await self._send_job(job, TimelineReply, reply)).result
        if isinstance(result, str):
            return result.encode()
        raise NoTimelineError(result.message)

    async def explain_program(self, job: ExplainJob, reply: bytes) -> KernelExplanation | JudgeOutcome:
        """Have a worker explain a tracer's program; an outcome says which rule the program breaks.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        return (await self._send_job(job, ExplainReply, reply)).result

    async def _send_job(
        self, job: Job, expected: type[R], payload: bytes = b"", keep: KeepParts | None = None
    ) -> R:
        """Have a worker do one job; return its reply of the expected type. `keep` takes parts before it.

        Raises:
            InfrastructureError: as the public methods say.
        """
        async with self._borrow_worker() as process:
            try:
                async with asyncio.timeout(self.limits.wall_s):
                    message = framing.pack_message(job.model_dump_json().encode(), payload)
                    answer = await _exchange_messages(process, message)
                    while isinstance(answer, PartsReply):
                        if keep is not None:
                            await keep(answer.parts)
                        answer = await _receive_reply(process)
            except TimeoutError:
                text = f"the worker did not answer within {self.limits.wall_s:g} s"
                raise InfrastructureError("worker_deadline", text) from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise InfrastructureError("worker_died", "the worker died while judging") from None
        if isinstance(answer, FailureReply):
            raise InfrastructureError(answer.error.code, answer.error.message)
        assert isinstance(answer, expected), f"a {job.type} job was answered with {answer.type}"
        return answer

    @contextlib.asynccontextmanager
    async def _borrow_worker(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await self._acquire_worker()
        self._busy.add(process)
        try:
            yield process
        except BaseException:
            # The worker may still be computing, or have half an answer in its pipe.
            await kill_process(process)
            raise
        else:
            self._idle.append(process)
        finally:
            self._busy.discard(process)

    async def _acquire_worker(self) -> asyncio.subprocess.Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        return await self._start_worker()

    async def _start_worker(self, *targets: str) -> asyncio.subprocess.Process:
        return await start_process(
            *_worker_command(self.limits, *targets),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=worker_environment(),
            limit=_MESSAGE_LIMIT_BYTES,
        )

    async def aclose(self) -> None:
        """Kill every worker."""
        for process in (*self._idle, *self._busy):
            await kill_process(process)
        self._idle.clear()


def measure_start_seconds(target: str) -> float:
    """Return how long a worker for kernels of a target takes to start now; nothing is judged sooner."""
    limits = WorkerLimits.for_slots(1)
    began = time.monotonic()
    subprocess.run(
        _worker_command(limits, target),
        stdin=subprocess.DEVNULL,  # it ends as soon as it has started
        capture_output=True,
        env=worker_environment(),
        check=False,
    )
    return time.monotonic() - began


def _worker_command(limits: WorkerLimits, *targets: str) -> tuple[str, ...]:
    numbers = (str(limits.memory_bytes), str(limits.input_bytes))
    return (sys.executable, "-P", "-m", "remote.worker", *numbers, *targets)


def worker_environment() -> dict[str, str]:
    """One BLAS thread per worker (slots are the parallelism), no search for plugins, none of our secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    fixed = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return kept | fixed | {"PYDANTIC_DISABLE_PLUGINS": "__all__"}


async def _exchange_messages(process: asyncio.subprocess.Process, message: bytes) -> Reply:
    assert process.stdin is not None
    process.stdin.write(message)
    await process.stdin.drain()
    return await _receive_reply(process)


async def _receive_reply(process: asyncio.subprocess.Process) -> Reply:
    assert process.stdout is not None
    header, _ = await framing.receive_message(process.stdout)
    return _REPLIES.validate_json(header)
