"""What a client may take up: how long a request may arrive, and how many connections there may be.

Without these, one client that sends a byte now and then holds a connection for ever, and some hundred of them
all files that the process may open.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from typing import Any

import h11
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
"""How long a client may take for a request's headers, from the connection or the response before on."""

BODY_SECONDS = 30.0
"""How long it may take for the body after that."""

MAX_CONNECTIONS = 256
MAX_PER_PEER = 64
"""Connections in all, and from one address: a browser holds up to seven for each tab."""

WARN_EVERY_SECONDS = 60.0

_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})

_log = logging.getLogger(__name__)


class BoundedProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1, with deadlines for requests and a cap on connections."""

    _stage: str | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peers = [one.client for one in self.connections if isinstance(one, BoundedProtocol)]
        mine = sum(one is not None and self.client is not None and one[0] == self.client[0] for one in peers)
        if len(peers) > MAX_CONNECTIONS or mine > MAX_PER_PEER:
            self._refuse("503 Service Unavailable", "too many connections")
        else:
            self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if not self.transport.is_closing():
            self._watch_request()

    def _watch_request(self) -> None:
        """Set the deadline of what the client has to send next; more bytes of it do not move that."""
        waits = {h11.IDLE: ("headers", HEADER_SECONDS), h11.SEND_BODY: ("body", BODY_SECONDS)}
        stage, seconds = waits.get(self.conn.their_state, (None, 0.0))
        if stage != self._stage:
            self._stop_clock()
            self._stage = stage
            if stage is not None:
                self._deadline = self.loop.call_later(seconds, self._give_up)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._refuse("408 Request Timeout", f"the {self._stage} took too long")

    def _refuse(self, status: str, why: str) -> None:
        """Answer, unless a response has begun, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = f"{why}\n"
            head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n{body}".encode())
        self.transport.close()


class FileShortage:
    """Says once a minute that the process has no files left, instead of a traceback for each request."""

    def __init__(self) -> None:
        self._told_at = -WARN_EVERY_SECONDS

    def handle_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what the event loop reports: it could not accept a connection, and tries again soon."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _NO_FILES:
            self._warn(error)
        else:
            loop.default_exception_handler(context)

    async def answer_os_error(self, _: Request, error: Exception) -> Response:
        """Answer a request that failed for want of files; raise any other error."""
        if not (isinstance(error, OSError) and error.errno in _NO_FILES):
            raise error
        self._warn(error)
        return PlainTextResponse(
            "too many open files; retry\n", status_code=503, headers={"retry-after": "1"}
        )

    def _warn(self, error: OSError) -> None:
        if time.monotonic() - self._told_at >= WARN_EVERY_SECONDS:
            self._told_at = time.monotonic()
            _log.warning("%s: some requests wait or fail; close tabs, or raise LimitNOFILE", error.strerror)
