"""`agentctl status --watch`: the same screen again as it changes, drawn in place on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from agentctl.app import Session
from agentctl.paint import coloured, echo, printable
from agentctl.views import as_json
from agentctl.views.overview import Overview

LOOK_SECONDS = 1.0

Look = Callable[[], Overview]
Draw = Callable[..., list[str]]


def watching(session: Session, run: str | None, look: Look, draw: Draw) -> None:
    """Show how a home stands, and again as that changes; until `run` has ended, where one is named."""
    show = _in_place if sys.stdout.isatty() and not session.json else _in_turn
    show(session, run, look, draw)


def _over(run: str | None, found: Overview) -> bool:
    return run is not None and all(one.state in ("completed", "cancelled") for one in found.runs)


def _in_turn(session: Session, run: str | None, look: Look, draw: Draw) -> None:
    """Write the screen, or a line of JSON, whenever it is another."""
    before: list[str] | None = None
    while True:
        found = look()
        lines = draw(found, named=run is not None)
        if lines != before:
            session.emit(as_json(found)) if session.json else echo("\n".join([*lines, ""]))
            sys.stdout.flush()
        before = lines
        if _over(run, found):
            return
        time.sleep(LOOK_SECONDS)


def _in_place(session: Session, run: str | None, look: Look, draw: Draw) -> None:
    """Draw the screen anew each time; the last one stays when it is over."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(no_color=coloured() is False, highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            found = look()
            lines = draw(found, named=run is not None)
            live.update(Text.from_ansi(printable("\n".join(lines))), refresh=True)
            if _over(run, found):
                return
            time.sleep(LOOK_SECONDS)
