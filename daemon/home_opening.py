"""Opens the home for `agentd`, and waits out whatever can pass: an owner, a lock, a full disk, a lost mount.

A daemon that ended instead would use up the starts that a service manager allows. While the log cannot be
written, the daemon is up all the same: it is READY, says what it waits for and how the runs stand, and the
log can be read.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from pathlib import Path

from daemon.stop_signal import StopSignal, wait_for_first
from daemon.structured_log import structlog
from daemon.systemd import ServiceNotifier
from daemon.watchdog import START_SECONDS, format_standings, keep_start_alive
from state.disk_reserve import LOW_BYTES, free_bytes
from state.errors import HomeLocked, NoLog, StateError, StorageBusy, StorageFailed, StorageFull
from state.home import prepare_home
from state.lock import HomeLock
from state.log import EventLog
from state.reader import LogReader

LOOK_AGAIN_SECONDS = 1.0

_PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""Errors of system calls that end without anybody editing the home."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("agentd")


class HomeOpener:
    """Opens one home's log for `agentd`, as often as it takes.

    `creates` says whether a missing log is made. A service never makes one: where its home was, there may be
    an empty folder whose disk is not mounted.
    """

    def __init__(self, home: Path, stop: StopSignal, notifier: ServiceNotifier, *, creates: bool) -> None:
        self._home = home
        self._stop = stop
        self._notifier = notifier
        self._creates = creates
        self._instance: HomeLock | None = None
        self._told: str | None = None

    async def open_log(self, instance_lock: str) -> EventLog | None:
        """Open the log as soon as that is possible; return None if a stop is requested first.

        Raises:
            HomeLocked: another daemon serves this home, or waits for it.
            StateError: the home or its log cannot be used, and time will not change that.
        """
        while not self._stop.requested.is_set():
            try:
                self._take_instance(instance_lock)
                async with keep_start_alive(self._notifier, "opening the log"):
                    return await asyncio.to_thread(EventLog.open, self._home, create=self._creates)
            except (HomeLocked, StorageBusy) as error:
                if self._instance is None and isinstance(error, HomeLocked):
                    raise
                self._tell(error)
                self._notifier.set_status(f"waiting: {error}")
                self._notifier.extend_timeout(START_SECONDS)
            except (StateError, OSError) as error:
                if not self.can_pass(error):
                    raise
                await self.report_unwritable(error)
            await wait_for_first(self._stop.requested, seconds=LOOK_AGAIN_SECONDS)
        return None

    def can_pass(self, error: Exception) -> bool:
        """Return whether what `error` says may be over later, without anybody editing the home."""
        if isinstance(error, StorageFull | StorageFailed):
            return True
        if isinstance(error, NoLog):
            return not self._creates
        if isinstance(error, OSError):
            return error.errno in _PASSING
        return self._is_disk_full()

    async def report_unwritable(self, error: Exception) -> None:
        """Tell the service manager that this process is up, and what it waits for."""
        self._tell(error)
        standings = await asyncio.to_thread(self._describe_runs)
        self._notifier.notify_ready()
        self._notifier.send_heartbeat()
        full = "disk full: " if self._is_disk_full() else ""
        self._notifier.set_status(f"read-only, goes on by itself: {full}{error}{standings}")

    def _is_disk_full(self) -> bool:
        with suppress(OSError):  # SQLite has other words for it
            return free_bytes(self._home) < LOW_BYTES
        return False

    def close(self) -> None:
        if self._instance is not None:
            self._instance.release()

    def _take_instance(self, name: str) -> None:
        if self._instance is None:
            self._instance = HomeLock(prepare_home(self._home, create=self._creates).home / name)

    def _describe_runs(self) -> str:
        with suppress(StateError, OSError), LogReader.open(self._home) as reader:
            return f"; {format_standings(reader.run_standings())}"
        return ""

    def _tell(self, error: Exception) -> None:
        if self._told != str(error):
            self._told = str(error)
            owner_pid = error.owner_pid if isinstance(error, HomeLocked) else None
            log.warning("waiting_for_home", home=str(self._home), error=self._told, owner_pid=owner_pid)
