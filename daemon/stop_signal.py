"""How the process is told to stop: once for gracefully, twice for at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


class StopSignal:
    """Counts requests to stop: the first lets work in flight finish, the second does not."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.immediate = asyncio.Event()

    def request(self) -> None:
        """Ask to stop; asking again means at once."""
        if self.requested.is_set():
            self.immediate.set()
        self.requested.set()

    def install_signal_handlers(self) -> None:
        """Take SIGTERM and SIGINT as requests; call from the running loop's main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request)


async def wait_for_first(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Return when any of `events` is set, or after `seconds`."""
    if len(events) == 1:  # what waits periodically needs no task for it
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
    """Do `work` with `sides` running beside it, which are cancelled in the end.

    A side that fails asks to stop, and the first such error is raised when the work has ended.
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
