"""Server-sent events: one poll of the log's end, several times a second, for any number of open pages.

A message says how long the log is, but nothing about its content; a page then requests what it shows.
While nobody listens, the log is not polled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from state.errors import StateError

LOOK_SECONDS = 0.05
PULSE_SECONDS = 15.0
"""The longest silence on a connection (seconds); proxies may cut connections that are silent for longer."""


class Feed:
    """Tells listeners when `head`, which is called in a thread, has changed."""

    def __init__(self, head: Callable[[], int]) -> None:
        self._head = head
        self._listeners = 0
        self._seq = 0
        self._closed = False
        self._changed = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def listen(self) -> AsyncIterator[bytes]:
        """Yield messages, the first at once, until the feed is closed."""
        self._listeners += 1
        self._loop = asyncio.get_running_loop()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._watch_head())
        told = -1
        try:
            yield b"retry: 1000\n\n"
            while not self._closed:
                changed = self._changed
                if told != self._seq:
                    told = self._seq
                    yield f"data: {json.dumps({'seq': told})}\n\n".encode()
                    continue
                try:
                    async with asyncio.timeout(PULSE_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield b": still there\n\n"
        finally:
            self._listeners -= 1

    def close(self) -> None:
        """End all listeners; call this from the loop's own thread."""
        self._closed = True
        self._changed.set()

    def close_threadsafe(self) -> None:
        """End all listeners, from any other thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    async def _watch_head(self) -> None:
        while self._listeners and not self._closed:
            try:
                seq = await asyncio.to_thread(self._head)
            except StateError:
                seq = self._seq  # the log is being replaced, or is gone; a request will report it
            if seq != self._seq:
                self._seq = seq
                self._changed.set()
                self._changed = asyncio.Event()
            await asyncio.sleep(LOOK_SECONDS)
