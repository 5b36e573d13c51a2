"""Counts a worker's turns, so that a watchdog can tell an idle worker from a stuck one."""

from __future__ import annotations


class ProgressCounter:
    """Counts completed turns and shows whether one is in progress; a turn is a `with` block.

    One worker counts, any thread may read. A long turn counts its parts with `step`.
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
        """Record that a part of the current turn is done."""
        self.done += 1
