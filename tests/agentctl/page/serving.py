"""A page that is served to a test, on loopback, and requests to it as a browser or others would send."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentctl.page.guard import AccessPolicy
from agentctl.page.server import (
    PageApp,
    create_page_server,
    open_listening_socket,
    page_address,
    policy_for_socket,
)
from agentctl.page.source import HomeSource

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Reply:
    """What the server answered; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


@dataclass(frozen=True)
class Served:
    """A server under way: where, and what it asks for."""

    url: str
    port: int
    gate: AccessPolicy
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    @property
    def known(self) -> dict[str, str]:
        """The headers of a browser that has opened the page."""
        return {"cookie": f"{self.gate.cookie}={self.gate.cookie_token}"}

    def ask(
        self, path: str, headers: dict[str, str] | None = None, *, method: str = "GET", body=None
    ) -> Reply:
        """Send a request with these headers only."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            given = {"host": self.host} | (headers or {})
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            for name, value in given.items():
                connection.putheader(name, value)
            if data is not None:
                connection.putheader("content-length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        """Ask as the page does."""
        return self.ask(path, self.known)

    def post(self, body: Any, **headers: str) -> Reply:
        """Send a form as the page does."""
        sent = {"origin": self.origin, "x-token": self.gate.token, "content-type": "application/json"}
        return self.ask("/api/control", {**self.known, **sent, **headers}, method="POST", body=body)


@contextmanager
def serving(home: Path, *, control: bool = False) -> Iterator[Served]:
    """Serve the page of a home until the test is done with it."""
    bound = open_listening_socket("127.0.0.1", 0)
    gate = policy_for_socket(bound)
    server = create_page_server(
        PageApp.create(HomeSource(home, ("--home", str(home)), control=control), gate)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield Served(page_address(gate, bound), bound.getsockname()[1], gate)
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        bound.close()
    assert not thread.is_alive(), "the server does not end"


def wait_for(what, *, patience_s: float = PATIENCE_S) -> Any:
    """Wait until `what` gives something true; return it."""
    deadline = time.monotonic() + patience_s
    while not (found := what()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    return found
