"""Clients of `agentctl mcp`, by the SDK's own client: on stdio, on HTTP, and in this process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from agentctl.mcp.http_server import create_http_server, server_url
from agentctl.mcp.server import FAULT_KEY, create_server
from agentctl.page.guard import BearerPolicy, own_hosts
from agentctl.page.server import open_listening_socket
from tests.agentctl.page.serving import PATIENCE_S, wait_for

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-a-test-that-is-long-enough"


def stdio_command(home: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "agentctl", "mcp", "--home", str(home), *options]


@asynccontextmanager
async def stdio_session(home: Path, *options: str) -> AsyncIterator[Client]:
    """A client that starts the server, as coding agents do."""
    command, *arguments = stdio_command(home, *options)
    place = StdioServerParameters(command=command, args=arguments, cwd=ROOT, env=dict(os.environ))
    async with Client(stdio_client(place, errlog=subprocess.DEVNULL)) as client:
        yield client


@dataclass(frozen=True)
class ServedMcp:
    """A server on HTTP under way."""

    port: int
    gate: BearerPolicy

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def known(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.gate.token}"}


@contextmanager
def serving_mcp(home: Path) -> Iterator[ServedMcp]:
    """Serve a home on HTTP until the test is done with it."""
    bound = open_listening_socket("127.0.0.1", 0)
    port = bound.getsockname()[1]
    gate = BearerPolicy(own_hosts(port), TOKEN)
    server = create_http_server(home, gate)
    assert server_url(bound).endswith(f":{port}/mcp")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield ServedMcp(port, gate)
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        bound.close()
    assert not thread.is_alive(), "the server does not end"


@asynccontextmanager
async def http_session(served: ServedMcp) -> AsyncIterator[Client]:
    async with (
        create_mcp_http_client(headers=served.known) as http,
        Client(streamable_http_client(served.url, http_client=http)) as client,
    ):
        yield client


@asynccontextmanager
async def open_session(transport: str, home: Path) -> AsyncIterator[Client]:
    """A client by the name of its transport."""
    if transport == "stdio":
        async with stdio_session(home) as client:
            yield client
    elif transport == "http":
        with serving_mcp(home) as served:
            async with http_session(served) as client:
                yield client
    else:
        async with Client(create_server(home)) as client:
            yield client


async def call(client: Client, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool that has to succeed; return its structured answer, which the client has validated."""
    found = await client.call_tool(name, arguments)
    assert not found.is_error, found.content
    return found.structured_content


async def refuse(client: Client, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool that has to refuse; return its fault."""
    found = await client.call_tool(name, arguments)
    assert found.is_error, found.content
    assert found.structured_content is None, "clients hold it against the schema of the answer"
    fault = found.meta[FAULT_KEY]
    assert fault["code"] != "internal", fault
    assert fault["message"] in found.content[0].text
    return fault
