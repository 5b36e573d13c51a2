"""The web server: serves the page's files, its views and its feed behind the guard; on loopback by
default.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath
from types import FrameType

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.config import Config
from uvicorn.server import Server as UvicornServer

from agentctl.page.control import ControlRoutes
from agentctl.page.feed import Feed
from agentctl.page.guard import AccessGuard, AccessPolicy
from agentctl.page.limits import BoundedProtocol, FileShortage
from agentctl.page.pages import Pages
from agentctl.page.source import HomeSource

PORT = 8377

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_GRACE_SECONDS = 2
"""How long (seconds) a stop waits for responses under way."""


def load_static_files() -> dict[str, tuple[bytes, str]]:
    """Return the page's files by name, each with its media type; no other file is ever served."""
    folder = files("agentctl.page") / "static"
    return {
        one.name: (one.read_bytes(), _KINDS[suffix])
        for one in folder.iterdir()
        if (suffix := PurePath(one.name).suffix) in _KINDS
    }


@dataclass(slots=True)
class PageApp:
    """The page of one home as an ASGI application."""

    source: HomeSource
    gate: AccessPolicy
    feed: Feed
    app: AccessGuard
    shortage: FileShortage

    @classmethod
    def create(cls, source: HomeSource, gate: AccessPolicy) -> PageApp:
        """Create the application; it opens the log at the first request."""
        feed, held = Feed(source.last_seq), load_static_files()

        def file(request: Request) -> Response:
            name = request.path_params.get("name", "index.html")
            if name not in held:
                return PlainTextResponse("no such file\n", status_code=404)
            content, kind = held[name]
            return Response(content, media_type=kind)

        async def listen(_: Request) -> Response:
            return StreamingResponse(feed.listen(), media_type="text/event-stream")

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            feed.close()
            source.close()

        routes = [
            Route("/", file, methods=["GET"]),
            Route("/static/{name}", file, methods=["GET"]),
            Route("/api/feed", listen, methods=["GET"]),
            *Pages(source).routes(),
            *ControlRoutes(source).routes(),
        ]
        shortage = FileShortage()
        site = Starlette(
            routes=routes, lifespan=lifespan, exception_handlers={OSError: shortage.answer_os_error}
        )
        return cls(source, gate, feed, AccessGuard(site, gate), shortage)


class GuardedServer(UvicornServer):
    """Uvicorn for an application behind an `AccessGuard`, with bounds on what clients may take up.

    `before_stop` ends what would keep responses open; it may be called from any thread.
    """

    def __init__(
        self, app: AccessGuard, shortage: FileShortage, before_stop: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(
            Config(
                app,
                access_log=False,  # an access log would contain the token
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
                ws="none",
                http=BoundedProtocol,
            )
        )
        self._shortage = shortage
        self._before_stop = before_stop

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._shortage.handle_loop_error)
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._before_stop()
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """Ask the server to stop, from any thread."""
        self._before_stop()
        self.should_exit = True


def create_page_server(site: PageApp) -> GuardedServer:
    """Return the server of a page; it ends the feed first, or a stop would wait for the listeners."""
    return GuardedServer(site.app, site.shortage, site.feed.close_threadsafe)


def open_listening_socket(host: str, port: int | None, usual: int = PORT) -> socket.socket:
    """Return a socket on `host` at `port`; if that is None, at the `usual` port, or else at any free one.

    Raises:
        OSError: the address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (port,) if port is not None else (usual, 0):
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, wanted))
            made.listen()  # listen before the address is printed
        except OSError:
            made.close()
            if port is not None or wanted == 0:
                raise
            continue
        made.set_inheritable(True)
        return made
    raise AssertionError("any port that is free was asked for")


def policy_for_socket(bound: socket.socket, names: Iterable[str] = ()) -> AccessPolicy:
    """Return the access policy of a server on this socket, with a new token."""
    host, port = bound.getsockname()[:2]
    own = f"[{host}]" if ":" in host else host
    return AccessPolicy.for_port(secrets.token_urlsafe(32), port, (own, *names))


def page_address(gate: AccessPolicy, bound: socket.socket) -> str:
    """Return the address that opens the page, with its token."""
    host, port = bound.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}/?token={gate.token}"
