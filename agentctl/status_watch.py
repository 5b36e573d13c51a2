"""`agentctl status --watch`: prints the status again when it changes; on a terminal it is redrawn in
place.
"""

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
    """Show the state of a home whenever it changes; if `run` is given, stop when that run has ended."""
    show = _redraw_screen if sys.stdout.isatty() and not session.json else _print_changes
    show(session, run, look, draw)


def _has_ended(run: str | None, found: HomeOverview) -> bool:
    return run is not None and all(one.state in ("completed", "cancelled") for one in found.runs)


def _print_changes(session: Session, run: str | None, look: ReadOverview, draw: DrawOverview) -> None:
    """Write the status, or a line of JSON, whenever it has changed."""
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
    """Redraw the status each time; the last one stays on the screen."""
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
