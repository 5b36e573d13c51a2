"""Runs jobs on one host: submits, awaits, fetches and forgets them, even if the link breaks in between.

Both ends know a job by its key. Submitting it again joins the existing one, so every step here is simply
repeated when the link breaks; a finished result is fetched, not computed again. The lease is renewed several
times within its length, which also detects a silent link in time. If the host is out of reach for longer than
the lease, the job has ended there, and another host may run it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import zlib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from remote.hostside.limits import CHUNK_BYTES
from remote.ssh import bootstrap
from remote.ssh.channel import WorkerChannel
from remote.ssh.errors import (
    HostDeadlineError,
    HostError,
    HostFullError,
    HostProtocolError,
    HostQueueError,
    HostWorkerError,
    LinkLostError,
)
from remote.ssh.host import HostSpec
from remote.ssh.job import AnswerReader, HostFacts, JobResult, JobSpec, read_result
from remote.ssh.link import SshLink
from remote.ssh.worker_archive import WorkerArchive, load_worker_archive
from remote.ssh.worker_client import ANSWER_S, WorkerClient

_RENEWALS = 6  # per lease
_SIGN_S = 30.0  # the worker drops a home that is silent for minutes
_CANCEL_S = 20.0
_FORGET_S = 15.0
_MARGIN_S = 120.0  # for what a job does besides running: preparing, ending, hashing
_RESTARTS = 3
_PATIENCE_S = 120.0  # how long greetings and transfers wait for the link to come back
_DIGESTS = 1000  # per question


class JobClient:
    """The jobs of one home on one host. `worker` replaces this version's worker archive."""

    def __init__(self, link: SshLink, *, worker: WorkerArchive | None = None) -> None:
        self.link = link
        self._caller = WorkerClient(link, worker)
        self._leases: dict[str, float] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._files: dict[str, Mapping[str, tuple[str, int]]] = {}
        self._bytes_put = 0

    @property
    def bytes_sent(self) -> int:
        """Compressed bytes of contents and of the worker sent over the link so far."""
        return self._bytes_put + self._caller.bytes_sent

    @property
    def host(self) -> HostSpec:
        return self.link.host

    async def greet_host(self) -> HostFacts:
        """Return the host's facts; install the worker first if it is missing.

        Raises:
            HostError: it cannot be reached, or the worker does not run there.
        """
        return await self._caller.retry_lost_link(self._caller.host_facts, _PATIENCE_S)

    async def upload_blobs(self, blobs: Mapping[str, bytes]) -> int:
        """Send the `blobs` (sha256 to content) that the host lacks; return the number of bytes sent.

        Raises:
            HostError: it cannot be reached, or its disk is full.
        """
        sent = 0

        async def send() -> None:
            nonlocal sent
            channel = await self._caller.open_channel()
            digests = list(blobs)
            for begin in range(0, len(digests), _DIGESTS):
                asked = digests[begin : begin + _DIGESTS]
                answer, _ = await channel.ask("lacking", within_s=ANSWER_S, digests=asked)
                for digest in sorted(
                    AnswerReader(answer, self.host.address).read_digests("lacking", _DIGESTS)
                ):
                    if digest in blobs:
                        sent += await _send_content(channel, digest, blobs[digest])

        await self._caller.retry_lost_link(send, _PATIENCE_S)
        self._bytes_put += sent
        return sent

    async def run_job(self, job: JobSpec) -> JobResult:
        """Run a job and return how it ended: done, failed, deadline, cancelled or unending.

        It starts again from scratch if the host went down or the lease was lost. Cancelling ends it on the
        host: at once if the link works, else when its lease ends.

        Raises:
            HostLacksError: an input is no longer there; `upload_blobs` it again.
            HostUnreachableError: the host has been away for longer than the lease.
            HostQueueError: no core became free within `queue_s`.
            HostDeadlineError: the host reports no end, long after the job's deadline.
            HostError: the worker there failed, its disk is full, or it refuses us.
        """
        self._leases[job.key] = job.lease_s
        try:
            longest_s = job.queue_s + job.deadline_s + job.lease_s + _MARGIN_S
            async with asyncio.timeout(_RESTARTS * longest_s):
                for _ in range(_RESTARTS):
                    answer = await self._caller.retry_lost_link(partial(self._attempt_job, job), job.lease_s)
                    if answer.get("state") == "over":
                        result = read_result(answer.get("result"), self.host.address)
                        if result.status != "lease_lost":
                            self._files[job.key] = result.files
                            return self._check_result(job, result)
                raise LinkLostError(
                    f"{self.host.address}: job {job.key[:12]} lost its lease {_RESTARTS} times"
                )
        except TimeoutError as error:
            raise HostDeadlineError(f"{self.host.address}: nothing is heard of job {job.key[:12]}") from error
        except asyncio.CancelledError:
            await self._cancel_job(job.key)
            raise
        finally:
            self._leases.pop(job.key, None)

    async def _attempt_job(self, job: JobSpec) -> dict[str, Any]:
        """Submit a job and wait; return the worker's answer."""
        channel = await self._caller.open_channel()
        self._start_renewing()
        spec = {**asdict(job), "inputs": dict(job.inputs), "allowed": self.host.cores}
        # The worker answers in order, so the second question need not wait for the first answer.
        waiting = asyncio.create_task(channel.ask("wait", within_s=None, key=job.key))
        try:
            await channel.ask("submit", within_s=ANSWER_S, spec=spec)
            answer, _ = await waiting
            return answer
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    def _check_result(self, job: JobSpec, result: JobResult) -> JobResult:
        """Return a result; raise an error for one that says nothing about the job itself."""
        where = f"{self.host.address}: job {job.key[:12]}"
        said = result.log_tail.strip()[-500:]
        if result.status == "queue":
            raise HostQueueError(
                f"{where} ({job.step}) got no core within {job.queue_s:g} s; others use them all"
            )
        if result.status == "full":
            raise HostFullError(f"{where} ({job.step}): the disk there is full; free some ({said})")
        if result.status in {"broken", "vanished"}:
            raise HostWorkerError(f"{where} ({job.step}): its runner failed: {said}")
        return result

    async def fetch_files(self, key: str, names: Collection[str]) -> dict[str, bytes]:
        """Return files that a finished job left, each checked against its digest.

        Raises:
            KeyError: the job left no such file.
            HostError: it cannot be reached, or sends invalid data.
        """
        files = self._files[key]
        found = {}
        for name in names:
            digest, size = files[name]
            got = bytearray()
            await self._caller.retry_lost_link(partial(self._receive_file, key, name, size, got), _PATIENCE_S)
            if hashlib.sha256(got).hexdigest() != digest:
                raise HostProtocolError(f"{self.host.address}: {name} of job {key[:12]} arrives damaged")
            found[name] = bytes(got)
        return found

    async def _receive_file(self, key: str, name: str, size: int, got: bytearray) -> None:
        """Append the rest of a file to `got`; data already received is kept when the link breaks."""
        while len(got) < size:
            channel = await self._caller.open_channel()
            _, payload = await channel.ask("fetch", within_s=ANSWER_S, key=key, name=name, offset=len(got))
            inflate = zlib.decompressobj()
            try:
                piece = inflate.decompress(payload, CHUNK_BYTES)
            except zlib.error as error:
                raise HostProtocolError(
                    f"{self.host.address}: a piece of {name} is damaged: {error}"
                ) from error
            if not piece or len(got) + len(piece) > size:
                raise HostProtocolError(f"{self.host.address}: {name} is not as long as was announced")
            got += piece

    async def forget_job(self, key: str) -> None:
        """Remove a job's folder; if the host is out of reach, its own cleanup does that later."""
        self._files.pop(key, None)

        async def forget() -> None:
            channel = await self._caller.open_channel()
            await channel.ask("forget", within_s=ANSWER_S, key=key)

        with contextlib.suppress(HostError):
            await self._caller.retry_lost_link(forget, _FORGET_S)

    async def aclose(self) -> None:
        """End the conversation. Running jobs end with their leases."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._caller.aclose()

    async def _cancel_job(self, key: str) -> None:
        """End a job and wait until it ended; without a link its lease ends it."""
        channel = self._caller.live_channel
        if channel is None:
            return
        with contextlib.suppress(HostError):
            answer, _ = await channel.ask("cancel", within_s=_CANCEL_S, key=key)
            if answer.get("wanted") is not False:
                return  # started by another home, which then forgets it
            await channel.ask("wait", within_s=_CANCEL_S, key=key)
            await channel.ask("forget", within_s=_CANCEL_S, key=key)

    def _start_renewing(self) -> None:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew_leases())

    async def _renew_leases(self) -> None:
        """Renew all leases as long as there are any; drop a link that does not answer."""
        while self._leases:
            shortest = min(self._leases.values())
            with contextlib.suppress(HostError):
                if (channel := self._caller.live_channel) is not None:
                    within_s = min(shortest / 3, ANSWER_S)
                    await channel.ask("renew", within_s=within_s, keys=list(self._leases))
            await asyncio.sleep(min(shortest / _RENEWALS, _SIGN_S))


async def _send_content(channel: WorkerChannel, digest: str, data: bytes) -> int:
    """Send one content in pieces; return the number of bytes sent."""
    sent = 0
    for begin in range(0, max(1, len(data)), CHUNK_BYTES):
        payload = zlib.compress(data[begin : begin + CHUNK_BYTES], 6)
        last = begin + CHUNK_BYTES >= len(data)
        await channel.ask("put", within_s=ANSWER_S, payload=payload, digest=digest, offset=begin, last=last)
        sent += len(payload)
    return sent


def list_host_commands(host: HostSpec) -> list[list[str]]:
    """Return every command that is run on a host: find a Python, install the worker, start it."""
    python = host.python or "PYTHON"
    digest = load_worker_archive().digest
    return [
        *([] if host.python else [bootstrap.find_command(host)]),
        bootstrap.install_command(host, python, digest),
        bootstrap.serve_command(host, python, digest),
    ]
