"""Starts and ends child processes so that cancellation, at any moment, leaves none behind.

asyncio does not promise that. If it is cancelled while it starts a process, it kills only that process, and
then waits for ever if a child of it holds a pipe. And `wait` returns only after every pipe was read to its
end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from typing import Any

_CHUNK_BYTES = 1 << 16
_END_S = 30.0  # a killed process is gone in milliseconds; this only keeps a stuck machine from blocking us


async def start_process(*command: str, **options: Any) -> Process:
    """Start a process in a session of its own; `options` are those of `asyncio.create_subprocess_exec`.

    Raises:
        OSError: the process cannot be started.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(*command, start_new_session=True, **options)
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        if starting.exception() is None:
            await kill_process(starting.result())
        raise


async def kill_process(process: Process) -> None:
    """Kill a process with its whole group and wait until it is gone."""
    kill_group(process.pid)
    await asyncio.shield(_drain_and_wait(process))


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads; ignore that it may be gone already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def _drain_and_wait(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    outputs = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            await asyncio.gather(process.wait(), *(read_bounded(stream, 0) for stream in outputs))


async def read_bounded(stream: asyncio.StreamReader | None, limit: int) -> tuple[bytes, bool]:
    """Read to the end and keep at most `limit` bytes; also return whether there were more.

    The rest is read and dropped, so that the writer never blocks.
    """
    assert stream is not None
    kept = bytearray()
    total = 0
    while chunk := await stream.read(_CHUNK_BYTES):
        total += len(chunk)
        kept += chunk[: limit - len(kept)]
    return bytes(kept), total > limit
