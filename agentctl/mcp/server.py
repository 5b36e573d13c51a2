"""The server: joins tools, resources and prompts to the protocol, for any transport."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    EmptyResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SubscribeRequestParams,
    TextContent,
    UnsubscribeRequestParams,
)

from agentctl.mcp import prompts, resources
from agentctl.mcp.answers import ServerFault, ToolOutput, describe_error
from agentctl.mcp.benches import Benches
from agentctl.mcp.completions import complete_argument
from agentctl.mcp.owner import OwnerStarter
from agentctl.mcp.subscriptions import RunWatch
from agentctl.mcp.tool_table import SERVER_TOOLS, ServerParts

NAME = "nki-kernel-agent"
FAULT_KEY = f"{NAME}/error"
"""Where the result of a refused call has its fault, in `_meta`."""
HEARTBEAT_SECONDS = 2.0
"""How often a client that asked for progress hears that a call goes on."""

INSTRUCTIONS = """Optimises accelerator kernels. `problems` lists problems; `evaluate` with source "v0" judges
a problem's own kernel. Work on a kernel with check, evaluate, profile, what_if, list_rewrites and
apply_rewrite, or start an unattended run with submit_run and follow it with wait. Every latency in
`latencies` is predicted by a model or measured on a device, as its `kind` says: always say which."""

Context = ServerRequestContext[ServerParts, Any]
T = TypeVar("T")

_log = logging.getLogger(__name__)


def create_server(home: Path, *, starts_agentd: bool = False) -> Server[ServerParts]:
    """Return a server of a home; its workers live from the first connection to the end of the transport."""

    watch = RunWatch(home)

    @asynccontextmanager
    async def lifespan(_: Server[ServerParts]) -> AsyncIterator[ServerParts]:
        parts = ServerParts(home, Benches(home), OwnerStarter(home, starts_agentd))
        try:
            yield parts
        finally:
            await watch.aclose()
            await parts.benches.aclose()
            await asyncio.to_thread(parts.owner.stop)

    async def subscribe(context: Context, params: SubscribeRequestParams) -> EmptyResult:
        watch.add_resource(context, params.uri)
        return EmptyResult()

    async def unsubscribe(context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        watch.remove_resource(context, params.uri)
        return EmptyResult()

    return Server(
        NAME,
        version=version("nki-kernel-agent"),
        title="NKI kernel agent",
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=_read_resource,
        on_list_prompts=_list_prompts,
        on_get_prompt=_get_prompt,
        on_completion=_complete,
        on_subscriptions_listen=watch.listen,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
    )


async def serve_stdio(home: Path, *, starts_agentd: bool = False) -> None:
    """Serve one client on stdin and stdout, until it closes them."""
    server = create_server(home, starts_agentd=starts_agentd)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


# --- tools -----------------------------------------------------------------------------------------


async def _list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=[tool.describe() for tool in SERVER_TOOLS.values()])


async def _call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
    tool = SERVER_TOOLS.get(params.name)
    if tool is None:
        near = get_close_matches(params.name, SERVER_TOOLS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(SERVER_TOOLS)}."
        message = f"there is no tool {params.name[:80]!r}"
        return _fault_result(ServerFault(code="unknown_tool", message=message, hint=hint))

    async def report(progress: float, message: str) -> None:
        await context.session.report_progress(progress, None, message)

    try:
        work = tool.call(context.lifespan_context, params.arguments or {}, report)
        output = await (work if params.name == "wait" else _with_heartbeat(context, work, params.name))
    except Exception as error:  # noqa: BLE001 - a client is told of every fault
        return _fault_result(_describe(error, params.name))
    return _output_result(output)


async def _with_heartbeat(context: Context, work: Awaitable[T], name: str) -> T:
    """Await `work`; meanwhile say now and then that it goes on, if the client asked for progress."""
    began = time.monotonic()

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            seconds = round(time.monotonic() - began, 1)
            await context.session.report_progress(seconds, None, f"{name}: {seconds:g} s")

    beating = asyncio.create_task(beat())
    try:
        return await work
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


def _output_result(output: ToolOutput) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=output.text())],
        structured_content=output.model_dump(mode="json"),
        is_error=False,
    )


def _fault_result(fault: ServerFault) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=fault.text())],
        is_error=True,
        _meta={FAULT_KEY: fault.model_dump(mode="json")},  # structured content has to be of the tool's schema
    )


def _describe(error: Exception, what: str) -> ServerFault:
    fault = describe_error(error)
    if fault is None:
        _log.error("%s failed", what, exc_info=error)
        message = f"a fault of the server's own: {type(error).__name__}"
        fault = ServerFault(code="internal", message=message, hint="The server's stderr has the traceback.")
    return fault


# --- resources and prompts -------------------------------------------------------------------------


def _protocol_error(error: Exception, what: str) -> MCPError:
    """Return the protocol's error for a resource or a prompt that is not there."""
    fault = _describe(error, what)
    return MCPError(INVALID_PARAMS, fault.text(), fault.model_dump(mode="json"))


async def _list_resources(context: Context, _: PaginatedRequestParams | None) -> ListResourcesResult:
    found = await asyncio.to_thread(resources.list_resources, context.lifespan_context.home)
    return ListResourcesResult(resources=found)


async def _list_templates(_: Context, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    return ListResourceTemplatesResult(resource_templates=list(resources.TEMPLATES))


async def _read_resource(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
    try:
        found = await asyncio.to_thread(resources.read_resource, context.lifespan_context.home, params.uri)
    except Exception as error:
        raise _protocol_error(error, params.uri) from error
    return ReadResourceResult(contents=[found])


async def _list_prompts(_: Context, __: PaginatedRequestParams | None) -> ListPromptsResult:
    return ListPromptsResult(prompts=prompts.list_prompts())


async def _get_prompt(_: Context, params: GetPromptRequestParams) -> GetPromptResult:
    try:
        return prompts.get_prompt(params.name, params.arguments or {})
    except Exception as error:
        raise _protocol_error(error, params.name) from error


async def _complete(context: Context, params: CompleteRequestParams) -> CompleteResult:
    try:
        found = await asyncio.to_thread(complete_argument, context.lifespan_context.home, params)
    except Exception as error:
        raise _protocol_error(error, params.argument.name) from error
    return CompleteResult(completion=found)
