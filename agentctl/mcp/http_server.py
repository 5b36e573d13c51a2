"""The server on streamable HTTP: loopback alone, behind the page's guard, with a token for programs."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import click
from mcp.server.transport_security import TransportSecuritySettings

from agentctl.app import Session
from agentctl.mcp.server import create_server
from agentctl.page.guard import AccessGuard, BearerPolicy, own_hosts
from agentctl.page.limits import FileShortage
from agentctl.page.server import GuardedServer, open_listening_socket
from daemon.errors import DaemonError

HOST = "127.0.0.1"
PORT = 8378
PATH = "/mcp"
TOKEN_VARIABLE = "AGENTCTL_MCP_TOKEN"  # noqa: S105 - a variable's name
MIN_TOKEN_CHARACTERS = 32

MAX_BODY_BYTES = 1 << 21
"""The longest request: more than any kernel needs."""
MAX_SESSIONS = 64


def read_token(env: Mapping[str, str]) -> str:
    """Return the token of the environment, or a new one.

    Raises:
        DaemonError: the environment's is too short to be a secret.
    """
    given = env.get(TOKEN_VARIABLE)
    if given is None:
        return secrets.token_urlsafe(32)
    if len(given) < MIN_TOKEN_CHARACTERS or not given.isascii() or not given.isprintable():
        text = f"${TOKEN_VARIABLE} has to have {MIN_TOKEN_CHARACTERS} printable ASCII characters or more"
        raise DaemonError(text, code="bad_token", hint="leave it out: the server makes one at each start")
    return given


def create_http_server(home: Path, gate: BearerPolicy, *, starts_agentd: bool = False) -> GuardedServer:
    """Return the server of a home behind `gate`."""
    shortage = FileShortage()
    site = create_server(home, starts_agentd=starts_agentd).streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MAX_BODY_BYTES,
        max_sessions=MAX_SESSIONS,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the guard does
    )
    return GuardedServer(AccessGuard(site, gate), shortage)


def serve_http(session: Session, port: int | None, *, starts_agentd: bool) -> None:
    """Print the address and the token, and serve clients until the process is asked to stop."""
    token = read_token(os.environ)
    try:
        bound = open_listening_socket(HOST, port, PORT)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DaemonError(
            f"cannot listen on {HOST}:{port or 0}: {reason}",
            code="no_address",
            hint="--port 0 takes any free port",
        ) from error
    url = server_url(bound)
    text = (
        f"The server of {session.home} is at {url}\n"
        f"Clients send the header  Authorization: Bearer {token}\nCtrl-C ends it."
    )
    session.emit({"url": url, "token": token, "home": str(session.home)}, text)
    sys.stdout.flush()
    gate = BearerPolicy(own_hosts(bound.getsockname()[1]), token)
    with bound:
        create_http_server(session.home, gate, starts_agentd=starts_agentd).run(sockets=[bound])
    click.echo("the server has ended", err=True)


def server_url(bound: socket.socket) -> str:
    """Return the address that clients use."""
    return f"http://{HOST}:{bound.getsockname()[1]}{PATH}"
