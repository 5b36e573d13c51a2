"""Talks to the worker on one host: starts it, installs it first if it is missing, restarts it.

Every question goes through `retry_lost_link`: if the link breaks, the question is asked again over a new one.
Asking twice does no harm.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from remote.hostside.limits import PROTOCOL
from remote.ssh import bootstrap
from remote.ssh.channel import SilentWorkerError, WorkerChannel
from remote.ssh.errors import HostPythonError, HostUnreachableError, HostWorkerError, LinkLostError
from remote.ssh.job import HostFacts, read_facts
from remote.ssh.link import SshLink
from remote.ssh.worker_archive import WorkerArchive, load_worker_archive

ANSWER_S = 60.0  # for immediate answers; over a slow link, a piece of a file may be sent first

_Found = TypeVar("_Found")


class WorkerClient:
    """One home's conversation with one host. `shipped` replaces this version's worker archive."""

    def __init__(self, link: SshLink, shipped: WorkerArchive | None = None) -> None:
        self.link = link
        self.bytes_sent = 0
        self._shipped = shipped
        self._client = secrets.token_hex(8)
        self._opening = asyncio.Lock()
        self._channel: WorkerChannel | None = None
        self._python: str | None = None
        self._facts: HostFacts | None = None

    @property
    def live_channel(self) -> WorkerChannel | None:
        """The channel, if one is usable now."""
        return None if self._channel is None or self._channel.is_dead else self._channel

    async def host_facts(self) -> HostFacts:
        """Return the facts from the host's greeting."""
        await self.open_channel()
        assert self._facts is not None
        return self._facts

    async def retry_lost_link(self, work: Callable[[], Awaitable[_Found]], patience_s: float) -> _Found:
        """Do `work`, again whenever the link breaks, until the host has been silent for `patience_s`.

        Raises:
            HostUnreachableError: it was silent for that long; at once if it was never reached and cannot be.
        """
        failures, since = 0, time.monotonic()
        while True:
            try:
                return await work()
            except (LinkLostError, HostUnreachableError) as error:
                silent_s = self.link.silent_s
                if silent_s is None and isinstance(error, HostUnreachableError):
                    raise
                waited_s = time.monotonic() - since
                silent_s = waited_s if silent_s is None else min(silent_s, waited_s)
                if silent_s > patience_s:
                    raise HostUnreachableError(
                        f"{self.link.host.address}: out of reach for {silent_s:.0f} s: {error.message}"
                    ) from error
            await asyncio.sleep(min(self.link.timing.pause_s(failures), patience_s / 4))
            failures += 1

    async def aclose(self) -> None:
        """End the conversation and the link."""
        if self._channel is not None:
            await self._channel.aclose()
        await self.link.aclose()

    async def open_channel(self) -> WorkerChannel:
        """Return a channel whose worker has sent its greeting."""
        async with self._opening:
            if (standing := self.live_channel) is not None:
                return standing
            if self._channel is not None:
                await self._channel.aclose()
            self._channel = None
            channel = await self._start_worker()
            try:
                answer, _ = await channel.ask(
                    "hello", within_s=ANSWER_S, protocol=PROTOCOL, client=self._client
                )
                self._facts = read_facts(answer, self.link.host.address)
            except BaseException:
                await channel.aclose()
                raise
            self._channel = channel
            return channel

    async def _start_worker(self) -> WorkerChannel:
        """Start the worker; install it first if it does not run."""
        shipped, address = self._shipped or load_worker_archive(), self.link.host.address
        if self._python is None:
            self._python = await bootstrap.find_python(self.link)
        argv = bootstrap.serve_command(self.link.host, self._python, shipped.digest)
        for attempt in range(2):
            channel = WorkerChannel(self.link)
            try:
                await channel.start_worker(argv)
            except SilentWorkerError as error:
                self._check_python(error)
                if attempt:
                    said = f"it ends with status {error.status}: {error.said.strip()[-500:]}"
                    raise HostWorkerError(f"{address}: the worker does not run there; {said}") from error
                self.bytes_sent += await bootstrap.install_worker(self.link, self._python, shipped)
            else:
                return channel
        raise AssertionError("the second attempt returns or raises")

    def _check_python(self, error: SilentWorkerError) -> None:
        if error.status in bootstrap.NOT_FOUND:
            python, self._python = self._python, None
            raise HostPythonError(
                f"{self.link.host.address}: {python} does not run there; name another python"
            ) from error
