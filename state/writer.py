"""The writer thread: it collects waiting appends, commits them together, then answers their callers.

What one event loop appends in one turn is committed in its thread, on a quick disk: two hand-overs between
threads would take as long as the commit.

Before it answers it records the last event in HEAD, so that a lost event is noticed however the process
ends. Between commits it syncs HEAD and writes snapshots. It runs until it is stopped: an error goes only to
the callers whose appends it concerns. While another process holds a lock on the log, appends wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from state.appender import Appender, AppendOutcome, PendingAppend
from state.errors import LogClosed, StateError, StorageBusy, StorageFailed, is_busy
from state.head import HeadFile
from state.home import HomeLayout
from state.progress_counter import ProgressCounter
from state.records import RecordedEvent

MAX_GROUP = 256
"""The most appends in one commit."""

HEAD_EVERY_S = 1.0
"""How far HEAD on the disk may lag behind the log after a power cut, in seconds."""

LONG_WAL_BYTES = 256 << 20
"""A WAL longer than this is reported: a reader keeps it from being moved into the database."""

MAX_HERE = 64
"""The most appends that an event loop's thread commits together: laying them out takes some 3 ms."""

QUICK_COMMIT_S = 0.003
"""Callers commit themselves only while that takes less than this: their event loop waits for it."""

BUSY_REST_S = 60.0
"""How long no caller commits after another process was found to hold a lock on the log."""

_log = logging.getLogger(__name__)

AnyFuture = asyncio.Future[tuple[RecordedEvent, ...]] | Future[tuple[RecordedEvent, ...]]
FutureOutcome = tuple[AnyFuture, AppendOutcome]


PROC = Path("/proc")

_WRITE_BYTES = range(120, 121)
_READ_BYTES = range(123, 128)
"""The bytes of the -shm file that a writer and readers lock (SQLite, "WAL-mode File Format", 2.3)."""

_FIELDS = 8
"""Of a line such as `1: POSIX  ADVISORY  WRITE 4711 08:01:131085 120 120`."""


def describe_writers(layout: HomeLayout) -> str:
    """Return who else holds the write lock, as `process 4711 (sqlite3)`."""
    return _describe_holders(layout.shm, _WRITE_BYTES)


def describe_readers(layout: HomeLayout) -> str:
    """Return who else reads the log at this moment."""
    return _describe_holders(layout.shm, _READ_BYTES)


def _describe_holders(path: Path, wanted: range) -> str:
    found = sorted(set(_find_holders(path, wanted)) - {os.getpid()})
    return " and ".join(map(_describe_process, found)) or "another process"


def _find_holders(path: Path, wanted: range) -> Iterator[int]:
    with suppress(OSError, ValueError):  # another system, or another format
        inode = path.stat().st_ino
        for line in (PROC / "locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if len(fields) != _FIELDS or fields[1] != "POSIX" or int(fields[5].rpartition(":")[2]) != inode:
                continue
            end = wanted.stop if fields[7] == "EOF" else int(fields[7])
            if int(fields[6]) < wanted.stop and end >= wanted.start:
                yield int(fields[4])


def _describe_process(pid: int) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return f"process {pid} ({(PROC / str(pid) / 'comm').read_text(encoding='utf-8').strip()})"
    return f"process {pid}"


class AppendRequest:
    """A queued append. Its future is resolved in `loop`, or directly if `loop` is None."""

    __slots__ = ("draft", "future", "loop")

    def __init__(
        self, draft: PendingAppend, future: AnyFuture, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.draft = draft
        self.future = future
        self.loop = loop


class LogWriter:
    """Runs an `Appender` in its own thread, from `start` to `stop`.

    `on_wait` is called in that thread when appends begin to wait for another process, with what they wait
    for, and with None when they go on.
    """

    def __init__(
        self,
        appender: Appender,
        layout: HomeLayout,
        *,
        on_wait: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._appender = appender
        self._layout = layout
        self._on_wait = on_wait
        self._head_file = HeadFile(layout.head)
        self.turns = ProgressCounter()
        self.waits_for: str | None = None
        self._queue: SimpleQueue[AppendRequest | str | None] = (
            SimpleQueue()
        )  # None: stop; a string: look around
        self._in_use = threading.Lock()  # whoever holds it uses the appender
        self._rests = False
        self._commit_s = 0.0
        self._no_caller_before = 0.0
        self._mutex = threading.Lock()
        self._stopped = False
        self._hurry = threading.Event()
        self._recorded = self._synced = -1
        self._synced_at = time.monotonic()
        self._wal_is_long = False
        self._thread = threading.Thread(target=self._run_loop, name="event-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def queue_size(self) -> int:
        """Roughly how many appends are queued."""
        return self._queue.qsize()

    def submit(self, request: AppendRequest) -> None:
        """Queue an append; raises LogClosed after `stop`."""
        with self._mutex:
            if self._stopped:
                raise LogClosed("the log is closed")
            self._queue.put(request)

    def commit_here(self, group: Sequence[AppendRequest]) -> bool:
        """Commit appends of one event loop in its thread, and answer them; False: the writer has to do it."""
        if len(group) > MAX_HERE or self._stopped or not self._queue.empty():
            return False
        if self._commit_s > QUICK_COMMIT_S:
            self._commit_s *= 0.99  # so that it is tried again
            return False
        if time.monotonic() < self._no_caller_before or not self._in_use.acquire(blocking=False):
            return False
        try:
            with self.turns:
                began = time.perf_counter()
                outcomes = self._append_group(group, self._appender.append)
                self._commit_s += 0.2 * (time.perf_counter() - began - self._commit_s)
            if isinstance(outcomes[0], StorageBusy):
                self._no_caller_before = time.monotonic() + BUSY_REST_S
                return False
        finally:
            self._in_use.release()
        if self._rests:  # it has to sync HEAD, and to save snapshots
            self._rests = False
            self._queue.put("look around")
        _resolve_futures([(one.future, outcome) for one, outcome in zip(group, outcomes, strict=True)])
        return True

    @contextlib.contextmanager
    def pause(self) -> Iterator[Appender]:
        """Let appends wait while the block uses the appender; HEAD is up to date before it, and after it."""
        with self._in_use, self.turns:
            self.sync_head()
            try:
                yield self._appender
            finally:
                self.sync_head()

    def stop(self) -> None:
        """Store what is queued and end the thread. The appender then belongs to the caller again."""
        self.stop_waiting()
        with self._mutex:
            self._stopped = True
            self._queue.put(None)
        self._thread.join()

    def stop_waiting(self) -> None:
        """From now on, let appends that find the log locked by another process fail with StorageBusy."""
        self._hurry.set()

    def pin_path(self, name: str) -> Path:
        """Return a path of a file of the home that holds wherever the home was moved."""
        return self._head_file.pinned / name

    def close(self) -> None:
        """Close what the thread had open; call this after `stop`, and after the last `sync_head`."""
        self._head_file.close()

    def sync_head(self) -> None:
        """Bring HEAD on the disk up to date."""
        head = self._appender.head
        if head.seq != self._synced:
            self._head_file.record(head, sync=True)
        self._recorded = self._synced = head.seq
        self._synced_at = time.monotonic()

    def _run_loop(self) -> None:
        last = False
        while not last:
            group, last = self._gather_requests()
            with self._in_use, self.turns:
                if group:
                    self._commit_group(group)
                self._save_periodically()

    def _gather_requests(self) -> tuple[list[AppendRequest], bool]:
        """Wait for an append, or until HEAD is due; return the queued appends, and whether to stop."""
        group: list[AppendRequest] = []
        behind = self._synced != self._appender.head.seq
        self._rests = not behind
        with contextlib.suppress(Empty):
            request = self._queue.get(timeout=HEAD_EVERY_S if behind else None)
            self._rests = False
            while request is not None:
                if isinstance(request, AppendRequest):
                    group.append(request)
                if len(group) == MAX_GROUP:
                    return group, False
                request = self._queue.get_nowait()
            return group, True
        return group, False

    def _commit_group(self, group: Sequence[AppendRequest]) -> None:
        _answer_callers(group, self._append_group(group, self._append_unlocked))

    def _append_group(
        self,
        group: Sequence[AppendRequest],
        append: Callable[[Sequence[PendingAppend]], Sequence[AppendOutcome]],
    ) -> Sequence[AppendOutcome]:
        try:
            outcomes = append([request.draft for request in group])
            self._record_head()
        except Exception as error:  # noqa: BLE001 - the thread must live, and every caller must hear
            _log.exception("append failed")
            return [StorageFailed(f"the append failed: {error!r}")] * len(group)
        return outcomes

    def _append_unlocked(self, drafts: Sequence[PendingAppend]) -> Sequence[AppendOutcome]:
        """Append. As long as another process holds a lock, try again, and say for what appends wait."""
        since = time.monotonic()
        while True:
            outcomes = self._appender.append(drafts)
            if not isinstance(outcomes[0], StorageBusy) or self._hurry.is_set():
                break
            if self.waits_for is None:
                self._report_wait(f"{describe_writers(self._layout)} holds a write lock on the log")
            self.turns.step()
        if self.waits_for is not None and not isinstance(outcomes[0], StorageBusy):
            _log.warning("the log is free again after %.0f s; appends go on", time.monotonic() - since)
            self._report_wait(None)
        return outcomes

    def _report_wait(self, what: str | None) -> None:
        self.waits_for = what
        if what is not None:
            _log.warning("appends wait: %s", what)
        self._on_wait(what)

    def _record_head(self) -> None:
        """Record the last event in HEAD, unless that fails: what is stored is acknowledged all the same."""
        head = self._appender.head
        if head.seq == self._recorded:
            return
        try:
            self._head_file.record(head, sync=False)
        except OSError as error:
            _log.warning("HEAD could not be written; that is retried: %s", error)
        else:
            self._recorded = head.seq

    def _save_periodically(self) -> None:
        try:
            self._appender.save_snapshots()
            if time.monotonic() - self._synced_at >= HEAD_EVERY_S:
                self.sync_head()
                self._report_long_wal()
        except Exception as error:  # noqa: BLE001 - neither is needed for what was acknowledged
            if not is_busy(error):
                _log.exception("snapshot or HEAD could not be written; both are retried")
            self._synced_at = time.monotonic()

    def _report_long_wal(self) -> None:
        size = self._layout.wal.stat().st_size
        if size > LONG_WAL_BYTES and not self._wal_is_long:
            text = "events.db-wal has grown to %d MiB and takes up disk space until %s ends its read"
            _log.warning(text, size >> 20, describe_readers(self._layout))
        self._wal_is_long = size > LONG_WAL_BYTES


def _answer_callers(group: Sequence[AppendRequest], outcomes: Sequence[AppendOutcome]) -> None:
    """Resolve the callers' futures: an event loop's in one call into that loop, the others directly."""
    by_loop: dict[asyncio.AbstractEventLoop, list[FutureOutcome]] = {}
    for request, outcome in zip(group, outcomes, strict=True):
        if request.loop is None:
            _resolve_futures([(request.future, outcome)])
        else:
            by_loop.setdefault(request.loop, []).append((request.future, outcome))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_futures, answers)
        except RuntimeError:
            _log.warning("%d appends were answered after their event loop had closed", len(answers))


def _resolve_futures(answers: Sequence[FutureOutcome]) -> None:
    for future, outcome in answers:
        if future.done():
            continue
        if isinstance(outcome, StateError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
