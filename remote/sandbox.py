"""The jail: runs one process of untrusted code, and reads its one answer from a pipe.

`jail_backends` builds the jail. This module starts the code in a session of its own, feeds it, reads its
answer and kills the whole session. Stdout is discarded, stderr and answer are bounded, and a clock ends what
no limit ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from remote.errors import InfrastructureError
from remote.jail_backends import (
    JailedProgram,
    JailLimits,
    JailStrength,
    guess_strength,
    jail_command,
    jail_strength,
)
from remote.jail_init import OUT_OF_MEMORY_STATUS, READY_BYTE, STARVED_STATUS
from remote.processes import kill_group, kill_process, read_bounded, start_process

_STDERR_BYTES = 16 << 10
LOOK_S = 1.0
LOOKS = 15
"""Consecutive looks that must find a program asleep, without use of CPU time, before it counts as deadlocked.

A jailed program has its whole request, talks to nobody, and always has a reader for its output. So only a
timer or a lock of its own can keep it waiting. On a busy machine it would be ready to run or wait for a disk.
"""

JAIL_START = "jail_start"
"""The code of a jail that did not come to run its program."""

_PROC = Path("/proc")
_AWAKE = frozenset({"R", "D"})


@dataclass(frozen=True, slots=True)
class JailResult:
    """How a jailed program ended. `exit_status` is minus the signal's number if a signal ended it."""

    answer: bytes
    exit_status: int
    stderr: str
    truncated: bool
    cpu_exhausted: bool
    asleep: bool = False

    @property
    def was_killed(self) -> bool:
        """Whether something other than its limits killed the program."""
        return self.exit_status == -signal.SIGKILL and not self.cpu_exhausted and not self.asleep

    @property
    def was_starved(self) -> bool:
        """Whether the machine had no space or file handles for the program, or a disk failed under it."""
        return self.exit_status == STARVED_STATUS

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the program had no memory left: the machine's, or that of its limit."""
        return self.exit_status == OUT_OF_MEMORY_STATUS

    def describe_end(self) -> str:
        """Return in words how the program ended: its last line, or its signal."""
        if self.was_killed:
            return "killed from outside (out of memory?)"
        return (self.stderr.strip().splitlines() or [f"it ended with status {self.exit_status}"])[-1][:500]


async def run_jailed(
    program: JailedProgram,
    request: bytes,
    *,
    strength: JailStrength | None,
    files: Sequence[int] = (),
    on_ready: Callable[[], Awaitable[None]] | None = None,
    on_answer: Callable[[bytes], Awaitable[None]] | None = None,
) -> JailResult:
    """Run `program` with `request` on its stdin; return what it wrote to the answer's file descriptor.

    `strength` None is the strongest jail that works here. `files` are further open file descriptors that it
    inherits, for data too large for an answer. `on_ready` is awaited once, when the jail is built and the
    program is loaded; `on_answer` for each piece of the answer, as it comes.

    However this ends, including by cancellation, no process of the jail is left. A deadlocked program is
    ended (`deadlock`).

    Raises:
        InfrastructureError: jail_start, jail_deadline.
    """

    async def run(chosen: JailStrength) -> JailResult:
        return await _run_once(program, request, chosen, files=files, on_ready=on_ready, on_answer=on_answer)

    if strength is None and (likely := guess_strength()) is not None:
        try:  # trying jails out first would take a process more, which a short life has no time for
            return await run(likely)
        except InfrastructureError as error:
            if error.code != JAIL_START:
                raise
    if strength is None:
        strength = await asyncio.to_thread(jail_strength)
    return await run(strength)


async def _run_once(
    program: JailedProgram,
    request: bytes,
    strength: JailStrength,
    *,
    files: Sequence[int],
    on_ready: Callable[[], Awaitable[None]] | None,
    on_answer: Callable[[bytes], Awaitable[None]] | None,
) -> JailResult:
    started = time.monotonic()
    async with _spawn_jail(program, strength, files) as (process, answer_fd):
        try:
            async with asyncio.timeout(program.limits.wall_s), asyncio.TaskGroup() as tasks:
                fed = tasks.create_task(_feed_request(process, request))
                watching = tasks.create_task(_kill_if_deadlocked(process, fed))
                tasks.create_task(_wait_for_exit(process)).add_done_callback(lambda _: watching.cancel())
                output = tasks.create_task(
                    _read_fd(answer_fd, program.limits.answer_bytes, on_ready, on_answer=on_answer)
                )
                errors = tasks.create_task(read_bounded(process.stderr, _STDERR_BYTES))
        except TimeoutError:
            text = f"{program.module} did not end within {program.limits.wall_s} s"
            raise InfrastructureError("jail_deadline", text) from None
        except BaseExceptionGroup as group:  # of a callback: the log or the disk failed
            raise group.exceptions[0] from None
    (answer, truncated), (stderr, _) = output.result(), errors.result()
    status, asleep = normalise_status(process.returncode), not watching.cancelled()
    if not answer.startswith(READY_BYTE):
        text = stderr.decode(errors="replace").strip()[-500:]
        raise InfrastructureError(JAIL_START, f"the {strength} jail did not start ({status}): {text}")
    return JailResult(
        answer=answer[len(READY_BYTE) :],
        exit_status=status,
        stderr=stderr.decode(errors="replace"),
        truncated=truncated,
        cpu_exhausted=not asleep and is_cpu_exhausted(status, time.monotonic() - started, program.limits),
        asleep=asleep,
    )


def is_cpu_exhausted(status: int, wall_s: float, limits: JailLimits) -> bool:
    """Whether the CPU limit ended it: by its own signal, or by the kill that follows if it is ignored.

    A single thread cannot use up the CPU limit in less wall time, so an earlier kill came from elsewhere.
    """
    return status == -signal.SIGXCPU or (status == -signal.SIGKILL and wall_s >= limits.cpu_s)


def normalise_status(status: int | None) -> int:
    """Return a negative signal number: shells and bubblewrap report a signal as 128 + its number."""
    assert status is not None
    return 128 - status if 128 < status < 128 + signal.NSIG else status


@contextlib.asynccontextmanager
async def _spawn_jail(
    program: JailedProgram, strength: JailStrength, files: Sequence[int]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    reader, writer = os.pipe()
    try:
        try:
            process = await start_process(
                *await asyncio.to_thread(jail_command, strength, program, writer),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=(writer, *files),
            )
        except OSError as error:
            text = f"the jail did not start: {error}"
            raise InfrastructureError(JAIL_START, text, of_machine=True) from error
        finally:
            os.close(writer)
        try:
            yield process, reader
        finally:
            await kill_process(process)
    finally:
        os.close(reader)


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    await process.wait()
    # Processes that it left behind hold the pipes open; end them, so that the pipes end.
    kill_group(process.pid)


async def _kill_if_deadlocked(process: asyncio.subprocess.Process, fed: asyncio.Task[None]) -> None:
    """End a program that has its whole request and is deadlocked."""
    await asyncio.wait({fed})
    await wait_for_deadlock(process.pid)
    kill_group(process.pid)


async def _feed_request(process: asyncio.subprocess.Process, request: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may end without reading its request
        process.stdin.write(request)
        await process.stdin.drain()
    process.stdin.close()


async def _read_fd(
    fd: int,
    limit: int,
    on_ready: Callable[[], Awaitable[None]] | None,
    *,
    on_answer: Callable[[bytes], Awaitable[None]] | None,
) -> tuple[bytes, bool]:
    """Return the byte that says ready, and at most `limit` bytes after it; whether there were more."""
    loop = asyncio.get_running_loop()
    stream = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(os.dup(fd), "rb", buffering=0)
    )
    try:
        first = await stream.read(1)
        if first and on_ready is not None:
            await on_ready()
        if on_answer is None:
            rest, truncated = await read_bounded(stream, limit)
            return first + rest, truncated
        while piece := await stream.read(limit + 1):
            await on_answer(piece[:limit])
            limit -= min(limit, len(piece))
        return first, False
    finally:
        transport.close()


async def wait_for_deadlock(session: int) -> None:
    """Return when all processes of a session slept through `LOOKS` looks. Never return without /proc."""
    last, times = -1, 0
    while times < LOOKS:
        await asyncio.sleep(LOOK_S)
        used = _sleeping_cpu_ticks(session)
        times = times + 1 if used is not None and used == last else 0
        last = -1 if used is None else used


def _sleeping_cpu_ticks(session: int) -> int | None:
    """CPU time of a session's processes, in ticks; None if one is awake or none is visible."""
    found = [
        fields
        for fields in map(_read_stat_fields, _PROC.glob("[0-9]*/stat"))
        if fields[3:4] == [str(session)]
    ]
    if not found or any(fields[0] in _AWAKE for fields in found):
        return None
    return sum(int(fields[11]) + int(fields[12]) for fields in found)


def _read_stat_fields(stat: Path) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, group, session, ...; none if it is gone."""
    with contextlib.suppress(OSError):
        return stat.read_text(errors="replace").rpartition(")")[2].split()
    return []
