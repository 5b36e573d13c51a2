"""Live progress: a line per thing that happened, and on a terminal a status line that keeps moving."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self, TextIO

from agentctl.paint import printable
from agentctl.tracker import Tracker
from agentctl.words import duration, narrate, standing, usd
from state.records import Recorded


class Screen(AbstractContextManager["Screen"], Protocol):
    """Where progress is shown; use it as a context."""

    def happened(self, item: Recorded, tracker: Tracker) -> None:
        """Show what an event means, if it means something to people."""

    def refresh(self, tracker: Tracker) -> None:
        """Show how the run stands now."""

    def say(self, text: str) -> None:
        """Show a line."""


class Plain:
    """Lines only: for files, pipes and tests."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._out.flush()

    def happened(self, item: Recorded, tracker: Tracker) -> None:
        line = narrate(item.event, tracker)
        if line is not None:
            self.say(line)

    def refresh(self, tracker: Tracker) -> None:
        """Lines tell all there is."""

    def say(self, text: str) -> None:
        self._out.write(f"{printable(text)}\n")
        self._out.flush()


class Terminal:
    """The same lines, above a status that is redrawn in place."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=out, highlight=False)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def happened(self, item: Recorded, tracker: Tracker) -> None:
        line = narrate(item.event, tracker)
        if line is not None:
            self.say(line)

    def refresh(self, tracker: Tracker) -> None:
        from rich.text import Text

        if tracker.state is not None:
            elapsed = max(0.0, time.time() - tracker.started_us / 1e6)
            self._live.update(Text(status_lines(tracker, elapsed), style="cyan"), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(printable(text), markup=False)


def status_lines(tracker: Tracker, elapsed_seconds: float) -> str:
    """Return round, elapsed time and spend in one line, counts and best latency in another."""
    state = tracker.state
    if state is None:
        return f"run {tracker.run}: waiting to begin"
    spent = usd(None if state.unknown_cost else state.spent_usd)
    return (
        f"round {state.round}/{state.config.search.rounds}, {len(state.open)} in flight, "
        f"{duration(elapsed_seconds)} since it began, spent {spent}\n{standing(state)}"
    )


def screen_for(out: TextIO) -> Screen:
    """Return the screen that suits `out`."""
    return Terminal(out) if out.isatty() else Plain(out)
