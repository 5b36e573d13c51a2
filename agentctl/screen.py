"""Live progress: one line per event that matters, and on a terminal a status that is redrawn in place."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self, TextIO

from agentctl.formatting import (
    explain_pause,
    format_duration,
    format_run_state,
    format_usd,
    format_work_in_flight,
    narrate_event,
)
from agentctl.run_tracker import RunTracker
from agentctl.terminal_style import make_printable
from state.model import RunStatus
from state.records import RecordedEvent


class Screen(AbstractContextManager["Screen"], Protocol):
    """Where progress is shown; use it as a context manager."""

    def show_event(self, item: RecordedEvent, tracker: RunTracker) -> None:
        """Show what an event means, if people need to know it."""

    def show_state(self, tracker: RunTracker) -> None:
        """Show the run's current state."""

    def show_line(self, text: str) -> None:
        """Show a line."""


class PlainScreen:
    """Lines only: for files, pipes and tests."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._out.flush()

    def show_event(self, item: RecordedEvent, tracker: RunTracker) -> None:
        line = narrate_event(item.event, tracker)
        if line is not None:
            self.show_line(line)

    def show_state(self, tracker: RunTracker) -> None:
        """Do nothing: the lines already say everything."""

    def show_line(self, text: str) -> None:
        self._out.write(f"{make_printable(text)}\n")
        self._out.flush()


class TerminalScreen:
    """The same lines, above a status that is redrawn in place."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=out, highlight=False)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._opened = time.time()

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show_event(self, item: RecordedEvent, tracker: RunTracker) -> None:
        line = narrate_event(item.event, tracker)
        if line is not None:
            self.show_line(line)

    def show_state(self, tracker: RunTracker) -> None:
        from rich.text import Text

        now = time.time()
        elapsed = max(0.0, now - (tracker.started_us / 1e6 if tracker.started_us else self._opened))
        self._live.update(Text(status_lines(tracker, elapsed), style="cyan"), refresh=True)

    def show_line(self, text: str) -> None:
        self._console.print(make_printable(text), markup=False)


def status_lines(tracker: RunTracker, elapsed_seconds: float) -> str:
    """Return round, elapsed time and spend in one line, counts and best latency in another."""
    state = tracker.state
    if state is None:
        return f"run {tracker.run}: waiting to begin, {format_duration(elapsed_seconds)}"
    if state.status is RunStatus.PAUSED:
        return f"paused: {explain_pause(tracker.run, state)}\n{format_run_state(state)}"
    spent = format_usd(None if state.unknown_cost else state.spent_usd)
    doing = format_work_in_flight(state, tracker.predictions)
    return (
        f"round {state.round}/{state.config.search.rounds}, {doing}, "
        f"{format_duration(elapsed_seconds)} since it began, spent {spent}\n{format_run_state(state)}"
    )


def create_screen(out: TextIO) -> Screen:
    """Return the screen that suits `out`."""
    return TerminalScreen(out) if out.isatty() else PlainScreen(out)
