"""Progress of what takes longer than a glance: a bar on the terminal of a person, nothing anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

SAY_AFTER_SECONDS = 2.0
"""What is done sooner needs no bar."""

Item = TypeVar("Item")


class Bar(AbstractContextManager["Bar"]):
    """A bar on stderr that appears once the work has taken `SAY_AFTER_SECONDS`; use it as a context."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._person = sys.stderr.isatty()
        self._shown: RichProgress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        """Say how far it has come."""
        if not self._person or time.monotonic() - self._began < SAY_AFTER_SECONDS:
            return
        if self._shown is None:
            self._begin(total)
        assert self._shown is not None
        assert self._task is not None
        self._shown.update(self._task, completed=done, total=max(total, 1))

    def _begin(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._shown = Progress(console=Console(stderr=True), transient=True)
        self._shown.start()
        self._task = self._shown.add_task(self._what, total=max(total, 1))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.stop()


def tracked(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield items, showing how many of them are done."""
    with Bar(what) as bar:
        for number, item in enumerate(items):
            bar(number, len(items))
            yield item
