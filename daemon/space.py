"""What happens when the disk is full: runs pause, appends wait, and both go on when there is space again.

Nothing is lost and nothing ends: what an append that found no space was to store is in its caller's hands,
which waits. The reserve is given up first, so that outcomes of effects in flight and the pauses themselves
still fit. A daemon that is started on a full disk finds its runs paused, and does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from daemon.looking import append_seen
from daemon.stop import Stop, first_of
from state.errors import StorageFull
from state.events import Event, RunPaused, RunResumed
from state.fold import RunState
from state.log import EventLog
from state.model import PauseCause, RunStatus
from state.reserve import LOW_BYTES, Reserve, free_bytes

LOOK_SECONDS = 1.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("space")


class Space:
    """Watches the disk that a log is on; `touched` is told of runs that may have been paused, or go on.

    `step` is called while appends wait, so that their waiting is not taken for a jam.
    """

    def __init__(
        self,
        event_log: EventLog,
        reserve: Reserve,
        stop: Stop,
        *,
        touched: Callable[[str], None],
        step: Callable[[], None] = lambda: None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._log = event_log
        self._reserve = reserve
        self._stop = stop
        self._touched = touched
        self._step = step
        self._look_seconds = look_seconds
        self._noticed = asyncio.Event()
        self.full = False

    async def wait(self, error: StorageFull) -> None:
        """Hold an append back that found no space, until it may be tried again.

        Raises:
            StorageFull: `error`, once the process is to stop.
        """
        self.full = True
        self._noticed.set()
        self._step()
        await first_of(self._stop.requested, seconds=self._look_seconds)
        if self._stop.requested.is_set():
            raise error

    async def watch(self) -> None:
        """Look after the reserve until cancelled, and sit out a full disk as often as it comes."""
        self._log.when_full = self.wait
        await self._resume()
        while True:
            self.full = self.full or self._low() or not self._reserve.make()
            if self.full:
                await self._sit_out()
                await self._resume()
            await first_of(self._noticed, seconds=self._look_seconds)

    def _low(self) -> bool:
        return free_bytes(self._log.home) < LOW_BYTES

    async def _sit_out(self) -> None:
        self._reserve.free()
        mib = self._reserve.needed >> 20
        log.error("disk_full", home=str(self._log.home), goes_on_with_mib_free=mib)
        reason = f"disk full: goes on when {mib} MiB are free"
        await self._say(_running, RunPaused(reason=reason, cause=PauseCause.SPACE))
        while not self._reserve.make():
            self._step()
            await asyncio.sleep(self._look_seconds)
        self.full = False
        self._noticed.clear()
        log.info("disk_has_space_again", home=str(self._log.home))

    async def _resume(self) -> None:
        """Let runs go on that wait for space, here or since an earlier process; on a full disk none does."""
        if self._low() or not self._reserve.make():
            return
        await self._say(_waits_for_space, RunResumed(reason="there is space again"))

    async def _say(self, concerns: Callable[[RunState], bool], event: Event) -> None:
        """Append `event` to the runs that it concerns, and tell of them all.

        After an error of the disk an event may be stored that we only hear of as a run that moved on.
        """
        for run in self._log.runs():
            if concerns(self._log.state(run)):
                await append_seen(self._log, [run], lambda state: event if concerns(state) else None)
                self._touched(run)


def _running(state: RunState) -> bool:
    return state.status is RunStatus.RUNNING


def _waits_for_space(state: RunState) -> bool:
    return state.status is RunStatus.PAUSED and state.pause_cause is PauseCause.SPACE
