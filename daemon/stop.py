"""How the process is told to stop: once for gracefully, twice for at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


class Stop:
    """Counts requests to stop: the first lets work in flight finish, the second does not."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.immediate = asyncio.Event()

    def request(self) -> None:
        """Ask to stop; asking again means at once."""
        if self.requested.is_set():
            self.immediate.set()
        self.requested.set()

    def on_signals(self) -> None:
        """Take SIGTERM and SIGINT as requests; call from the running loop's main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request)


async def first_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Return when any of `events` is set, or after `seconds`."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def alongside(side: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None], stop: Stop) -> None:
    """Do `work` with `side` running beside it, which is cancelled in the end.

    A `side` that fails asks to stop, and its error is raised when the work has ended.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            stop.requested.set()

    running = asyncio.create_task(side)
    running.add_done_callback(ended)
    try:
        await work
    finally:
        running.cancel()
        (result,) = await asyncio.gather(running, return_exceptions=True)
    if isinstance(result, Exception):
        raise result
