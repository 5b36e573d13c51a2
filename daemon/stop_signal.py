"""Stop requests of the process: the first asks for a graceful stop, the second for an immediate one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any


class StopSignal:
    """Counts requests to stop: after the first, work in flight may finish; after the second, it may not."""

    def __init__(self, acknowledge: Callable[[], None] = lambda: None) -> None:
        """`acknowledge` is called at the first request, before anything ends."""
        self.requested = asyncio.Event()
        self.immediate = asyncio.Event()
        self._acknowledge = acknowledge
        self._linked: StopSignal | None = None

    def request(self) -> None:
        """Request a stop; a second request makes it immediate."""
        if self.requested.is_set():
            self.immediate.set()
        else:
            self._acknowledge()
        self.requested.set()
        if self._linked is not None:
            self._linked.request()

    def linked(self) -> StopSignal:
        """Return a signal that stops with this one, and may be stopped alone."""
        made = StopSignal()
        for mine, theirs in ((self.requested, made.requested), (self.immediate, made.immediate)):
            if mine.is_set():
                theirs.set()
        self._linked = made
        return made

    def install_signal_handlers(self) -> None:
        """Treat SIGTERM and SIGINT as stop requests; call this from the running loop's main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request)


async def wait_for_first(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Return when any of `events` is set, or after `seconds`."""
    if len(events) == 1:  # a single event needs no task, which matters for periodic waits
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await events[0].wait()
        return
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_alongside(
    work: Coroutine[Any, Any, None], *sides: Coroutine[Any, Any, None], stop: StopSignal
) -> None:
    """Do `work` while `sides` run in the background; they are cancelled at the end.

    A side that fails requests a stop. The first such error is raised when the work has ended.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            stop.requested.set()

    running = [asyncio.create_task(side) for side in sides]
    for task in running:
        task.add_done_callback(ended)
    try:
        await work
    finally:
        for task in running:
            task.cancel()
        results = await asyncio.gather(*running, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
