"""The server that a coding agent of a run starts: the tools of one plan, carried out by the home's owner.

`agentctl mcp --slot FOLDER` speaks the protocol on stdio, and passes each call to the socket in the folder.
It knows no home and no log; what the plan may do, the owner decides.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from daemon.agents import MAX_LINE_BYTES, SLOT_FILE, SOCKET
from daemon.errors import DaemonError

Context = ServerRequestContext[Any, Any]


class NoPlan(DaemonError):  # noqa: N818 - the names of this tree say what happened
    """There is no plan under way in a folder."""

    default_code = "no_slot"


class SlotConnection:
    """The connection to the owner; one call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, folder: Path) -> SlotConnection:
        """Connect to the owner.

        Raises:
            NoPlan: the folder has no token, or nobody listens there.
        """
        try:
            token = json.loads((folder / SLOT_FILE).read_bytes())["token"]
            made = await asyncio.to_thread(_connect, folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoPlan(f"{folder} is no folder of a plan under way: {error}") from error
        reader, writer = await asyncio.open_unix_connection(sock=made, limit=MAX_LINE_BYTES)
        writer.write(json.dumps({"token": token}).encode() + b"\n")
        return cls(reader, writer)

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the owner's answer; `session_over` if it has gone."""
        async with self._turn:
            self._writer.write(json.dumps(request).encode() + b"\n")
            try:
                await self._writer.drain()
                line = await self._reader.readline()
            except (ConnectionError, ValueError):
                line = b""
        if not line:
            text = "[session_over] the work on this plan is over: stop"
            return {"text": text, "code": "session_over", "tools": []}
        answer: dict[str, Any] = json.loads(line)
        return answer


def _connect(folder: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        made.connect(f"/proc/self/fd/{place}/{SOCKET}")
    except OSError:
        made.close()
        raise
    finally:
        os.close(place)
    return made


async def serve_slot(folder: Path) -> None:
    """Serve the tools of the plan in `folder` on stdin and stdout.

    Raises:
        NoPlan: there is none.
    """
    connection = await SlotConnection.open(folder)

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        found = (await connection.ask({"list": True})).get("tools", [])
        tools = [
            Tool(name=one["name"], description=one["description"], input_schema=one["schema"])
            for one in found
        ]
        return ListToolsResult(tools=tools)

    async def call_tool(_: Context, params: CallToolRequestParams) -> CallToolResult:
        answer = await connection.ask({"tool": params.name, "arguments": params.arguments or {}})
        content = [TextContent(type="text", text=str(answer.get("text", "")))]
        return CallToolResult(content=content, is_error=answer.get("code") is not None)

    server: Server[Any] = Server("nki-kernel-agent", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
