"""A progress bar for slow work: shown on a terminal only."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from threading import RLock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

SAY_AFTER_SECONDS = 2.0
"""Faster work needs no bar."""


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """A bar on stderr that appears after `SAY_AFTER_SECONDS` of work; use it as a context manager.

    It appears by itself, because a single query of the log may take that long, and it pulses until it is
    told the progress. Print nothing to the terminal in the meantime.
    """

    def __init__(self, what: str, *, wanted: bool = True) -> None:
        self._what = what
        self._lock = RLock()
        self._far: tuple[int, int] | None = None
        self._shown: tuple[RichProgress, TaskID] | None = None
        self._timer: Timer | None = None
        if wanted and sys.stderr.isatty():
            self._timer = Timer(SAY_AFTER_SECONDS, self._show_bar)
            self._timer.daemon = True

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        """Report the progress."""
        with self._lock:
            self._far = (done, max(total, 1))
            self._update_bar()

    def _show_bar(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        with self._lock:
            if self._timer is None:
                return  # the work ended while the library was imported
            bar = Progress(
                console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._shown = (bar, bar.add_task(self._what, total=None))
            self._update_bar()
            bar.start()

    def _update_bar(self) -> None:
        if self._shown is not None and self._far is not None:
            bar, task = self._shown
            bar.update(task, completed=self._far[0], total=self._far[1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._shown is not None:
                self._shown[0].stop()
                self._shown = None
