"""Virtual time: an event loop whose clock jumps to its next timer, and a wall clock that goes with it."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

EPOCH_S = 1_700_000_000
TURNS_AT_A_TIME = 1_000_000
"""Turns of the loop within one instant, after which it counts as stuck."""


class Stuck(Exception):
    """Nothing can happen any more, or things happen without end in no time."""


class Clock:
    """The time of a simulated world, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    @contextmanager
    def told(self) -> Iterator[None]:
        """Let `time` tell this clock's time."""
        with mock.patch.multiple(time, time=self._wall, time_ns=self._wall_ns, monotonic=self._monotonic):
            yield

    def _wall(self) -> float:
        return EPOCH_S + self.now

    def _wall_ns(self) -> int:
        return EPOCH_S * 10**9 + int(self.now * 1e9)

    def _monotonic(self) -> float:
        return self.now


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing: where the loop would sleep, the clock goes on at once."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._turns = 0

    def select(self, timeout=None):
        found = super().select(0)
        self._turns += 1
        if self._turns > TURNS_AT_A_TIME:
            raise Stuck(f"{TURNS_AT_A_TIME} turns of the loop within one instant")
        if not found and timeout is None:
            raise Stuck("nothing is under way and no timer is set")
        if not found and timeout > 0:
            self._clock.now += timeout
            self._turns = 0
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that lives in a clock's time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(_Jumping(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.now
