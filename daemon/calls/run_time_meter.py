"""Meters how long runs are under way on a day, if that has a cap.

Time is held in slices, and settled at the elapsed part of each. So spent plus held time never exceeds
the cap, and a killed process has already paid for its last slice. When no time is left today, the runs
pause until another day; their effects in flight are finished.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from daemon.calls.budget_ledger import BudgetLedger, HeldTime
from state.log import EventLog
from state.model import Amount, Resource, RunStatus, round_seconds

HOLD_SECONDS = 60.0
"""The length of a slice, in seconds."""

LOOK_SECONDS = 1.0
"""How often (seconds) to check whether any run is under way."""


class RunTimeMeter:
    """Holds and settles the time in which runs of one process are under way."""

    def __init__(
        self,
        event_log: EventLog,
        ledger: BudgetLedger,
        *,
        driven: Callable[[str], bool] = lambda _: True,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`driven` returns whether this process advances a run; `ticks` is a monotonic clock in seconds."""
        self._log = event_log
        self._ledger = ledger
        self._driven = driven
        self._clock = clock
        self._ticks = ticks
        self._held: HeldTime | None = None
        self._since = 0.0

    async def watch(self) -> None:
        """Poll until cancelled; then settle what is held."""
        try:
            while True:
                await self.poll()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self.settle_held()

    async def begin(self) -> None:
        """Settle what an earlier process left; then poll once, before any work starts."""
        await self._ledger.settle_lost_holds()
        await self.poll()

    async def poll(self) -> None:
        """Settle a slice that is over, and hold another one while any run is under way."""
        runs = self._log.active_runs() if self._has_day_cap() else ()
        under_way = [run for run in runs if self._driven(run) and self._is_running(run)]
        if not under_way:
            await self.settle_held()
            return
        if self._held is not None and self._passed_seconds() < self._held.seconds:
            return
        await self._hold_next(under_way)

    async def settle_held(self) -> None:
        """Settle what is held, at the elapsed time."""
        if self._held is not None:
            held, self._held = self._held, None
            await self._ledger.release(held, Amount(seconds=min(held.seconds, self._passed_seconds())))

    async def _hold_next(self, under_way: Iterable[str]) -> None:
        """Start the next slice at the end of the last one, so that no time in between goes uncharged."""
        now = self._ticks()
        since = now if self._held is None else self._since + self._held.seconds
        await self.settle_held()
        self._since = since
        self._held = await self._ledger.hold_time(min(HOLD_SECONDS, self._seconds_to_midnight()))
        if self._held is None:
            await self._close_day(under_way)

    async def _close_day(self, under_way: Iterable[str]) -> None:
        for account in self._ledger.day_accounts():
            if account.resource is Resource.DAY_SECONDS:
                for run in under_way:
                    await self._ledger.pause_for_day(run, account)

    def _has_day_cap(self) -> bool:
        return any(one.resource is Resource.DAY_SECONDS for one in self._ledger.day_accounts())

    def _is_running(self, run: str) -> bool:
        return self._log.run_state(run).status is RunStatus.RUNNING

    def _passed_seconds(self) -> float:
        return round_seconds(max(0.0, self._ticks() - self._since))

    def _seconds_to_midnight(self) -> float:
        """Return the seconds until midnight UTC, because a slice must not span two days."""
        now = datetime.fromtimestamp(self._clock(), tz=UTC)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        return max(LOOK_SECONDS, (midnight - now).total_seconds())
