"""`EventLog` writes a home's event log: one writer, one connection, one thread that commits in groups.

An append is on disk when its call returns. `state.writer` groups the appends into commits, `state.appender`
checks them first. An `EventLog` is also a `LogReader` of its log; reads never use the writer's connection.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from state.appender import Appender, PendingAppend, prepare_append
from state.errors import HomeMoved, LogClosed, StorageFull, StreamUnknown
from state.fold import RunState
from state.head import Head
from state.home import HomeLayout, home_identity
from state.lock import HomeLock
from state.model import SYSTEM_STREAM
from state.opening import open_log, settle_log
from state.progress_counter import ProgressCounter
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.snapshots import Tip
from state.system import SystemState
from state.writer import AppendRequest, LogWriter

MAX_WAITING = 4096
"""How many appends may wait for the writer; further callers wait until there is room."""

LARGE_BYTES = 1 << 17
"""Blobs of an append that are hashed and compressed in another thread, if they have so many bytes."""

_PAUSE_S = 0.001

_SHARED_BYTES = (0x40000002, 510)
"""Which bytes of the database SQLite locks before it deletes a WAL: the first, and how many."""

_log = logging.getLogger(__name__)


class EventLog(LogReader):
    """The one writer of a home's log. Get it with `open`; use it as a context manager or `close` it."""

    def __init__(self, layout: HomeLayout, lock: HomeLock, appender: Appender) -> None:
        super().__init__(layout)
        self.home = layout.home
        self._identity = home_identity(layout.home)
        self._lock = lock
        self._appender = appender
        self._writer = LogWriter(appender, layout, on_wait=lock.note_wait)
        self._writer.start()
        self._closed = False
        self._submitted: dict[asyncio.AbstractEventLoop, list[AppendRequest]] = {}
        self.when_full: Callable[[StorageFull], Awaitable[None]] | None = None
        """An append that finds the disk full awaits this and is retried. If it raises, the append fails."""

    @classmethod
    def open(cls, home: Path, *, create: bool = True, full_check: bool = False) -> Self:
        """Lock the home and open its log, checking the rows written since the last verified event.

        `full_check` derives the whole hash chain anew instead. `verify_log` checks more than either.

        Raises:
            HomeError: HomeUnreadable, HomeOnNetwork, HomeLocked (with the owner's pid), NoLog.
            LogError: LogTooNew, LogDamaged (naming the first bad row), TailLost.
            StorageBusy: a process that does not own the home holds a lock on the log; you may retry.
            StorageFailed: the disk failed, or refused write-ahead logging.
        """
        layout, lock, appender = open_log(home, create=create, full_check=full_check)
        try:
            return cls(layout, lock, appender)
        except BaseException:
            appender.connection.close()
            lock.release()
            raise

    # --- appending ---

    async def append(
        self,
        events: Sequence[NewEvent],
        *,
        blobs: Sequence[bytes] = (),
        expect: Mapping[str, int] | None = None,
    ) -> tuple[RecordedEvent, ...]:
        """Store `events` and `blobs`, all or none. They are durable when this returns.

        `expect` maps a stream to the last run_seq that the caller saw. If all events are stored already, the
        stored ones are returned. If the caller is cancelled, the append may still be stored. While another
        process holds a lock on the log, this waits.

        Raises:
            EventRefused, StaleAppend, DuplicateOutcome: nothing was stored.
            StorageFull, StorageFailed: nothing was acknowledged; you may retry the same append. If
                `when_full` is set, a full disk is retried here.
            StorageBusy: `stop_waiting` was called, and another process holds a lock on the log.
            LogClosed: the log is closed.
        """
        if sum(map(len, blobs)) < LARGE_BYTES:
            one = prepare_append(events, blobs=blobs, expect=expect)
        else:  # hashing and compressing would hold the event loop up
            one = await asyncio.to_thread(prepare_append, events, blobs=blobs, expect=expect)
        while True:
            try:
                return await self._submit_append(one)
            except StorageFull as error:
                if self.when_full is None:
                    raise
                await self.when_full(error)

    async def _submit_append(self, one: PendingAppend) -> tuple[RecordedEvent, ...]:
        while self._writer.queue_size >= MAX_WAITING:  # noqa: ASYNC110 - the queue's other end is a thread
            await asyncio.sleep(_PAUSE_S)
        if self._closed:
            raise LogClosed("the log is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[RecordedEvent, ...]] = loop.create_future()
        group = self._submitted.setdefault(loop, [])
        if not group:  # whoever appends in this turn of the loop shares a commit
            loop.call_soon(self._flush_submitted, loop)
        group.append(AppendRequest(one, future, loop))
        return await future

    def _flush_submitted(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit what was submitted in this turn of the event loop, or give it to the writer."""
        group = self._submitted.pop(loop, [])
        if not group or self._writer.commit_here(group):
            return
        for request in group:
            self._writer.submit(request)

    def append_now(
        self,
        events: Sequence[NewEvent],
        *,
        blobs: Sequence[bytes] = (),
        expect: Mapping[str, int] | None = None,
    ) -> tuple[RecordedEvent, ...]:
        """Append from outside an event loop; blocks until the events are durable. See `append`."""
        future: Future[tuple[RecordedEvent, ...]] = Future()
        self._writer.submit(AppendRequest(prepare_append(events, blobs=blobs, expect=expect), future, None))
        return future.result()

    @contextmanager
    def pause_appends(self) -> Iterator[Appender]:
        """Let appends wait while the block uses what they use; not for event loops, which would wait too."""
        with self._writer.pause() as appender:
            yield appender

    @property
    def writer_progress(self) -> ProgressCounter:
        """A counter that rises while the writer makes progress."""
        return self._writer.turns

    @property
    def waits_for(self) -> str | None:
        """What appends wait for, such as `process 4711 (sqlite3) holds a write lock on the log`."""
        return self._writer.waits_for

    def stop_waiting(self) -> None:
        """From now on, let appends that find the log locked by another process fail with StorageBusy."""
        self._writer.stop_waiting()

    # --- what the writer has in memory ---

    @property
    def head(self) -> Head:
        return self._appender.head

    def run_state(self, run: str, to: int | None = None) -> RunState:
        if to is not None:
            return super().run_state(run, to)
        tip = self._current_tip(run)
        if tip is None or not isinstance(tip.state, RunState):
            raise StreamUnknown(f"no run {run}")
        return tip.state

    def system_state(self, upto: int | None = None) -> SystemState:
        if upto is not None:
            return super().system_state(upto)
        tip = self._current_tip(SYSTEM_STREAM)
        return tip.state if tip is not None and isinstance(tip.state, SystemState) else SystemState()

    def _current_tip(self, stream: str) -> Tip | None:
        return self._appender.cached_tip(stream) or self.load_tip(stream, self._appender.folded)

    def run_seq(self, stream: str) -> int:
        tip = self._appender.cached_tip(stream)
        return tip.run_seq if tip is not None else super().run_seq(stream)

    def require_in_place(self) -> None:
        """Refuse a home that was moved, or whose disk is mounted no more; raises HomeMoved."""
        if home_identity(self.home) != self._identity:
            what = "was moved away, or its disk is mounted no more"
            raise HomeMoved(f"{self.home}: {what}; nothing is written to what is there now")

    # --- closing ---

    def close(self) -> None:
        """Store pending appends, write snapshots and HEAD, checkpoint, unlock. Closing twice is harmless.

        What fails here is reported and made up for at the next opening: acknowledged events are safe.
        """
        if self._closed:
            return
        self._closed = True
        for group in self._submitted.values():
            for request in group:
                self._writer.submit(request)
        self._submitted.clear()
        self._writer.stop()
        super().close()
        try:
            if home_identity(self.home) == self._identity:
                self._settle_log()
            else:
                self._keep_wal()
        except (sqlite3.Error, OSError) as error:
            _log.warning("the log was not moved into its one file at the end, which loses nothing: %s", error)
        finally:
            self._writer.close()
            self._appender.connection.close()
            self._lock.release()

    def _keep_wal(self) -> None:
        """Leave the WAL to the next opening, as a killed process does.

        SQLite would move it into the database and then delete it by its path, where another home's may be. A
        lock of our own keeps it from both.
        """
        self._writer.sync_head()
        database = os.open(self._writer.pin_path(self._layout.name), os.O_RDONLY | os.O_CLOEXEC)
        lock = struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, *_SHARED_BYTES, 0)
        fcntl.fcntl(database, fcntl.F_OFD_SETLK, lock)  # until the process ends

    def _settle_log(self) -> None:
        self._appender.save_snapshots(every=1)
        self._writer.sync_head()
        settle_log(self._appender.connection)
