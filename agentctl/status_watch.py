"""`agentctl status --watch`: the same screen again as it changes, drawn in place on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from agentctl.app import Session
from agentctl.terminal_style import make_printable, print_line, should_colour
from agentctl.views import as_json
from agentctl.views.overview import HomeOverview

LOOK_SECONDS = 1.0

ReadOverview = Callable[[], HomeOverview]
DrawOverview = Callable[..., list[str]]


def watch_status(session: Session, run: str | None, look: ReadOverview, draw: DrawOverview) -> None:
    """Show how a home stands, and again as that changes; until `run` has ended, where one is named."""
    show = _redraw_screen if sys.stdout.isatty() and not session.json else _print_changes
    show(session, run, look, draw)


def _has_ended(run: str | None, found: HomeOverview) -> bool:
    return run is not None and all(one.state in ("completed", "cancelled") for one in found.runs)


def _print_changes(session: Session, run: str | None, look: ReadOverview, draw: DrawOverview) -> None:
    """Write the screen, or a line of JSON, whenever it is another."""
    before: list[str] | None = None
    while True:
        found = look()
        lines = draw(found, named=run is not None)
        if lines != before:
            session.emit(as_json(found)) if session.json else print_line("\n".join([*lines, ""]))
            sys.stdout.flush()
        before = lines
        if _has_ended(run, found):
            return
        time.sleep(LOOK_SECONDS)


def _redraw_screen(session: Session, run: str | None, look: ReadOverview, draw: DrawOverview) -> None:
    """Draw the screen anew each time; the last one stays when it is over."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(no_color=should_colour() is False, highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            found = look()
            lines = draw(found, named=run is not None)
            live.update(Text.from_ansi(make_printable("\n".join(lines))), refresh=True)
            if _has_ended(run, found):
                return
            time.sleep(LOOK_SECONDS)
