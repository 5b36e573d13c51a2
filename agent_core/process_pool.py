"""A small process pool for work that would block the event loop.

It starts with its first job, replaces itself if a worker is killed, and leaves no process behind: a worker
ends with its parent, even if the parent is killed. Workers ignore Ctrl-C, which the parent handles. A job
that nobody waits for any more, or that takes longer than `JOB_SECONDS`, is ended with the workers; the other
jobs that they had start again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import connection, get_context, parent_process
from weakref import WeakSet

ATTEMPTS = 3
"""How often a job is started before the job itself is blamed for breaking the pool."""
JOB_SECONDS = 600.0
"""The longest that a job may take: that long may a verdict take, too, by default."""


class JobDeadlineError(Exception):
    """A job took too long, and was ended."""


class ProcessPool:
    """Runs `work(request)` in other processes; both are strings, and `work` must be importable.

    To an empty request `work` answers as soon as it has loaded what it works with.
    """

    def __init__(self, work: Callable[[str], str], *, workers: int, job_seconds: float = JOB_SECONDS) -> None:
        self._work = work
        self._workers = workers
        self.job_seconds = job_seconds
        self._slots = asyncio.Semaphore(workers)  # so that a job's time begins when it does
        self._executor: ProcessPoolExecutor | None = None
        self._ended: WeakSet[ProcessPoolExecutor] = WeakSet()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self._warming: Future[str] | None = None

    async def run(self, request: str) -> str:
        """Return a worker's answer.

        Raises:
            BrokenProcessPool: a worker died on this job at every attempt.
            JobDeadlineError: it took too long.
            RuntimeError: the pool is closed.
        """
        return await self._run_job(request)

    async def prepare(self) -> None:
        """Wait until a worker has started and has loaded what it works with.

        Raises:
            BrokenProcessPool, JobDeadlineError, RuntimeError: as for `run`.
        """
        warming, self._warming = self._warming, None
        if warming is None:
            await self._run_job("")
        else:  # not a second worker beside that one
            with suppress(BrokenProcessPool):  # which the first job finds, and mends
                await asyncio.wrap_future(warming)

    def warm_up(self) -> None:
        """Have a worker start and load, without waiting for it; `prepare` then does."""
        if self._executor is None and not self._closed:
            self._warming = self._start_executor().submit(self._work, "")

    async def _run_job(self, argument: str) -> str:
        broken = 0
        while True:
            async with self._slots:
                executor = self._start_executor()
                try:
                    future = executor.submit(self._work, argument)
                except BrokenProcessPool:  # a worker was killed since the last job: none is to blame
                    await self._discard_executor(executor)
                    continue
                try:
                    async with asyncio.timeout(self.job_seconds) as deadline:
                        return await asyncio.wrap_future(future)
                except BrokenProcessPool:
                    broken += (
                        executor not in self._ended
                    )  # else another job was ended, and the workers with it
                    await self._discard_executor(executor)
                    if broken == ATTEMPTS:
                        raise
                except (TimeoutError, asyncio.CancelledError) as error:
                    if future.running():
                        self._ended.add(executor)
                        await self._discard_executor(executor)
                    if isinstance(error, TimeoutError) and deadline.expired():
                        text = f"a job took more than {self.job_seconds:g} s"
                        raise JobDeadlineError(text) from None
                    raise

    async def aclose(self) -> None:
        """End the workers, and all jobs with them."""
        self._closed = True
        if self._executor is not None:
            self._ended.add(self._executor)
            await self._discard_executor(self._executor)

    def _start_executor(self) -> ProcessPoolExecutor:
        if self._closed:
            raise RuntimeError("the pool is closed")
        if self._executor is None:
            # Spawn, do not fork: the parent has threads, and a fork would copy their held locks.
            self._executor = ProcessPoolExecutor(
                self._workers, mp_context=get_context("spawn"), initializer=_follow_parent
            )
        return self._executor

    async def _discard_executor(self, executor: ProcessPoolExecutor) -> None:
        """End an executor's processes, unless somebody has; return when all that are ending have ended."""
        if self._executor is executor:
            self._executor = None
            for process in tuple((executor._processes or {}).values()):  # noqa: SLF001  `kill_workers` of 3.14
                process.kill()
            ending = asyncio.create_task(asyncio.to_thread(executor.shutdown, wait=True, cancel_futures=True))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        if self._ending:
            await asyncio.wait(self._ending)


def _follow_parent() -> None:
    """In a worker: ignore Ctrl-C, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
