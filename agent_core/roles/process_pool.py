"""A small process pool for work that would block the event loop.

It starts with its first job, replaces itself if a worker is killed, and leaves no process behind: a worker
ends with its parent, even if the parent is killed. Workers ignore Ctrl-C, which the parent handles.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

ATTEMPTS = 3
"""How often a job is started before the job itself is blamed for breaking the pool."""


class ProcessPool:
    """Runs `work(request)` in other processes; both are strings, and `work` must be importable."""

    def __init__(self, work: Callable[[str], str], *, workers: int) -> None:
        self._work = work
        self._workers = workers
        self._executor: ProcessPoolExecutor | None = None
        self._closed = False

    async def run(self, request: str) -> str:
        """Return a worker's answer.

        Raises:
            BrokenProcessPool: a worker died on this job at every attempt.
            RuntimeError: the pool is closed.
        """
        return await self._run_job(self._work, request)

    async def prepare(self) -> None:
        """Wait until a worker has started and has loaded what it works with.

        Raises:
            BrokenProcessPool, RuntimeError: as for `run`.
        """
        await self._run_job(_load, self._work)

    async def _run_job(self, job: Callable[[T], R], argument: T) -> R:
        for attempt in range(1, ATTEMPTS + 1):
            executor = self._start_executor()
            try:
                return await asyncio.wrap_future(executor.submit(job, argument))
            except BrokenProcessPool:
                await self._discard_executor(executor)
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        """Wait for running jobs, drop queued ones, and end the workers."""
        self._closed = True
        if self._executor is not None:
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
        if self._executor is executor:
            self._executor = None
        await asyncio.to_thread(executor.shutdown, wait=True, cancel_futures=True)


def _load(_: Callable[[str], str]) -> None:
    """In a worker: do nothing; the argument's module was imported to get here."""


def _follow_parent() -> None:
    """In a worker: ignore Ctrl-C, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
