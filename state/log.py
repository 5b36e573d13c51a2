"""`EventLog` writes a home's event log: one writer, one connection, one thread that commits in groups.

An append is on disk when its call returns. `state.writer` groups the appends into commits, `state.appender`
checks them first. Reads never use the writer's connection: see `LogReader`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

from state.appender import Appender, PendingAppend, prepare_append
from state.errors import StorageFailed, StorageFull, StreamUnknown, sqlite_errors
from state.fold import RunState
from state.head import Head
from state.home import HomeLayout
from state.lock import HomeLock
from state.model import SYSTEM_STREAM
from state.opening import abandon_writer, open_log, settle_log
from state.progress_counter import ProgressCounter
from state.reader import LogReader, RunStanding
from state.records import NewEvent, RecordedEvent
from state.snapshots import Tip
from state.system import SystemState
from state.writer import AppendRequest, LogWriter

MAX_WAITING = 4096
"""How many appends may wait for the writer; further callers wait until there is room."""

_PAUSE_S = 0.001


class EventLog:
    """The one writer of a home's log. Get it with `open`; use it as a context manager or `close` it."""

    def __init__(self, layout: HomeLayout, lock: HomeLock, appender: Appender, reader: LogReader) -> None:
        self.home = layout.home
        self._lock = lock
        self._appender = appender
        self._reader = reader
        self._writer = LogWriter(appender, layout.head)
        self._closed = False
        self.when_full: Callable[[StorageFull], Awaitable[None]] | None = None
        """An append that finds the disk full awaits this and is retried. If it raises, the append fails."""

    @classmethod
    def open(cls, home: Path, *, create: bool = True, full_check: bool = False) -> EventLog:
        """Lock the home and open its log, checking the rows written since the last verified event.

        `full_check` derives the whole hash chain anew instead. `verify_log` checks more than either.

        Raises:
            HomeError: HomeUnreadable, HomeOnNetwork, HomeLocked (with the owner's pid), NoLog.
            LogError: LogTooNew, LogDamaged (naming the first bad row), TailLost.
            StorageFailed: the disk failed, or refused write-ahead logging.
        """
        layout, lock, appender = open_log(home, create=create, full_check=full_check)
        try:
            return cls(layout, lock, appender, LogReader.open(home))
        except BaseException:
            abandon_writer(layout, appender.connection)
            lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        stored ones are returned. If the caller is cancelled, the append may still be stored.

        Raises:
            EventRefused, StaleAppend, DuplicateOutcome: nothing was stored.
            StorageFull, StorageFailed: nothing was acknowledged; you may retry the same append. If
                `when_full` is set, a full disk is retried here.
            LogClosed: the log is closed.
        """
        one = prepare_append(events, blobs=blobs, expect=expect)
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
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[RecordedEvent, ...]] = loop.create_future()
        self._writer.submit(AppendRequest(one, future, loop))
        return await future

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

    # --- what is known ---

    @property
    def head(self) -> Head:
        """The last committed event."""
        return self._appender.head

    @property
    def writer_progress(self) -> ProgressCounter:
        """A counter that rises while the writer makes progress."""
        return self._writer.turns

    def run_state(self, run: str) -> RunState:
        """Return a run's state as of its last committed event.

        Raises:
            StreamUnknown: there is no such run.
        """
        tip = self._load_tip(run)
        if tip is None or not isinstance(tip.state, RunState):
            raise StreamUnknown(f"no run {run}")
        return tip.state

    def _load_tip(self, stream: str) -> Tip | None:
        return self._appender.cached_tip(stream) or self._reader.load_tip(stream, self._appender.folded)

    def run_state_at(self, run: str, run_seq: int) -> RunState:
        """Return a run's state right after one of its events; raises StreamUnknown."""
        return self._reader.run_state(run, run_seq)

    def event_hash(self, run: str, run_seq: int) -> str:
        """Return the hash of one of a run's events; raises StreamUnknown."""
        return self._reader.event_hash(run, run_seq)

    def run_began_us(self, run: str) -> int:
        """Return when a run began, in UNIX microseconds; a fork begins with its own first event."""
        found = self._reader.read(stream=run, types=("RunCreated", "RunForked"), newest=True, limit=1)
        return found[0].ts_us if found else 0

    def round_began_us(self, run: str) -> int:
        """Return when a run's last round began, in UNIX microseconds; 0 if it had none."""
        found = self._reader.read(stream=run, types=("RoundStarted",), newest=True, limit=1)
        return found[0].ts_us if found else 0

    def system_state(self) -> SystemState:
        """Return the system stream's state."""
        tip = self._load_tip(SYSTEM_STREAM)
        return tip.state if tip is not None and isinstance(tip.state, SystemState) else SystemState()

    def run_seq(self, stream: str) -> int:
        """Return the stream's last run_seq, as `expect` wants it; 0 if the stream has no events."""
        tip = self._appender.cached_tip(stream)
        return tip.run_seq if tip is not None else self._reader.run_seq(stream)

    def active_runs(self) -> tuple[str, ...]:
        """Return the runs that have not ended, oldest first."""
        return self._reader.active_runs()

    def run_ids(self) -> tuple[str, ...]:
        """Return the ids of all runs, oldest first."""
        return self._reader.run_ids()

    def run_standings(self) -> list[RunStanding]:
        """Return how the runs that have not ended stand, oldest first."""
        return self._reader.run_standings()

    def read(
        self,
        *,
        stream: str | None = None,
        after: int = 0,
        limit: int = 500,
        types: Sequence[str] | None = None,
    ) -> list[RecordedEvent]:
        """Return committed events in log order, as `LogReader.read` does."""
        return self._reader.read(stream=stream, after=after, limit=limit, types=types)

    def event_by_key(self, stream: str, idem: str) -> RecordedEvent | None:
        """Return the event with this idempotency key from a run or its ancestors, or None."""
        return self._reader.event_by_key(stream, idem)

    def get_blob(self, digest: str) -> bytes:
        """Return a blob's bytes; raises BlobMissing."""
        return self._reader.get_blob(digest)

    def known_evaluations(self, cache_key: str) -> list[RecordedEvent]:
        """Return the verdicts judged under this cache key, oldest first."""
        return self._reader.known_evaluations(cache_key)

    def close(self) -> None:
        """Store pending appends, write snapshots and HEAD, checkpoint, unlock. Closing twice is harmless.

        Raises:
            StorageFailed, StorageFull: the last writes failed; acknowledged events are safe all the same.
        """
        if self._closed:
            return
        self._closed = True
        self._writer.stop()
        self._reader.close()
        try:
            self._settle_log()
        except BaseException:
            abandon_writer(HomeLayout(self.home), self._appender.connection)
            raise
        else:
            self._appender.connection.close()
        finally:
            self._lock.release()

    def _settle_log(self) -> None:
        try:
            with sqlite_errors():
                self._appender.save_snapshots(every=1)
                self._writer.write_anchor()
                settle_log(self._appender.connection)
        except OSError as error:
            raise StorageFailed(f"HEAD could not be written: {error}") from error
