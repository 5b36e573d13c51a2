"""The connection to one host: opened on demand, kept alive, checked for silence, opened again.

One connection carries all sessions, at most eight at once, because servers allow ten. asyncssh alone neither
notices a silent peer nor tells the end of a command from the end of the connection; here both are
`LinkLostError`. Arguments are quoted one by one; data never becomes shell text.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shlex
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from remote.ssh.error_translation import link_lost_error, translate_errors
from remote.ssh.errors import HostDeadlineError, HostError, HostUnreachableError, LinkLostError
from remote.ssh.host import HostSpec
from remote.ssh.host_keys import config_options, connection_options

_OUTPUT_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 16
_CLOSE_S = 5.0
_OPENINGS = 6
_OPENING_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTiming:
    """When to give up a silent host, and how to space attempts to reach it."""

    connect_s: float = 20.0
    login_s: float = 30.0
    keepalive_s: float = 15.0
    keepalives: int = 3
    attempts: int = 3
    backoff_s: float = 1.0
    backoff_most_s: float = 60.0

    def pause_s(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row: doubling, with jitter so that homes spread."""
        most = min(self.backoff_most_s, self.backoff_s * 2.0 ** min(failures, 30))
        return random.uniform(most / 2, most)  # noqa: S311  spreads load, hides nothing


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command on a host ended; the status is -1 if a signal ended it."""

    status: int
    stdout: bytes
    stderr: bytes


class SshLink:
    """One host's connection. `config` replaces the user's ssh_config."""

    def __init__(
        self,
        host: HostSpec,
        *,
        home: Path,
        timing: LinkTiming | None = None,
        config: Path | None = None,
        sessions: int = 8,
    ) -> None:
        self.host = host
        self.timing = timing or LinkTiming()
        self._home = home
        self.config = config
        self._sessions = asyncio.Semaphore(sessions)
        self._connecting = asyncio.Lock()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._heard: float | None = None
        self.connections = 0

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None and not self._connection.is_closed()

    @property
    def silent_s(self) -> float | None:
        """Seconds since the host last answered; None if it never did."""
        return None if self._heard is None else time.monotonic() - self._heard

    def mark_heard(self) -> None:
        """Record that the host answered just now."""
        self._heard = time.monotonic()

    async def run_command(
        self, argv: Sequence[str], *, stdin: bytes = b"", deadline_s: float
    ) -> CommandResult:
        """Run a short command and return its end and output.

        When the deadline passes or the caller cancels, the command's session is closed. A command that does
        not read or write may go on; work that must end belongs into a job.

        Raises:
            HostError: the host cannot be reached, or the output is too large.
            HostDeadlineError: the command takes longer than `deadline_s`.
            LinkLostError: the connection broke first; the command may have run, or may still run.
        """
        try:
            async with asyncio.timeout(deadline_s), self.open_session(argv) as process:
                stdout, stderr, _ = await asyncio.gather(
                    _read_output(self.host, process.stdout),
                    _read_output(self.host, process.stderr),
                    _feed_input(process, stdin),
                )
                await process.wait_closed()
        except TimeoutError as error:
            raise HostDeadlineError(
                f"{self.host.address}: {argv[0]} did not end within {deadline_s:g} s; it may be overloaded"
            ) from error
        if process.exit_signal is not None:
            return CommandResult(-1, stdout, stderr)
        if process.exit_status is None:
            raise link_lost_error(self.host)
        self.mark_heard()
        return CommandResult(process.exit_status, stdout, stderr)

    @contextlib.asynccontextmanager
    async def open_session(self, argv: Sequence[str]) -> AsyncIterator[asyncssh.SSHClientProcess[bytes]]:
        """Start a command and yield its streams; close its session at the end.

        Raises:
            HostError: the host cannot be reached.
        """
        async with self._sessions:
            process = await self._start_command(argv)
            try:
                yield process
            except (asyncssh.Error, OSError) as error:
                if isinstance(error, TimeoutError):
                    raise
                raise link_lost_error(self.host, error) from error
            finally:
                process.close()

    async def _start_command(self, argv: Sequence[str]) -> asyncssh.SSHClientProcess[bytes]:
        """Start a command; retry if the server has not yet noticed the end of other sessions."""
        for patience in range(_OPENINGS):
            connection = await self.ensure_connected()
            try:
                process: asyncssh.SSHClientProcess[Any] = await connection.create_process(
                    shlex.join(argv), encoding=None
                )
            except asyncssh.ChannelOpenError as error:
                if patience + 1 == _OPENINGS or connection.is_closed():
                    raise link_lost_error(self.host, error) from error
                await asyncio.sleep(_OPENING_S * 2**patience)
            except (asyncssh.Error, OSError) as error:
                connection.abort()
                raise link_lost_error(self.host, error) from error
            else:
                return process
        raise AssertionError("the last attempt returns or raises")

    async def ensure_connected(self) -> asyncssh.SSHClientConnection:
        """Return the connection; open it if there is none.

        Raises:
            HostUnreachableError: several attempts failed.
            HostError: trying again will not help: keys, configuration.
        """
        async with self._connecting:
            if self.is_connected:
                assert self._connection is not None
                return self._connection
            for attempt in range(self.timing.attempts):
                if attempt:
                    await asyncio.sleep(self.timing.pause_s(attempt - 1))
                try:
                    self._connection = await self._connect_once()
                except HostUnreachableError:
                    if attempt + 1 == self.timing.attempts:
                        raise
                else:
                    break
            assert self._connection is not None
            self.connections += 1
            return self._connection

    async def _connect_once(self) -> asyncssh.SSHClientConnection:
        options, acquaintance = await connection_options(self.host, self._home, self.config)
        timing = self.timing
        with translate_errors(self.host, acquaintance):
            async with asyncio.timeout(timing.connect_s + timing.login_s):
                return await asyncssh.connect(
                    self.host.name,
                    options=options,
                    **config_options(self.config),
                    connect_timeout=timing.connect_s,
                    login_timeout=timing.login_s,
                    keepalive_interval=timing.keepalive_s,
                    keepalive_count_max=timing.keepalives,
                )

    def abort_connection(self) -> None:
        """Drop the connection at once, because the host no longer answers."""
        if self._connection is not None:
            self._connection.abort()

    async def aclose(self) -> None:
        """Close the connection; the link can be used again."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await connection.wait_closed()
        except (TimeoutError, asyncssh.Error, OSError):
            connection.abort()


async def _feed_input(process: asyncssh.SSHClientProcess[bytes], data: bytes) -> None:
    """Write all of the input; a command may end without reading it."""
    with contextlib.suppress(BrokenPipeError):
        for begin in range(0, len(data), _CHUNK_BYTES):
            process.stdin.write(data[begin : begin + _CHUNK_BYTES])
            await process.stdin.drain()
        process.stdin.write_eof()


async def _read_output(host: HostSpec, stream: asyncssh.SSHReader[bytes]) -> bytes:
    kept = bytearray()
    while chunk := await stream.read(_CHUNK_BYTES):
        kept += chunk
        if len(kept) > _OUTPUT_BYTES:
            raise HostError(f"{host.address}: a command says more than {_OUTPUT_BYTES} bytes")
    return bytes(kept)


__all__ = ["CommandResult", "LinkLostError", "LinkTiming", "SshLink"]
