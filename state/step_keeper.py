"""Where the code that performs a long effect finds what earlier deliveries of it have done already.

The effect's runner sets `STEP_KEEPER` for the task that performs it. Whoever does a part that takes long, and
whose answer follows from what it was asked, asks for it here. So no interface in between has to know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Protocol


class StepKeeper(Protocol):
    """Keeps the parts of one effect."""

    @property
    def done(self) -> int:
        """How many parts this delivery has done."""
        ...

    async def recall(
        self,
        asked: str,
        perform: Callable[[], Awaitable[str]],
        /,
        *,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> str:
        """Return the kept answer to `asked`; if there is none, perform and keep it, when `prepare` has ended.

        What `prepare` waits for, such as the start of processes, is not the effect's own work.
        """
        ...

    async def find(self, asked: str, /) -> str | None:
        """Return the kept answer to `asked`, None if there is none."""
        ...

    async def keep(self, asked: str, answer: str, /) -> None:
        """Keep an answer, instead of an earlier one to the same."""
        ...

    async def note_begun(self) -> None:
        """Record that the work begins, now that the processes that do it have started."""
        ...

    async def note_part(self) -> None:
        """Record that a part is done whose result is kept elsewhere."""
        ...


STEP_KEEPER: ContextVar[StepKeeper | None] = ContextVar("step_keeper", default=None)
"""The keeper of the effect that this task performs, None outside of effects."""


def count_done_parts() -> int:
    """Return how many parts of its effect the current task's delivery has done."""
    keeper = STEP_KEEPER.get()
    return 0 if keeper is None else keeper.done
