"""Keeps the replicas of the log (`daemon.replicas`) at most a second behind, in a thread of their own.

A replica that cannot be reached is tried again, ever more rarely; nothing waits for it. It goes on from its
own last segment, so that nothing is copied twice and nothing is left out.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from daemon.structured_log import structlog
from remote.errors import RemoteError
from remote.replica_stores import open_store
from state.errors import StateError
from state.home import HomeLayout
from state.log import EventLog
from state.readonly import ReadOnlyConnection
from state.replica import ReplicaStore, Replicator

LOOK_SECONDS = 0.25
"""Seconds between two looks at the log; with the time to copy, a replica is at most a second behind."""

PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 60.0
"""The pause after a failure; it doubles up to the second figure."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("replicas")


class ReplicaWatch:
    """Copies the log of an open home to its replicas."""

    def __init__(
        self,
        event_log: EventLog,
        destinations: Sequence[str],
        *,
        open_: Callable[[str, Path], ReplicaStore] = open_store,
    ) -> None:
        self._log = event_log
        self._destinations = tuple(destinations)
        self._open = open_
        self._changed = asyncio.Event()

    def set_destinations(self, destinations: Sequence[str]) -> None:
        """Copy to these from now on."""
        self._destinations = tuple(destinations)
        self._changed.set()

    async def watch(self) -> None:
        """Copy until cancelled."""
        working: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                self._changed.clear()
                for gone in working.keys() - set(self._destinations):
                    working.pop(gone).cancel()
                for new in set(self._destinations) - working.keys():
                    working[new] = asyncio.create_task(self._keep_up(new))
                await self._changed.wait()
        finally:
            for task in working.values():
                task.cancel()
            await asyncio.gather(*working.values(), return_exceptions=True)

    async def _keep_up(self, destination: str) -> None:
        replicator: Replicator | None = None
        failures = 0
        while True:
            try:
                replicator = replicator or Replicator(self._open(destination, self._log.home))
                await asyncio.to_thread(copy_news, self._log.home, replicator)
            except (OSError, RemoteError, StateError, sqlite3.Error) as error:
                failures += 1
                pause = min(MOST_PAUSE_SECONDS, PAUSE_SECONDS * 2.0 ** min(failures, 10))
                if failures == 1:
                    log.warning("replica_behind", replica=destination, error=str(error))
                await asyncio.sleep(pause)
                continue
            if failures:
                log.info("replica_goes_on", replica=destination, upto=replicator.last_copied)
            failures = 0
            while self._log.head.seq <= replicator.last_copied:  # noqa: ASYNC110 - a thread writes
                await asyncio.sleep(LOOK_SECONDS)


def copy_news(home: Path, replicator: Replicator) -> int:
    """Copy what a replica lacks; return how many segments that were."""
    with closing(ReadOnlyConnection(HomeLayout(home))) as handle:
        return replicator.copy_news(handle.connection())
