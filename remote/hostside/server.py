"""Answers one home over one connection, and ends with it; jobs go on.

One thread: it checks the jobs that a home waits for between messages, and when their runner is done. A home
sends something every few seconds while it lives, so a home that is silent for long is gone, whatever the
state of its connection.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import select
import time
import zlib
from typing import Any, Callable

from remote.hostside import process_tree
from remote.hostside.cleanup import remove_stale_files
from remote.hostside.errors import RequestRefused
from remote.hostside.facts import collect_facts
from remote.hostside.frames import PREAMBLE, FrameError, pack_frame, unpack_frame
from remote.hostside.jobs import JobFolder, submit_job
from remote.hostside.limits import CHUNK_BYTES, PROTOCOL
from remote.hostside.runner import start_runner
from remote.hostside.store import ContentStore
from remote.hostside.workdir import Workdir

SILENT_S = 300.0
_READ_BYTES = 1 << 20
_QUICK_S = 0.01  # how often to check a young job that another process runs; and any other job
_SLOW_S = 0.1
_YOUNG_S = 5.0
_CLIENT = re.compile(r"[0-9a-f]{8,64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

FrameHeader = dict[str, Any]


class WorkerServer:
    """One connection over the descriptors `hears` (input) and `says` (output)."""

    def __init__(self, place: Workdir, program: str, *, hears: int, says: int) -> None:
        self._place = place
        self._program = program
        self._hears = hears
        self._says = says
        self._buffer = bytearray()
        self._client = ""
        self._store = ContentStore(place, "")
        self._waiting: dict[int, tuple[JobFolder, float]] = {}
        self._runners: dict[int, str] = {}  # job key by the descriptor that `start_runner` returned
        self._verbs: dict[str, Callable[[FrameHeader], tuple[FrameHeader, bytes] | None]] = {
            "hello": self._handle_hello,
            "lacking": self._handle_lacking,
            "put": self._handle_put,
            "submit": self._handle_submit,
            "wait": self._handle_wait,
            "renew": self._handle_renew,
            "cancel": self._handle_cancel,
            "fetch": self._handle_fetch,
            "forget": self._handle_forget,
        }

    def serve_home(self) -> None:
        """Answer requests until the home is gone."""
        self._write_all(PREAMBLE)
        heard = time.monotonic()
        while time.monotonic() - heard < SILENT_S:
            ready, _, _ = select.select([self._hears, *self._runners], [], [], self._poll_timeout())
            for fd in self._runners.keys() & set(ready):
                del self._runners[fd]
                os.close(fd)
            if self._hears in ready:
                data = os.read(self._hears, _READ_BYTES)
                if not data:
                    return
                heard = time.monotonic()
                self._buffer += data
                while (message := unpack_frame(self._buffer)) is not None:
                    self._answer_message(*message)
            process_tree.reap_children()
            self._reply_ended_jobs()

    def _poll_timeout(self) -> float:
        if not self._waiting:
            return SILENT_S
        told = set(self._runners.values())
        since = max(
            (since for job, since in self._waiting.values() if job.key not in told), default=-math.inf
        )
        young = time.monotonic() - since < _YOUNG_S
        return _QUICK_S if young else _SLOW_S

    def _reply_ended_jobs(self) -> None:
        """Send the answers of the jobs that are over."""
        for number, (job, _) in list(self._waiting.items()):
            state = job.state()
            if state != "running":
                del self._waiting[number]
                self._send_reply(number, {"state": state, "result": job.read_job_result()})

    def _answer_message(self, header: FrameHeader, payload: bytes) -> None:
        number = header.get("id")
        if not isinstance(number, int):
            raise FrameError("a message without a number")
        try:
            answer = self._find_verb(header)({**header, "payload": payload})
        except RequestRefused as error:
            self._send_reply(number, {"error": error.code, "message": str(error)})
        except OSError as error:
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            self._send_reply(number, {"error": "full" if full else "failed", "message": str(error)})
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            self._send_reply(number, {"error": "bad_request", "message": f"{type(error).__name__}: {error}"})
        else:
            if answer is not None:
                self._send_reply(number, *answer)

    def _find_verb(self, header: FrameHeader) -> Callable[[FrameHeader], tuple[FrameHeader, bytes] | None]:
        name = str(header.get("verb"))
        if name not in self._verbs or not (self._client or name == "hello"):
            raise RequestRefused("protocol", f"{name!r} is no verb here, or comes before hello")
        return self._verbs[name]

    def _send_reply(self, number: int, header: FrameHeader, payload: bytes = b"") -> None:
        self._write_all(pack_frame({**header, "id": number}, payload))

    def _write_all(self, data: bytes) -> None:
        """Write all data; a home that reads nothing for long is gone."""
        view = memoryview(data)
        while view:
            _, ready, _ = select.select([], [self._says], [], SILENT_S)
            if not ready:
                raise BrokenPipeError(errno.EPIPE, "the home takes nothing any more")
            view = view[os.write(self._says, view[: 1 << 12]) :]

    def _handle_hello(self, header: FrameHeader) -> tuple[FrameHeader, bytes]:
        if header.get("protocol") != PROTOCOL:
            raise RequestRefused(
                "protocol", f"this worker speaks protocol {PROTOCOL}, not {header.get('protocol')}"
            )
        client = str(header.get("client"))
        if not _CLIENT.fullmatch(client):
            raise RequestRefused("bad_request", "a client must be hexadecimal digits")
        self._client = client
        self._store = ContentStore(self._place, client)
        if os.fork() == 0:  # in a process of its own, without this connection's descriptors
            with contextlib.suppress(Exception):
                os.closerange(0, 256)
                remove_stale_files(self._place)
            os._exit(0)
        return collect_facts(self._place, self._program), b""

    def _handle_lacking(self, header: FrameHeader) -> tuple[FrameHeader, bytes]:
        return {"lacking": self._store.find_missing(_check_digests(header["digests"]))}, b""

    def _handle_put(self, header: FrameHeader) -> tuple[FrameHeader, bytes]:
        (digest,) = _check_digests([header["digest"]])
        inflate = zlib.decompressobj()
        data = inflate.decompress(header["payload"], CHUNK_BYTES)
        if not inflate.eof:
            raise RequestRefused("bad_content", "a piece is larger than may be")
        self._store.add_piece(digest, int(header["offset"]), data, last=bool(header["last"]))
        return {}, b""

    def _handle_submit(self, header: FrameHeader) -> tuple[FrameHeader, bytes]:
        job, lock = submit_job(self._place, self._store, header["spec"], self._client)
        if lock is not None:
            self._runners[start_runner(job, lock)] = job.key
        return {}, b""

    def _handle_wait(self, header: FrameHeader) -> None:
        self._waiting[header["id"]] = (JobFolder(self._place, header["key"]), time.monotonic())

    def _handle_renew(self, header: FrameHeader) -> tuple[FrameHeader, bytes]:
        for key in header["keys"]:
            JobFolder(self._place, key).renew_lease(self._client)
        return {}, b""

    def _handle_cancel(self, header: FrameHeader) -> tuple[FrameHeader, bytes]:
        job = JobFolder(self._place, header["key"])
        job.release_lease(self._client)
        return {"wanted": bool(job.lease_holders())}, b""

    def _handle_fetch(self, header: FrameHeader) -> tuple[FrameHeader, bytes]:
        job, name = JobFolder(self._place, header["key"]), str(header["name"])
        if not _NAME.fullmatch(name):
            raise RequestRefused("bad_request", "no name of a file")
        result = job.read_job_result() or {}
        if name not in result.get("files", {}):
            raise RequestRefused("unknown_job", f"job {job.key[:12]} has left no {name}")
        try:
            fd = os.open(job.work / "out" / name, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise RequestRefused("unknown_job", f"job {job.key[:12]} has left no {name}") from None
        try:
            data = os.pread(fd, CHUNK_BYTES, int(header["offset"]))
        finally:
            os.close(fd)
        return {"bytes": len(data)}, zlib.compress(data, 1)

    def _handle_forget(self, header: FrameHeader) -> tuple[FrameHeader, bytes]:
        JobFolder(self._place, header["key"]).forget(self._client)
        return {}, b""


def _check_digests(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(re.fullmatch(r"[0-9a-f]{64}", str(v)) for v in values):
        raise RequestRefused("bad_request", "digests must be 64 hexadecimal digits")
    return values
