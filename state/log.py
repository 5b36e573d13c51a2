"""`EventLog`, the writer: one per home, one connection, one thread that commits in groups.

Callers hand over an append and wait; the thread takes all that have gathered (at most `GROUP`), stores
them in one transaction, and only then answers, so what was answered is on disk. Between commits it
writes the HEAD anchor and snapshots. Reading never touches that connection: see `LogReader`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

from state.appender import Appender, Draft, Outcome, draft
from state.errors import LogClosed, StateError, StorageFailed, sqlite_errors
from state.fold import RunState
from state.head import Head, write_head
from state.home import Layout
from state.lock import HomeLock
from state.model import SYSTEM_STREAM
from state.opening import open_log
from state.reader import LogReader
from state.records import NewEvent, Recorded
from state.system import SystemState

GROUP = 256
"""Appends per commit at most."""

WAITING = 4096
"""Appends that may wait for the writer; further callers are held back."""

HEAD_EVERY_S = 1.0
"""How far the HEAD anchor may be behind, in seconds."""

_PAUSE_S = 0.001

_log = logging.getLogger(__name__)


class _Request:
    """An append in the queue; `answer` is called once, in the writer's thread."""

    __slots__ = ("draft", "future", "loop")

    def __init__(self, one: Draft, future: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self.draft = one
        self.future = future
        self.loop = loop


class EventLog:
    """The one writer of a home's log. Get it with `open`; use it as a context manager or `close` it."""

    def __init__(self, layout: Layout, lock: HomeLock, appender: Appender, reader: LogReader) -> None:
        self.home = layout.home
        self._layout = layout
        self._lock = lock
        self._appender = appender
        self._reader = reader
        self._queue: SimpleQueue[_Request | None] = SimpleQueue()
        self._closed = False
        self._anchored = 0
        self._anchored_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, home: Path, *, create: bool = True, full_check: bool = False) -> EventLog:
        """Take the home's lock and open its log, checking what was written since the last verified event.

        `full_check` re-derives the whole hash chain instead; either way `verify` does more, behind.

        Raises:
            HomeError: HomeUnreadable, HomeOnNetwork, HomeLocked (with the owner's pid), NoLog.
            LogError: LogTooNew, LogDamaged (naming the first bad row), TailLost.
            StorageFailed: the disk fails, or refuses write-ahead logging.
        """
        layout, lock, appender = open_log(home, create=create, full_check=full_check)
        try:
            return cls(layout, lock, appender, LogReader.open(home))
        except BaseException:
            appender.connection.close()
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
    ) -> tuple[Recorded, ...]:
        """Store `events` and `blobs`, all or none; durable when it returns.

        `expect` maps streams to the last run_seq that the caller saw. An append whose events are all
        stored already returns what is stored. A cancelled caller's append may still be stored.

        Raises:
            EventRefused, StaleAppend, DuplicateOutcome: and nothing was stored.
            StorageFull, StorageFailed: nothing was acknowledged; the same append may be retried.
            LogClosed: the log is closed.
        """
        one = draft(events, blobs=blobs, expect=expect)
        while self._queue.qsize() >= WAITING:  # noqa: ASYNC110 - the queue's other end is a thread
            await asyncio.sleep(_PAUSE_S)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Recorded, ...]] = loop.create_future()
        self._submit(_Request(one, future, loop))
        return await future

    def append_now(
        self,
        events: Sequence[NewEvent],
        *,
        blobs: Sequence[bytes] = (),
        expect: Mapping[str, int] | None = None,
    ) -> tuple[Recorded, ...]:
        """`append` for callers outside an event loop; it blocks until the events are durable."""
        future: Future[tuple[Recorded, ...]] = Future()
        self._submit(_Request(draft(events, blobs=blobs, expect=expect), future, None))
        return future.result()

    def _submit(self, request: _Request) -> None:
        if self._closed:
            raise LogClosed("the log is closed")
        self._queue.put(request)

    # --- what is known ---

    @property
    def head(self) -> Head:
        """The last committed event."""
        return self._appender.head

    def state(self, run: str) -> RunState:
        """Return a run's state as of its last committed event.

        Raises:
            StreamUnknown: there is no such run.
        """
        tip = self._appender.tip(run)
        if tip is not None and isinstance(tip.state, RunState):
            return tip.state
        return self._reader.state(run)

    def system(self) -> SystemState:
        """Return the system stream's state."""
        tip = self._appender.tip(SYSTEM_STREAM)
        if tip is not None and isinstance(tip.state, SystemState):
            return tip.state
        return self._reader.system()

    def run_seq(self, stream: str) -> int:
        """Return the stream's last run_seq (what `expect` wants), 0 when it has no events."""
        tip = self._appender.tip(stream)
        return tip.run_seq if tip is not None else self._reader.run_seq(stream)

    def runs(self) -> tuple[str, ...]:
        """Return the runs that have not ended, oldest first."""
        return self._reader.active_runs()

    def read(self, *, stream: str | None = None, after: int = 0, limit: int = 500) -> list[Recorded]:
        """Return committed events in log order, as `LogReader.read` does."""
        return self._reader.read(stream=stream, after=after, limit=limit)

    def get_blob(self, digest: str) -> bytes:
        """Return a blob's bytes; raises BlobMissing."""
        return self._reader.blob(digest)

    def cached_evaluation(self, cache_key: str) -> Recorded | None:
        """Return the first verdict recorded under this cache key."""
        return self._reader.cached_evaluation(cache_key)

    # --- closing ---

    def close(self) -> None:
        """Store what waits, write snapshots and HEAD, checkpoint, unlock. Closing twice is harmless.

        Raises:
            StorageFailed, StorageFull: the last writes failed; what was acknowledged is safe all the same.
        """
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._reader.close()
        try:
            with sqlite_errors():
                self._appender.save_snapshots(every=1)
                self._anchor()
                self._appender.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._appender.connection.close()
            self._lock.release()

    # --- the writer's thread ---

    def _run(self) -> None:
        while True:
            group, last = self._gather()
            if group:
                self._commit(group)
            if last:
                break
            self._housekeep()
        self._refuse_rest()

    def _gather(self) -> tuple[list[_Request], bool]:
        """Wait for an append, or for HEAD's time; return all that have gathered, and whether to stop."""
        group: list[_Request] = []
        behind = self._anchored != self._appender.head.seq
        with contextlib.suppress(Empty):
            request = self._queue.get(timeout=HEAD_EVERY_S if behind else None)
            while request is not None:
                group.append(request)
                if len(group) == GROUP:
                    return group, False
                request = self._queue.get_nowait()
            return group, True
        return group, False

    def _commit(self, group: list[_Request]) -> None:
        try:
            outcomes: Sequence[Outcome] = self._appender.append([request.draft for request in group])
        except Exception as error:  # noqa: BLE001 - the thread must live, and every caller must hear
            _log.exception("append failed")
            outcomes = [StorageFailed(f"the append failed: {error!r}")] * len(group)
        _answer(group, outcomes)

    def _housekeep(self) -> None:
        try:
            self._appender.save_snapshots()
            if time.monotonic() - self._anchored_at >= HEAD_EVERY_S:
                self._anchor()
        except Exception:  # noqa: BLE001 - neither is needed for what was acknowledged
            _log.exception("snapshot or HEAD could not be written; both are retried")
            self._anchored_at = time.monotonic()

    def _anchor(self) -> None:
        head = self._appender.head
        if head.seq != self._anchored or not self._layout.head.exists():
            write_head(self._layout.head, head)
        self._anchored, self._anchored_at = head.seq, time.monotonic()

    def _refuse_rest(self) -> None:
        rest: list[_Request] = []
        with contextlib.suppress(Empty):
            while True:
                request = self._queue.get_nowait()
                rest += [] if request is None else [request]
        _answer(rest, [LogClosed("the log was closed")] * len(rest))


def _answer(group: Sequence[_Request], outcomes: Sequence[Outcome]) -> None:
    """Resolve the callers' futures: a loop's in one call of that loop, others at once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Any, Outcome]]] = {}
    for request, outcome in zip(group, outcomes, strict=True):
        if request.loop is None:
            _resolve([(request.future, outcome)])
        else:
            by_loop.setdefault(request.loop, []).append((request.future, outcome))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(partial(_resolve, answers))
        except RuntimeError:
            _log.warning("%d appends were stored after their event loop had closed", len(answers))


def _resolve(answers: Sequence[tuple[Any, Outcome]]) -> None:
    for future, outcome in answers:
        if future.done():
            continue
        if isinstance(outcome, StateError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
