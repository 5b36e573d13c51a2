"""The writer thread: it collects waiting appends, commits them together, then answers their callers.

Between commits it writes the HEAD anchor and snapshots. It runs until it is stopped: an error goes only to
the callers whose appends it concerns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue

from state.appender import Appender, AppendOutcome, PendingAppend
from state.errors import LogClosed, StateError, StorageFailed
from state.head import write_head
from state.progress_counter import ProgressCounter
from state.records import RecordedEvent

MAX_GROUP = 256
"""The most appends in one commit."""

HEAD_EVERY_S = 1.0
"""How far the HEAD anchor may lag behind the log, in seconds."""

_log = logging.getLogger(__name__)

AnyFuture = asyncio.Future[tuple[RecordedEvent, ...]] | Future[tuple[RecordedEvent, ...]]
FutureOutcome = tuple[AnyFuture, AppendOutcome]


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
    """Runs an `Appender` in its own thread, from construction to `stop`."""

    def __init__(self, appender: Appender, head_path: Path) -> None:
        self._appender = appender
        self._head_path = head_path
        self.turns = ProgressCounter()
        self._queue: SimpleQueue[AppendRequest | None] = SimpleQueue()  # None: stop
        self._mutex = threading.Lock()
        self._stopped = False
        self._anchored = -1
        self._anchored_at = time.monotonic()
        self._thread = threading.Thread(target=self._run_loop, name="event-log", daemon=True)
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

    def stop(self) -> None:
        """Store what is queued and end the thread. The appender then belongs to the caller again."""
        with self._mutex:
            self._stopped = True
            self._queue.put(None)
        self._thread.join()

    def write_anchor(self) -> None:
        """Write HEAD if the log grew since it was last written."""
        head = self._appender.head
        if head.seq != self._anchored:
            write_head(self._head_path, head)
        self._anchored, self._anchored_at = head.seq, time.monotonic()

    def _run_loop(self) -> None:
        last = False
        while not last:
            group, last = self._gather_requests()
            with self.turns:
                if group:
                    self._commit_group(group)
                self._save_periodically()

    def _gather_requests(self) -> tuple[list[AppendRequest], bool]:
        """Wait for an append, or until HEAD is due; return the queued appends, and whether to stop."""
        group: list[AppendRequest] = []
        behind = self._anchored != self._appender.head.seq
        with contextlib.suppress(Empty):
            request = self._queue.get(timeout=HEAD_EVERY_S if behind else None)
            while request is not None:
                group.append(request)
                if len(group) == MAX_GROUP:
                    return group, False
                request = self._queue.get_nowait()
            return group, True
        return group, False

    def _commit_group(self, group: list[AppendRequest]) -> None:
        try:
            outcomes: Sequence[AppendOutcome] = self._appender.append([request.draft for request in group])
        except Exception as error:  # noqa: BLE001 - the thread must live, and every caller must hear
            _log.exception("append failed")
            outcomes = [StorageFailed(f"the append failed: {error!r}")] * len(group)
        _answer_callers(group, outcomes)

    def _save_periodically(self) -> None:
        try:
            self._appender.save_snapshots()
            if time.monotonic() - self._anchored_at >= HEAD_EVERY_S:
                self.write_anchor()
        except Exception:  # noqa: BLE001 - neither is needed for what was acknowledged
            _log.exception("snapshot or HEAD could not be written; both are retried")
            self._anchored_at = time.monotonic()


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
