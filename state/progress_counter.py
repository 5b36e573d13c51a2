"""Turns: how whatever works in turns shows that it gets on, so that a watchdog can tell rest from a jam."""

from __future__ import annotations


class ProgressCounter:
    """A count of turns done and whether one is under way; a turn is a `with` block.

    One worker counts, any thread may look. A turn of many pieces counts them by `step`.
    """

    __slots__ = ("busy", "done")

    def __init__(self) -> None:
        self.done = 0
        self.busy = False

    def __enter__(self) -> None:
        self.busy = True

    def __exit__(self, *_: object) -> None:
        self.busy = False
        self.done += 1

    def step(self) -> None:
        """Note that a piece of the turn under way is done."""
        self.done += 1
