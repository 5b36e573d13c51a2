"""Handles a full disk: runs pause, appends wait, and both go on when there is space again.

Nothing is lost and nothing ends: an append that finds no space waits and keeps its data in memory. The
reserve file is deleted first, so that outcomes of effects in flight and the pause events still fit. A
daemon that starts on a full disk finds its runs paused, and does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from daemon.optimistic_append import append_if_current
from daemon.stop_signal import StopSignal, wait_for_first
from daemon.structured_log import structlog
from state.disk_reserve import LOW_BYTES, DiskReserve, free_bytes
from state.errors import StorageFull
from state.events import Event, RunPaused, RunResumed
from state.fold import RunState
from state.log import EventLog
from state.model import PauseCause, RunStatus

LOOK_SECONDS = 1.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("space")


class DiskSpaceGuard:
    """Watches the disk of a log; `touched` is called with runs that may have been paused or resumed.

    `step` is called while appends wait, so that the watchdog does not take their waiting for a hang.
    """

    def __init__(
        self,
        event_log: EventLog,
        reserve: DiskReserve,
        stop: StopSignal,
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

    async def wait_for_space(self, error: StorageFull) -> None:
        """Hold back an append that found no space, until it may be tried again.

        Raises:
            StorageFull: `error`, if the process is to stop.
        """
        self.full = True
        self._noticed.set()
        self._step()
        await wait_for_first(self._stop.requested, seconds=self._look_seconds)
        if self._stop.requested.is_set():
            raise error

    async def watch(self) -> None:
        """Maintain the reserve until cancelled, and wait whenever the disk is full."""
        self._log.when_full = self.wait_for_space
        await self._resume_runs()
        while True:
            self.full = self.full or self._is_low() or not self._reserve.create()
            if self.full:
                await self._wait_out_full_disk()
                await self._resume_runs()
            await wait_for_first(self._noticed, seconds=self._look_seconds)

    def _is_low(self) -> bool:
        return free_bytes(self._log.home) < LOW_BYTES

    async def _wait_out_full_disk(self) -> None:
        self._reserve.release()
        mib = self._reserve.required_bytes >> 20
        log.error("disk_full", home=str(self._log.home), goes_on_with_mib_free=mib)
        reason = f"disk full: goes on when {mib} MiB are free"
        await self._append_to_runs(_is_running, RunPaused(reason=reason, cause=PauseCause.SPACE))
        while not self._reserve.create():
            self._step()
            await asyncio.sleep(self._look_seconds)
        self.full = False
        self._noticed.clear()
        log.info("disk_has_space_again", home=str(self._log.home))

    async def _resume_runs(self) -> None:
        """Resume runs that wait for space, also those paused by an earlier process; do nothing if the
        disk is still full.
        """
        if self._is_low() or not self._reserve.create():
            return
        await self._append_to_runs(_waits_for_space, RunResumed(reason="there is space again"))

    async def _append_to_runs(self, concerns: Callable[[RunState], bool], event: Event) -> None:
        """Append `event` to the runs for which `concerns` is true, and call `touched` with each of them.

        After a disk error an event may have been stored although its append failed; the run then has
        moved on.
        """
        for run in self._log.active_runs():
            if concerns(self._log.run_state(run)):
                await append_if_current(self._log, [run], lambda state: event if concerns(state) else None)
                self._touched(run)


def _is_running(state: RunState) -> bool:
    return state.status is RunStatus.RUNNING


def _waits_for_space(state: RunState) -> bool:
    return state.status is RunStatus.PAUSED and state.pause_cause is PauseCause.SPACE
