"""The worker processes of an evaluator: started when needed, kept, killed when a job must end.

A worker that dies, hangs or is cancelled is killed and forgotten; the next job starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

from remote import framing
from remote.errors import InfrastructureError, NoTimelineError
from remote.judge.job import Draws, Forecasts, Job, Matches, Outcome, Reply, Ruled, Texts, Timed
from remote.processes import end, start
from state.model import Predicted

_MESSAGE_LIMIT_BYTES = 1 << 20
_LEAST_MEMORY_BYTES = 4 << 30  # address space; the largest problem's arrays and NumPy's own take about half


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What one worker may use: address space, inputs it keeps, and wall-clock time per job."""

    memory_bytes: int
    input_bytes: int = 512 << 20
    wall_s: float = 1800.0

    @classmethod
    def for_slots(cls, slots: int) -> WorkerLimits:
        """Return limits under which `slots` workers fit into this machine, none under what judging needs."""
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(memory_bytes=max(_LEAST_MEMORY_BYTES, physical * 3 // 4 // slots))


class WorkerPool:
    """Workers that answer one job at a time each; there are as many as jobs were given at once."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self._idle: list[asyncio.subprocess.Process] = []
        self._busy: set[asyncio.subprocess.Process] = set()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers alive."""
        return tuple(process.pid for process in (*self._idle, *self._busy))

    async def judge(self, job: Job, reply: bytes) -> Outcome:
        """Have a worker judge a tracer's reply.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed, bad_reference.
        """
        outcome = await self.judge_shown(job, reply)
        assert isinstance(outcome, Outcome)
        return outcome

    async def judge_shown(self, job: Job, reply: bytes) -> Outcome | tuple[int, ...]:
        """Have a worker judge what a host showed; return the pieces that it has to see in full, if any.

        Raises:
            InfrastructureError: as for `judge`, and bad_pieces.
        """
        answer = await self._ask(job, reply)
        return answer.unsure or _there(answer.outcome)

    async def forecast(self, job: Forecasts, replies: bytes) -> tuple[Predicted, ...]:
        """Have a worker predict the latencies of a tracer's programs.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        return await self._told(job, replies)

    async def read(self, job: Texts) -> tuple[Predicted, ...]:
        """Have a worker read kernels' texts.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        return await self._told(job, b"")

    async def refusal(self, job: Ruled, reply: bytes) -> Outcome | None:
        """Have a worker say which rule a tracer's program breaks, if it breaks any.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        return (await self._ask(job, reply)).outcome

    async def digests(self, job: Draws) -> dict[str, tuple[str, ...]]:
        """Have a worker draw input sets; return the digests of their arrays.

        Raises:
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        answer = await self._ask(job, b"")
        assert answer.digests is not None
        return answer.digests

    async def matches(self, job: Matches) -> tuple[tuple[str, ...], ...]:
        """Have a worker look for a pattern in texts; return what it found in each.

        Raises:
            InfrastructureError: pattern_too_slow; worker_deadline, worker_died, worker_failed.
        """
        answer = await self._ask(job, b"")
        assert answer.matches is not None
        return answer.matches

    async def time(self, job: Timed, reply: bytes) -> bytes:
        """Have a worker say when each instruction of a tracer's program would run: Chrome trace events.

        Raises:
            NoTimelineError: nobody can say, and why.
            InfrastructureError: worker_deadline, worker_died, worker_failed.
        """
        answer = await self._ask(job, reply)
        if answer.rejected is not None:
            raise NoTimelineError(answer.rejected.message)
        assert answer.timeline is not None
        return answer.timeline.encode()

    async def _told(self, job: Forecasts | Texts, payload: bytes) -> tuple[Predicted, ...]:
        answer = await self._ask(job, payload)
        assert answer.forecasts is not None
        return answer.forecasts

    async def _ask(
        self, job: Job | Forecasts | Texts | Timed | Ruled | Draws | Matches, payload: bytes
    ) -> Reply:
        async with self._worker() as process:
            try:
                async with asyncio.timeout(self.limits.wall_s):
                    header, _ = await _exchange(
                        process, framing.pack(job.model_dump_json().encode(), payload)
                    )
            except TimeoutError:
                text = f"the worker did not answer within {self.limits.wall_s:g} s"
                raise InfrastructureError("worker_deadline", text) from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise InfrastructureError("worker_died", "the worker died while judging") from None
        answer = Reply.model_validate_json(header)
        if answer.failure is not None:
            raise InfrastructureError(answer.failure.code, answer.failure.message)
        return answer

    @contextlib.asynccontextmanager
    async def _worker(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await self._take()
        self._busy.add(process)
        try:
            yield process
        except BaseException:
            # It may still be computing, or have half an answer in its pipe.
            await end(process)
            raise
        else:
            self._idle.append(process)
        finally:
            self._busy.discard(process)

    async def _take(self) -> asyncio.subprocess.Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        return await start(
            sys.executable,
            *("-P", "-m", "remote.worker", str(self.limits.memory_bytes), str(self.limits.input_bytes)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=worker_environment(),
            limit=_MESSAGE_LIMIT_BYTES,
        )

    async def aclose(self) -> None:
        """Kill every worker."""
        for process in (*self._idle, *self._busy):
            await end(process)
        self._idle.clear()


def _there(outcome: Outcome | None) -> Outcome:
    assert outcome is not None
    return outcome


def worker_environment() -> dict[str, str]:
    """One BLAS thread per worker (slots are the parallelism), and nothing else of this process's secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


async def _exchange(process: asyncio.subprocess.Process, message: bytes) -> tuple[bytes, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(message)
    await process.stdin.drain()
    return await framing.receive(process.stdout)
