"""`agentctl ui`: the live page of a home, for a browser on this machine."""

from __future__ import annotations

import ipaddress
import sys
from contextlib import suppress

import click

from agentctl.app import Session, common_options
from daemon import exits
from daemon.errors import DaemonError
from state.home import missing_home_error, require_directory

_OPEN_WARNING = (
    "warning: this page is not on loopback, and speaks plain HTTP: whoever is on the way can read its\n"
    "token; better leave it on 127.0.0.1 and reach it with: ssh -L PORT:127.0.0.1:PORT HOST"
)


@click.command(epilog=exits.epilog())
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="0 takes a free one.  [default: 8377, or a free one]"
)
@click.option("--name", "names", multiple=True, help="Another name by which browsers reach this host.")
@click.option("--control", is_flag=True, help="Let the page steer runs; else it only looks.")
@common_options
def ui(session: Session, host: str, port: int | None, names: tuple[str, ...], *, control: bool) -> None:
    """Serve a live page of the home's runs; open the address it prints in a browser.

    It answers only this machine, unless --host says otherwise, and only requests with the token in its
    address. With --control it can pause, resume, cancel, approve, set, fork and propose, through the inbox as
    the command line does. Ctrl-C ends the page and no run.
    """
    from agentctl.page.server import (
        PageApp,
        create_page_server,
        open_listening_socket,
        page_address,
        policy_for_socket,
    )
    from agentctl.page.source import HomeSource

    require_directory(session.home)
    if not session.home.exists():
        raise missing_home_error(session.home)
    try:
        bound = open_listening_socket(host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DaemonError(
            f"cannot listen on {host}:{port or 0}: {reason}",
            code="no_address",
            hint="--port 0 takes any free port",
        ) from error
    gate = policy_for_socket(bound, names)
    url = page_address(gate, bound)
    if not _is_loopback(host):
        click.echo(_OPEN_WARNING, err=True)
    home = session.home
    text = f"The page of {home} is at\n\n    {url}\n\n" + (
        "It may steer runs. " if control else "It only looks; --control lets it steer. "
    )
    session.emit({"url": url, "home": str(home), "control": control}, f"{text}Ctrl-C ends it.")
    sys.stdout.flush()
    site = PageApp.create(HomeSource(home, session.home_words, control=control), gate)
    with bound, suppress(KeyboardInterrupt):  # this is how a page is ended
        create_page_server(site).run(sockets=[bound])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
