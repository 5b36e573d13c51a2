"""A conversation with the worker on a host: numbered questions and answers, until the link is gone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import asyncssh

from remote.hostside.frames import PREAMBLE, FrameError, pack_frame, unpack_frame
from remote.ssh.error_translation import link_lost_error
from remote.ssh.errors import (
    HostError,
    HostFullError,
    HostLacksError,
    HostProtocolError,
    HostWorkerError,
    LinkLostError,
)
from remote.ssh.link import SshLink

_READ_BYTES = 1 << 20
_CHATTER_BYTES = 64 << 10  # bytes that a login may print before the worker starts
_SAID_BYTES = 4 << 10
_SPEAK_S = 45.0
_REFUSALS: dict[str, type[HostError]] = {
    "full": HostFullError,
    "lacks": HostLacksError,
    "protocol": HostProtocolError,
}

WorkerAnswer = tuple[dict[str, Any], bytes]


class SilentWorkerError(Exception):
    """The command ended before the worker answered: it is missing or does not run. Installing it may help."""

    def __init__(self, status: int | None, said: str) -> None:
        super().__init__(said)
        self.status = status
        self.said = said


class WorkerChannel:
    """One running worker. `WorkerClient.open_channel` makes it; it is useless once `is_dead`."""

    def __init__(self, link: SshLink) -> None:
        self._link = link
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._spoken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked: dict[int, asyncio.Future[WorkerAnswer]] = {}
        self._number = 0
        self._said = bytearray()
        self._end: HostError | None = None

    @property
    def is_dead(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._end is not None

    async def start_worker(self, argv: list[str]) -> None:
        """Start the worker and wait for its greeting.

        Raises:
            SilentWorkerError: it ended without a greeting.
            HostError: the host cannot be reached, or the link broke.
        """
        self._process = await self._stack.enter_async_context(self._link.open_session(argv))
        self._tasks = [asyncio.create_task(self._read_answers()), asyncio.create_task(self._collect_stderr())]
        try:
            async with asyncio.timeout(_SPEAK_S):
                await self._spoken
        except TimeoutError as error:
            await self.aclose()
            raise link_lost_error(self._link.host, error) from error
        except BaseException:
            await self.aclose()
            raise

    async def ask(
        self, verb: str, *, within_s: float | None, payload: bytes = b"", **fields: Any
    ) -> WorkerAnswer:
        """Ask the worker and return its answer.

        Raises:
            LinkLostError: no answer came; the worker may or may not have acted.
            HostError: the worker refuses.
        """
        if self._end is not None:
            raise self._end
        self._number += 1
        number = self._number
        answer: asyncio.Future[WorkerAnswer] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            async with asyncio.timeout(within_s):
                self._process.stdin.write(pack_frame({"id": number, "verb": verb, **fields}, payload))
                await self._process.stdin.drain()
                header, data = await answer
        except TimeoutError as error:
            self._fail_pending(
                link_lost_error(self._link.host, TimeoutError(f"no answer to {verb} within {within_s} s"))
            )
            self._link.abort_connection()
            raise link_lost_error(self._link.host, error) from error
        except (asyncssh.Error, OSError) as error:
            raise link_lost_error(self._link.host, error) from error
        finally:
            self._asked.pop(number, None)
        return self._check_answer(header), data

    def _check_answer(self, header: dict[str, Any]) -> dict[str, Any]:
        code = header.get("error")
        if code is None:
            return header
        said = str(header.get("message"))[:_SAID_BYTES]
        raise _REFUSALS.get(str(code), HostWorkerError)(f"{self._link.host.address}: {said}")

    async def _read_answers(self) -> None:
        """Hand out answers as they arrive; at the end, fail all who wait."""
        buffer = bytearray()
        try:
            while data := await self._process.stdout.read(_READ_BYTES):
                buffer += data
                if not self._spoken.done() and not self._find_preamble(buffer):
                    continue
                while (message := unpack_frame(buffer)) is not None:
                    self._deliver_answer(*message)
            end: HostError = link_lost_error(self._link.host)
        except FrameError as error:
            end = HostProtocolError(f"{self._link.host.address}: what the worker says is no message: {error}")
        except (asyncssh.Error, OSError) as error:
            end = link_lost_error(self._link.host, error)
        if not self._spoken.done():
            await self._diagnose_silence(end)
        self._fail_pending(end)

    def _find_preamble(self, buffer: bytearray) -> bool:
        found = buffer.find(PREAMBLE)
        if found < 0:
            if len(buffer) > _CHATTER_BYTES:
                raise FrameError("the login prints too much")
            return False
        del buffer[: found + len(PREAMBLE)]
        self._spoken.set_result(None)
        return True

    async def _diagnose_silence(self, end: HostError) -> None:
        """Tell a missing worker from a broken link: only the first has an exit status."""
        if not isinstance(end, LinkLostError):
            self._spoken.set_exception(end)
            return
        with contextlib.suppress(asyncssh.Error, OSError, TimeoutError):
            async with asyncio.timeout(_SPEAK_S):
                await self._process.wait_closed()
        status = self._process.exit_status
        said = self._said.decode("utf-8", "replace")
        if status is not None:
            self._spoken.set_exception(SilentWorkerError(status, said))
        else:
            self._spoken.set_exception(end)

    def _deliver_answer(self, header: dict[str, Any], payload: bytes) -> None:
        self._link.mark_heard()
        answer = self._asked.get(header.get("id", 0)) if isinstance(header.get("id"), int) else None
        if answer is not None and not answer.done():
            answer.set_result((header, payload))

    async def _collect_stderr(self) -> None:
        """Keep the end of the worker's stderr."""
        with contextlib.suppress(asyncssh.Error, OSError):
            while data := await self._process.stderr.read(_READ_BYTES):
                self._said += data
                del self._said[:-_SAID_BYTES]

    def _fail_pending(self, end: HostError) -> None:
        self._end = self._end or end
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(self._end)

    async def aclose(self) -> None:
        """End the conversation; pending questions get no answer."""
        self._fail_pending(link_lost_error(self._link.host))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._spoken.done() and not self._spoken.cancelled():
            self._spoken.exception()  # it was reported, or nobody waits for it
        await self._stack.aclose()
