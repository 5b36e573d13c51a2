"""Deadlines of rounds: one timer per run, on the monotonic clock while this process lives.

A round may take as long as its settings allow, and no longer than the run's remaining time. After a
restart, the time already used is computed from the log's wall clock. That clock may have jumped, so the
used time is clamped to between zero and the whole limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from state.fold import RunState
from state.log import EventLog

PassedLimit = Literal["round", "run"]
"""Which limit closes a round: its own, or that of the whole run."""


@dataclass(frozen=True, slots=True)
class _TimeLimits:
    """Seconds that a round, and the whole run, may take; None: no limit."""

    round: float | None
    run: float | None


@dataclass(frozen=True, slots=True)
class _RoundTimer:
    round: int
    limits: _TimeLimits
    handle: asyncio.TimerHandle


class RoundDeadlines:
    """Reports when the round of a run has reached its deadline."""

    def __init__(self, event_log: EventLog, *, passed: Callable[[str], None]) -> None:
        """`passed` is called with a run whose round has to close."""
        self._log = event_log
        self._passed = passed
        self._timers: dict[str, _RoundTimer] = {}
        self._over: dict[str, tuple[int, PassedLimit]] = {}

    def check_deadline(self, run: str, state: RunState) -> PassedLimit | None:
        """Update a run's timer from its state; return the limit that its round has passed, None if none."""
        cap = (state.pending_config or state.config).cap_seconds  # a raised cap counts at once
        limits = _TimeLimits(state.config.search.round_seconds, cap)
        if limits == _TimeLimits(None, None) or not state.is_joinable:
            self.forget(run)
            return None
        timer = self._timers.get(run)
        if timer is None or (timer.round, timer.limits) != (state.round, limits):
            self.forget(run)
            self._start_timer(run, state.round, limits)
        round_, limit = self._over.get(run, (None, None))
        return limit if round_ == state.round else None

    def forget(self, run: str) -> None:
        """Stop the timer of a run."""
        timer = self._timers.pop(run, None)
        self._over.pop(run, None)
        if timer is not None:
            timer.handle.cancel()

    def stop(self) -> None:
        """Stop all timers."""
        for run in tuple(self._timers):
            self.forget(run)

    def _start_timer(self, run: str, round_: int, limits: _TimeLimits) -> None:
        began: dict[PassedLimit, tuple[float | None, int]] = {
            "round": (limits.round, self._log.round_began_us(run)),
            "run": (limits.run, self._log.run_began_us(run)),
        }
        left: dict[PassedLimit, float] = {
            limit: _remaining_seconds(seconds, since_us)
            for limit, (seconds, since_us) in began.items()
            if seconds is not None
        }
        first = min(left, key=left.__getitem__)
        handle = asyncio.get_running_loop().call_later(left[first], self._on_timer, run, round_, first)
        self._timers[run] = _RoundTimer(round_, limits, handle)

    def _on_timer(self, run: str, round_: int, limit: PassedLimit) -> None:
        self._over[run] = round_, limit
        self._passed(run)


def _remaining_seconds(seconds: float, since_us: int) -> float:
    had = time.time() - since_us / 1e6
    return seconds - min(max(had, 0.0), seconds)
