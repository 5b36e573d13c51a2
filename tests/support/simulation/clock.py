"""Virtual time: an event loop whose clock jumps to its next timer, and a wall clock that can be set."""

from __future__ import annotations

import asyncio
import selectors
import threading
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
    """The time of a simulated world, in seconds; `ahead` is how far the wall clock is set from it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ahead = 0.0

    @contextmanager
    def patch_time(self) -> Iterator[None]:
        """Let `time` tell this clock's time."""
        with mock.patch.multiple(time, time=self.wall, time_ns=self._wall_ns, monotonic=self._monotonic):
            yield

    def wall(self) -> float:
        """Return what the wall clock shows (UNIX seconds)."""
        return EPOCH_S + self.now + self.ahead

    def _wall_ns(self) -> int:
        return EPOCH_S * 10**9 + int((self.now + self.ahead) * 1e9)

    def _monotonic(self) -> float:
        return self.now


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing: where the loop would sleep, the clock goes on at once.

    Nobody outside writes to any of the loop's files, so that none is looked at.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._turns = 0

    def select(self, timeout=None):
        self._turns += 1
        if self._turns > TURNS_AT_A_TIME:
            raise Stuck(f"{TURNS_AT_A_TIME} turns of the loop within one instant")
        if timeout is None:
            raise Stuck("nothing is under way and no timer is set")
        if timeout > 0:
            self._clock.now += timeout
            self._turns = 0
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that lives in a clock's time, and in one thread."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(_Jumping(clock))
        self._clock = clock
        self._owner = threading.get_ident()

    def time(self) -> float:
        return self._clock.now

    def call_soon_threadsafe(self, callback, *args, context=None):
        """Call from the loop's own thread: when another one would call, no seed could say."""
        if threading.get_ident() != self._owner:
            raise Stuck(f"{callback} was called from another thread")
        return self.call_soon(callback, *args, context=context)
