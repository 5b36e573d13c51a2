"""A coding agent's tools for one plan: each call in the log, and served on a socket in its folder.

The process that the agent starts (`agentctl mcp --slot`) speaks lines of JSON: first the token, then calls.
One call runs at a time, because the log has them in order.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from agent_core.prompting import PromptSet, builtin_prompts
from agent_core.proposers import AGENT
from agent_core.providers.completion import ToolCall
from agent_core.roles.llm.session import ROLE, restore_past_call, run_tool
from agent_core.roles.session_protocol import PastCall
from agent_core.tools.answers import SessionEnd
from agent_core.tools.registry import list_tools
from agent_core.tools.workbench import Workbench
from daemon.agents import MAX_LINE_BYTES, SOCKET
from daemon.calls.sessions import DurableSession
from state.events import SessionStarted
from state.fold import RunState
from state.model import SessionEndReason, SessionProgress

CUT_OFF = "cut_off"


class AgentSession(DurableSession):
    """The session of a coding agent: tool calls alone, each a turn of its own."""

    @property
    def prompts(self) -> PromptSet:
        """The documentation that `lookup` reads."""
        return builtin_prompts()

    @property
    def progress(self) -> SessionProgress | None:
        """What the log has of the session."""
        return self._progress()

    async def begin_for_agent(self, tools: list[str], most_calls: int) -> None:
        """Log that the session begins, if it is not logged yet."""
        if self._progress() is None:
            started = SessionStarted(
                key=str(self._key),
                role=ROLE,
                model=AGENT,
                tools=tuple(tools),
                turns=most_calls,
                by_agent=True,
            )
            await self._append(started)

    def _author(self, state: RunState) -> str:
        del state
        return AGENT


class SlotTools:
    """Carries out the tool calls of one plan. `ended` is set when a tool, or the last call, ends the work."""

    def __init__(self, host: AgentSession, bench: Workbench, token: str, *, most_calls: int) -> None:
        self._host = host
        self._bench = bench
        self._token = token
        self._most_calls = most_calls
        self._turn = asyncio.Lock()
        self._open: set[asyncio.Task[None]] = set()
        self.ended = asyncio.Event()
        self.end: SessionEnd | None = None
        self.reason: SessionEndReason | None = None
        self.failure: BaseException | None = None
        self.calls = 0

    async def restore(self) -> None:
        """Take up the versions and verdicts of earlier deliveries; a call that was cut off is closed."""
        progress = self._host.progress
        steps = progress.steps if progress is not None else ()
        for step in steps:
            if step.result is None:
                cut = PastCall("[cut_off] the process that carried this call out was ended", CUT_OFF)
                call = ToolCall(id="", name=step.tool, arguments="{}")
                await self._host.complete_call(step.turn, step.number, call, cut)
            past = self._host.find_past_call(step.turn, step.number)
            assert past is not None, "every step has a result now"
            restore_past_call(self._bench, past)
        self.calls = len(steps)

    async def call(self, name: str, arguments: str) -> dict[str, Any]:
        """Carry out one call, in the log; what is wrong is said in the answer."""
        async with self._turn:
            if self.ended.is_set():
                return _refusal("session_over", "the work on this plan is over: stop")
            if self.calls >= self._most_calls:
                self._finish(SessionEndReason.TURNS)
                return _refusal("no_calls_left", f"all {self._most_calls} calls are used: stop")
            turn, self.calls = self.calls, self.calls + 1
            call = ToolCall(id="", name=name, arguments=arguments)
            outcome, past = await run_tool(self._host, self._bench, turn, 0, call)
            if outcome.end is not None:
                self.end = outcome.end
                self._finish(
                    SessionEndReason.SUBMITTED if outcome.end.submitted else SessionEndReason.GAVE_UP
                )
            answer = outcome.answer.model_dump(mode="json")
            left = self._most_calls - self.calls
            return {"text": past.text, "code": past.code, "answer": answer, "calls_left": left}

    def _finish(self, reason: SessionEndReason) -> None:
        self.reason = self.reason or reason
        self.ended.set()

    # --- the socket --------------------------------------------------------------------------------

    @asynccontextmanager
    async def serve(self, folder: Path) -> AsyncIterator[None]:
        """Serve the calls on a socket in `folder` while the block runs."""
        server = await asyncio.start_unix_server(
            self._on_connection, sock=_listen(folder), limit=MAX_LINE_BYTES
        )
        try:
            yield
        finally:
            server.close()
            left = list(self._open)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve_connection(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await self._is_known(reader):
                await self._answer_lines(reader, writer)
        except (ConnectionError, ValueError):
            pass  # the agent is gone, or sent what is no line
        except Exception as error:  # noqa: BLE001 - the effect raises it, when the agent has been ended
            self.failure = error
            self.ended.set()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _is_known(self, reader: asyncio.StreamReader) -> bool:
        hello = json.loads(await reader.readline() or b"null")
        given = hello.get("token") if isinstance(hello, dict) else None
        return isinstance(given, str) and hmac.compare_digest(given.encode(), self._token.encode())

    async def _answer_lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            asked = json.loads(line)
            if not isinstance(asked, dict):
                return
            answer = self._describe_tools() if asked.get("list") else await self._answer_call(asked)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()

    async def _answer_call(self, asked: dict[str, Any]) -> dict[str, Any]:
        name, arguments = asked.get("tool"), asked.get("arguments", {})
        if not isinstance(name, str):
            return _refusal("bad_call", "a tool's name was expected")
        return await self.call(name, json.dumps(arguments))

    def _describe_tools(self) -> dict[str, Any]:
        tools = list_tools(self._bench.task.target)
        return {
            "tools": [
                {"name": one.name, "description": one.description, "schema": one.schema} for one in tools
            ]
        }


def _refusal(code: str, message: str) -> dict[str, Any]:
    return {"text": f"[{code}] {message}", "code": code, "answer": {}, "calls_left": 0}


def _listen(folder: Path) -> socket.socket:
    """Return a socket that listens in `folder`; its path may be longer than an address of a socket may be."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        made.bind(f"/proc/self/fd/{place}/{SOCKET}")
        made.listen()
    finally:
        os.close(place)
    return made
