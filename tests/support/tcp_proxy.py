"""A TCP proxy for tests: late, cut, or silent as a link that died without saying so.

It runs in the test's own loop. Connections may lead into a network namespace: `dial` makes their sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Self

_CHUNK_BYTES = 1 << 16


class Proxy:
    """Forwards a loopback port to another; `delay_s` is one way; after `cut_after` bytes it cuts."""

    def __init__(
        self, target: int, *, delay_s: float = 0.0, dial: Callable[[], socket.socket] | None = None
    ) -> None:
        self.target = target
        self.delay_s = delay_s
        self.cut_after: int | None = None
        self.taken = 0
        self.cuts = 0
        self._dial = dial
        self._open = asyncio.Event()
        self._open.set()
        self._dead: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End all connections, so that both sides see it."""
        for writer in list(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        """Let nothing through any more; nobody is told."""
        self._open.clear()

    def let_go(self) -> None:
        """Let everything through again, also what was held."""
        self._open.set()

    def forsake(self) -> None:
        """Never let anything through on the connections that are there: they are half-open for good."""
        self._dead |= self._writers

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        there: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, ExceptionGroup, asyncio.CancelledError):
            if self._dial:
                sock = await asyncio.to_thread(self._dial)
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.target))
                host, there = await asyncio.open_connection(sock=sock)
            else:
                host, there = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(there)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, there, counted=True))
                both.create_task(self._pump(host, writer, counted=False))
        for end in (writer, there):
            if end is not None:
                self._writers.discard(end)
                self._dead.discard(end)
                end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool
    ) -> None:
        """Carry one direction, each piece `delay_s` after it came and in order."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1000)

        async def deliver() -> None:
            while True:
                due, data = await pieces.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await self._open.wait()
                if writer in self._dead:
                    continue
                if not data:
                    raise ConnectionResetError
                if counted and self.cut_after is not None:
                    self.cut_after -= len(data)
                    if self.cut_after <= 0:
                        self.cut_after = None
                        self.cuts += 1
                        raise ConnectionResetError
                writer.write(data)
                await writer.drain()

        async def take() -> None:
            while data := await reader.read(_CHUNK_BYTES):
                await pieces.put((loop.time() + self.delay_s, data))
            await pieces.put((loop.time() + self.delay_s, b""))

        async with asyncio.TaskGroup() as group:
            group.create_task(take())
            group.create_task(deliver())
