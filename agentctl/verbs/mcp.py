"""`agentctl mcp`: a Model Context Protocol server of a home, for coding agents on this machine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import click

from agentctl.app import Session, common_options
from daemon import exits
from state.home import require_directory


@click.command(epilog=exits.epilog())
@click.option("--http", is_flag=True, help="Serve streamable HTTP on loopback instead of stdio.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="With --http; 0 takes a free one.  [default: 8378, or a free one]",
)
@click.option("--agentd", "starts_agentd", is_flag=True, help="Start an agentd where a command needs one.")
@click.option("--slot", type=click.Path(path_type=Path), help="Serve one plan of a run; agentd sets this.")
@common_options
def mcp(session: Session, port: int | None, slot: Path | None, *, http: bool, starts_agentd: bool) -> None:
    """Serve the home to a coding agent, by the Model Context Protocol.

    On stdio the client starts this command. With --http it prints an address and a token; several clients
    may use it. The server reads runs whether anybody drives the home or not; commands need its owner, or
    wait in the inbox. With --agentd the server starts an agentd if nobody owns the home, and ends it when
    it ends itself.
    """
    if port is not None and not http:
        raise click.UsageError("--port goes with --http")
    if slot is not None:
        from agentctl.mcp.slot import serve_slot

        asyncio.run(serve_slot(slot))
        return
    require_directory(session.home)
    with suppress(KeyboardInterrupt):  # this is how a server is ended
        if http:
            from agentctl.mcp.http_server import serve_http

            serve_http(session, port, starts_agentd=starts_agentd)
        else:
            from agentctl.mcp.server import serve_stdio

            asyncio.run(serve_stdio(session.home, starts_agentd=starts_agentd))
