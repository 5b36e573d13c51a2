"""The heartbeat: tells the service manager that the process makes progress, and what it is doing.

A heartbeat is sent only while every busy part makes progress. The event loop itself sends it, so a stuck
loop sends none. A part that is still in the same turn and has done nothing since the last check holds it
back. Effects in flight do not count as parts: a slow model or a long evaluation is no reason to restart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from daemon.stop_signal import StopSignal
from daemon.structured_log import structlog
from daemon.systemd import ServiceNotifier
from state.progress_counter import ProgressCounter
from state.reader import RunStanding

BEAT_SECONDS = 1.0
BEATS = 4
"""Send at least this many heartbeats within the time that the watchdog waits."""

START_SECONDS = 60.0
"""The extension (seconds) that is requested repeatedly while a start makes progress."""

WORKING_SHARE = 0.01
"""The share of a core above which a start counts as making progress."""

STOP_SECONDS = 20.0
"""How long (seconds) a stop may take beyond its grace period, to close the workers and the log."""

_SHOWN_RUNS = 3

log: structlog.stdlib.BoundLogger = structlog.get_logger("pulse")


class Heartbeat:
    """Checks the parts of a process periodically, and reports to its service manager.

    `parts` maps names to progress counters; `describe` returns the status line that people see. READY is
    sent once every part has finished its first turn.
    """

    def __init__(
        self,
        notifier: ServiceNotifier,
        parts: Mapping[str, ProgressCounter],
        describe: Callable[[], str] | None = None,
    ) -> None:
        self._notifier = notifier
        self._parts = parts
        self._describe = describe
        self._seen: dict[str, tuple[bool, int]] = {}
        self._since = time.monotonic()
        self._told = False

    async def send_heartbeats(self) -> None:
        """Report until cancelled; return at once if no service manager listens."""
        if not self._notifier.is_listening:
            return
        await self._report_ready()
        wait = self._notifier.watchdog_seconds
        pause = min(BEAT_SECONDS, wait / BEATS) if wait else BEAT_SECONDS
        while True:
            self.poll()
            await asyncio.sleep(pause)

    async def _report_ready(self) -> None:
        async with keep_start_alive(self._notifier, "taking up runs"):
            while not all(turns.done for turns in self._parts.values()):  # noqa: ASYNC110 - over in milliseconds
                await asyncio.sleep(0.01)
        self._notifier.notify_ready()

    def poll(self) -> None:
        """Send a heartbeat if nothing is stuck, and the status line."""
        stuck = self._stuck_parts()
        if not stuck:
            self._since, self._told = time.monotonic(), False
            self._notifier.send_heartbeat()
        elif not self._told and self._is_starving():
            self._told = True
            log.error("stuck", parts=stuck, seconds=round(time.monotonic() - self._since, 1))
        if self._describe is not None:
            self._notifier.set_status(self._describe())

    def _stuck_parts(self) -> list[str]:
        """Return the parts that are in the same turn as at the last check and have done nothing since."""
        now = {name: (turns.busy, turns.done) for name, turns in self._parts.items()}
        before, self._seen = self._seen, now
        return [name for name, (busy, done) in now.items() if busy and before.get(name) == (busy, done)]

    def _is_starving(self) -> bool:
        wait = self._notifier.watchdog_seconds
        return wait is not None and time.monotonic() - self._since > wait / 2


@asynccontextmanager
async def keep_start_alive(notifier: ServiceNotifier, what: str) -> AsyncIterator[None]:
    """Request more time while the block runs, as long as this process uses the CPU and does not hang."""

    async def extend() -> None:
        while True:
            used = time.process_time()
            await asyncio.sleep(START_SECONDS / BEATS)
            if time.process_time() - used > WORKING_SHARE * START_SECONDS / BEATS:
                notifier.extend_timeout(START_SECONDS)
                notifier.send_heartbeat()  # a daemon that waited for its home is READY already

    notifier.set_status(what)
    extending = asyncio.create_task(extend())
    try:
        yield
    finally:
        extending.cancel()
        await asyncio.gather(extending, return_exceptions=True)


async def announce_stop(
    notifier: ServiceNotifier, stop: StopSignal, grace_seconds: Callable[[], float]
) -> None:
    """Wait until `stop` is requested, then tell the service manager how long stopping may take."""
    await stop.requested.wait()
    notifier.notify_stopping()
    notifier.extend_timeout(grace_seconds() + STOP_SECONDS)
    notifier.set_status("stopping: waiting for work in flight")


def format_standings(standings: Iterable[RunStanding]) -> str:
    """Return how runs stand in one line: run, round and best latency, with running ones first."""
    runs = sorted(standings, key=lambda run: run.status != "running")
    if not runs:
        return "idle: no active runs"
    more = f"; and {len(runs) - _SHOWN_RUNS} more" if len(runs) > _SHOWN_RUNS else ""
    return "; ".join(map(_format_standing, runs[:_SHOWN_RUNS])) + more


def _format_standing(run: RunStanding) -> str:
    status = "" if run.status == "running" else f" {run.status},"
    kind = "predicted" if run.predicted else "measured"
    best = "no kernel yet" if run.best_ms is None else f"best {run.best_ms:.4g} ms {kind}"
    return f"{run.run}:{status} round {run.round}, {best}"
