"""Access control of the page, and of every server here: the right host, the same origin, and the token;
and headers for the browser.

A page in another tab can make a browser send requests here, and can make a name of its own resolve to
this machine (DNS rebinding). So a request must name a host that this server knows as its own, come from
no other origin, and carry the token: in the address when the page is first opened; afterwards in a
cookie that no script can read; and for changes in a header, which no other origin can send.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

TOKEN_HEADER = "x-token"  # noqa: S105 - a header's name, not a secret
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SAFE_METHODS = frozenset({"GET", "HEAD"})

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""Headers of every response: scripts and styles only from this server, no caching, no framing."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


def own_hosts(port: int, names: Iterable[str] = ()) -> frozenset[str]:
    """Return the hosts that a server on `port` is called by: the names of loopback, and `names`."""
    return frozenset(f"{name}:{port}".lower() for name in (*LOOPBACK, *names))


def foreign_reason(request: Request, hosts: frozenset[str]) -> str | None:
    """Return why a request is not for one of these hosts, or comes from another site; None if neither."""
    host = request.headers.get("host", "").lower()
    if host not in hosts:
        return "this server is not called that; use the address that it printed"
    origin = request.headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host}":
        return "another site may not ask this server"
    site, mode = (request.headers.get(f"sec-fetch-{name}") for name in ("site", "mode"))
    if site not in (None, "same-origin", "none") and mode != "navigate":
        return "another site may not ask this server"
    return None


def is_same_secret(given: str | None, secret: str) -> bool:
    """Return whether a secret is right; the comparison takes constant time."""
    return given is not None and hmac.compare_digest(given.encode(), secret.encode())


class Gate(Protocol):
    """Decides which requests a server answers."""

    def refusal_reason(self, request: Request) -> str | None:
        """Return why a request is refused; None if it is allowed."""
        ...

    def opening_cookie(self, request: Request) -> str | None:
        """Return the `Set-Cookie` header that the answer to an allowed request carries, if any."""
        ...


@dataclass(frozen=True, slots=True)
class BearerPolicy:
    """What a request of a program must have: one of these hosts, and the token as its authorization."""

    hosts: frozenset[str]
    token: str

    def refusal_reason(self, request: Request) -> str | None:
        """Return why a request is refused; None if it is allowed."""
        if (foreign := foreign_reason(request, self.hosts)) is not None:
            return foreign
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        known = scheme.lower() == "bearer" and is_same_secret(given.strip(), self.token)
        return None if known else "the token is missing: send it as `Authorization: Bearer TOKEN`"

    def opening_cookie(self, request: Request) -> str | None:
        """Return None: programs need no cookie."""
        del request
        return None


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """What a request must have: one of these hosts, and the token."""

    hosts: frozenset[str]
    token: str
    cookie: str

    @classmethod
    def for_port(cls, token: str, port: int, names: Iterable[str] = ()) -> AccessPolicy:
        """Return the policy of a server on `port`, with the names of loopback and `names` as its hosts."""
        return cls(own_hosts(port, names), token, f"agentctl_ui_{port}")

    def refusal_reason(self, request: Request) -> str | None:
        """Return why a request is refused; None if it is allowed."""
        if (foreign := foreign_reason(request, self.hosts)) is not None:
            return foreign
        if request.method not in SAFE_METHODS:
            return self._steering_refusal(request, request.headers.get("origin"))
        given = (request.cookies.get(self.cookie), self.opening_token(request))
        known = self.accepts_cookie(given[0]) or self.accepts_token(given[1])
        return None if known else "the token is missing; open the address that agentctl ui printed"

    def _steering_refusal(self, request: Request, origin: str | None) -> str | None:
        if origin is None:
            return "what changes something must say where it comes from"
        if not self.accepts_token(request.headers.get(TOKEN_HEADER)):
            return "the token is missing; open the address that agentctl ui printed"
        return None

    def opening_token(self, request: Request) -> str | None:
        """Return the token in the address; it is accepted only where the page is opened."""
        return request.query_params.get("token") if request.url.path == "/" else None

    @property
    def cookie_token(self) -> str:
        """The cookie's value: enough to look, not to steer, and the token cannot be derived from it.

        Browsers send a cookie to every port of a machine, and so to other programs on it.
        """
        return hmac.new(self.token.encode(), b"the cookie", "sha256").hexdigest()

    def accepts_cookie(self, given: str | None) -> bool:
        """Return whether a cookie is right."""
        return is_same_secret(given, self.cookie_token)

    def accepts_token(self, given: str | None) -> bool:
        """Return whether a token is right."""
        return is_same_secret(given, self.token)

    def opening_cookie(self, request: Request) -> str | None:
        """Return the cookie that the page gets where it is opened."""
        if not self.accepts_token(self.opening_token(request)):
            return None
        return f"{self.cookie}={self.cookie_token}; Path=/; HttpOnly; SameSite=Strict"


class AccessGuard:
    """Passes on the requests that the policy allows, and adds `HEADERS` to every response."""

    def __init__(self, app: AsgiApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self._app(scope, receive, send)
            return
        request = Request(scope)
        why = self._gate.refusal_reason(request)
        app = self._app if why is None else _refusal_response(why)
        cookie = self._gate.opening_cookie(request) if why is None else None

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if cookie is not None:
                    headers.append("set-cookie", cookie)
            await send(message)

        await app(scope, receive, answering)


def _refusal_response(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status_code=403)
