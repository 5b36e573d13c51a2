"""Answers one home over one connection, and ends with it; jobs do not.

One thread: what a home waits for is looked at between its messages, and when its runner is done. A home says
something every few seconds while it lives, so one that has been silent for long is gone, whatever its
connection says.
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

from remote.hostside import tree
from remote.hostside.errors import Refused
from remote.hostside.facts import facts
from remote.hostside.frames import PREAMBLE, FrameError, pack, unpack
from remote.hostside.jobs import Job, hand_in
from remote.hostside.limits import CHUNK_BYTES, PROTOCOL
from remote.hostside.litter import sweep
from remote.hostside.place import Place
from remote.hostside.runner import detach
from remote.hostside.store import Store

SILENT_S = 300.0
_READ_BYTES = 1 << 20
_QUICK_S = 0.01  # how often a job is looked at whose runner another began, while it is young; and all others
_SLOW_S = 0.1
_YOUNG_S = 5.0
_CLIENT = re.compile(r"[0-9a-f]{8,64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

Header = dict[str, Any]


class Server:
    """One connection, over the descriptors `hears` and `says`."""

    def __init__(self, place: Place, program: str, *, hears: int, says: int) -> None:
        self._place = place
        self._program = program
        self._hears = hears
        self._says = says
        self._buffer = bytearray()
        self._client = ""
        self._store = Store(place, "")
        self._waiting: dict[int, tuple[Job, float]] = {}
        self._runners: dict[int, str] = {}  # key by what `detach` returned
        self._verbs: dict[str, Callable[[Header], tuple[Header, bytes] | None]] = {
            "hello": self._hello,
            "lacking": self._lacking,
            "put": self._put,
            "submit": self._submit,
            "wait": self._wait,
            "renew": self._renew,
            "cancel": self._cancel,
            "fetch": self._fetch,
            "forget": self._forget,
        }

    def serve(self) -> None:
        """Answer until the home is gone."""
        self._write(PREAMBLE)
        heard = time.monotonic()
        while time.monotonic() - heard < SILENT_S:
            ready, _, _ = select.select([self._hears, *self._runners], [], [], self._patience())
            for fd in self._runners.keys() & set(ready):
                del self._runners[fd]
                os.close(fd)
            if self._hears in ready:
                data = os.read(self._hears, _READ_BYTES)
                if not data:
                    return
                heard = time.monotonic()
                self._buffer += data
                while (message := unpack(self._buffer)) is not None:
                    self._answer(*message)
            tree.reap()
            self._look()

    def _patience(self) -> float:
        if not self._waiting:
            return SILENT_S
        told = set(self._runners.values())
        since = max(
            (since for job, since in self._waiting.values() if job.key not in told), default=-math.inf
        )
        young = time.monotonic() - since < _YOUNG_S
        return _QUICK_S if young else _SLOW_S

    def _look(self) -> None:
        """Answer for the jobs that are over."""
        for number, (job, _) in list(self._waiting.items()):
            state = job.state()
            if state != "running":
                del self._waiting[number]
                self._reply(number, {"state": state, "result": job.result()})

    def _answer(self, header: Header, payload: bytes) -> None:
        number = header.get("id")
        if not isinstance(number, int):
            raise FrameError("a message without a number")
        try:
            answer = self._verb(header)({**header, "payload": payload})
        except Refused as error:
            self._reply(number, {"error": error.code, "message": str(error)})
        except OSError as error:
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            self._reply(number, {"error": "full" if full else "failed", "message": str(error)})
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            self._reply(number, {"error": "bad_request", "message": f"{type(error).__name__}: {error}"})
        else:
            if answer is not None:
                self._reply(number, *answer)

    def _verb(self, header: Header) -> Callable[[Header], tuple[Header, bytes] | None]:
        name = str(header.get("verb"))
        if name not in self._verbs or not (self._client or name == "hello"):
            raise Refused("protocol", f"{name!r} is no verb here, or comes before hello")
        return self._verbs[name]

    def _reply(self, number: int, header: Header, payload: bytes = b"") -> None:
        self._write(pack({**header, "id": number}, payload))

    def _write(self, data: bytes) -> None:
        """Write all; a home that takes nothing for long is gone."""
        view = memoryview(data)
        while view:
            _, ready, _ = select.select([], [self._says], [], SILENT_S)
            if not ready:
                raise BrokenPipeError(errno.EPIPE, "the home takes nothing any more")
            view = view[os.write(self._says, view[: 1 << 12]) :]

    def _hello(self, header: Header) -> tuple[Header, bytes]:
        if header.get("protocol") != PROTOCOL:
            raise Refused("protocol", f"this worker speaks protocol {PROTOCOL}, not {header.get('protocol')}")
        client = str(header.get("client"))
        if not _CLIENT.fullmatch(client):
            raise Refused("bad_request", "a client must be hexadecimal digits")
        self._client = client
        self._store = Store(self._place, client)
        if os.fork() == 0:  # beside the answer, and with nothing of this connection
            with contextlib.suppress(Exception):
                os.closerange(0, 256)
                sweep(self._place)
            os._exit(0)
        return facts(self._place, self._program), b""

    def _lacking(self, header: Header) -> tuple[Header, bytes]:
        return {"lacking": self._store.lacking(_digests(header["digests"]))}, b""

    def _put(self, header: Header) -> tuple[Header, bytes]:
        (digest,) = _digests([header["digest"]])
        inflate = zlib.decompressobj()
        data = inflate.decompress(header["payload"], CHUNK_BYTES)
        if not inflate.eof:
            raise Refused("bad_content", "a piece is larger than may be")
        self._store.add(digest, int(header["offset"]), data, last=bool(header["last"]))
        return {}, b""

    def _submit(self, header: Header) -> tuple[Header, bytes]:
        job, lock = hand_in(self._place, self._store, header["spec"], self._client)
        if lock is not None:
            self._runners[detach(job, lock)] = job.key
        return {}, b""

    def _wait(self, header: Header) -> None:
        self._waiting[header["id"]] = (Job(self._place, header["key"]), time.monotonic())

    def _renew(self, header: Header) -> tuple[Header, bytes]:
        for key in header["keys"]:
            Job(self._place, key).renew(self._client)
        return {}, b""

    def _cancel(self, header: Header) -> tuple[Header, bytes]:
        job = Job(self._place, header["key"])
        job.release(self._client)
        return {"wanted": bool(job.wanted())}, b""

    def _fetch(self, header: Header) -> tuple[Header, bytes]:
        job, name = Job(self._place, header["key"]), str(header["name"])
        if not _NAME.fullmatch(name):
            raise Refused("bad_request", "no name of a file")
        result = job.result() or {}
        if name not in result.get("files", {}):
            raise Refused("unknown_job", f"job {job.key[:12]} has left no {name}")
        try:
            fd = os.open(job.work / "out" / name, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise Refused("unknown_job", f"job {job.key[:12]} has left no {name}") from None
        try:
            data = os.pread(fd, CHUNK_BYTES, int(header["offset"]))
        finally:
            os.close(fd)
        return {"bytes": len(data)}, zlib.compress(data, 1)

    def _forget(self, header: Header) -> tuple[Header, bytes]:
        Job(self._place, header["key"]).forget(self._client)
        return {}, b""


def _digests(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(re.fullmatch(r"[0-9a-f]{64}", str(v)) for v in values):
        raise Refused("bad_request", "digests must be 64 hexadecimal digits")
    return values
