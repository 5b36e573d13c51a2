"""Imports an archive: appends its run, and the runs that it continues, to a log as new events.

Order, content and time stay the same; numbers and hashes are those of the new log. Recorded state hashes are
compared with the state that the events fold to. A run that had not ended is paused, because nobody asked to
pay for it here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TypeVar

from state import blobs, queries, schema, snapshots
from state.appender import Appender, prepare_append
from state.archive import RunArchive, open_archive, read_archive
from state.blobs import StoredBlob
from state.errors import BadArchive, RunExists, StateError
from state.events import Event, LogRewritten, RunCancelled, RunForked, RunPaused
from state.fold import FOLD_VERSION, RunState
from state.home import HomeLayout
from state.log_rebuild import (
    RebuildResult,
    append_to_draft,
    copy_database,
    lock_home,
    rebuild_log,
    reopen_and_settle,
)
from state.model import RunStatus
from state.opening import refresh_read_models
from state.queries import Segment
from state.readonly import ReadOnlyConnection
from state.records import EventRow, NewEvent, ProgressCallback, RecordedEvent
from state.upcast import decode_event

_BATCH = 500
_BATCH_BYTES = 16 << 20

_Item = TypeVar("_Item")


def import_archive(home: Path, path: Path, *, progress: ProgressCallback | None = None) -> RebuildResult:
    """Append the run in the archive `path` to the log of `home`, all or nothing; no process may own the home.

    If the log already has a run that the archived run continues, that one is used. Of others, only the part
    that is continued is imported, and then cancelled.

    Raises:
        HomeError, LogError: the log cannot be used.
        BadArchive: the archive is damaged, or does not fold to the recorded states.
        RunExists: the log already has such a run, or another history of one that it continues.
        StorageFull, StorageFailed: the new file could not be written; the log is unchanged.
    """
    found = read_archive(path)
    with lock_home(home, create=True) as layout:

        def build(target: Path) -> LogRewritten:
            _copy_log(layout, target)
            with closing(schema.open_writer(target)) as connection:
                schema.migrate_schema(connection)
                refresh_read_models(connection)
                return _ArchiveImport(target, connection, found).append_archive()

        return rebuild_log(layout, build, keep=False, progress=progress)


def _copy_log(layout: HomeLayout, target: Path) -> None:
    """Copy the existing log, checked as its owner would; without one, the import creates a new log."""
    if not layout.database.exists():
        return
    reopen_and_settle(layout)
    handle = ReadOnlyConnection(layout)
    try:
        copy_database(handle.connection(), target)
    finally:
        handle.close()


class _ArchiveImport:
    """Appends one archive to a log that no other process sees yet."""

    def __init__(self, path: Path, connection: sqlite3.Connection, archive: RunArchive) -> None:
        self._connection = connection
        self._appender = Appender(path, connection)
        self._archive = archive
        self._numbers: dict[int, int] = {}  # an event's number in the archive's log -> in this one

    def append_archive(self) -> LogRewritten:
        run = self._archive.manifest.run
        if queries.lineage(self._connection, run):
            raise RunExists(f"{run} is in this log already")
        self._store_blobs()
        _, content = open_archive(self._archive.path)
        rows = (line for line in content if isinstance(line, EventRow))
        for stream, part in groupby(rows, key=lambda row: row.stream):
            if queries.lineage(self._connection, stream):
                self._compare_history(stream, part)
            else:
                self._append_rows(part)
                self._pause_or_cancel(stream)
        self._appender.save_snapshots()
        head = self._archive.head.hex()
        detail = f"{run} from {self._archive.path.name}, SHA-256 {self._archive.sha256}, head {head}"
        return LogRewritten(
            verb="import", detail=detail, runs={run: f"imported, {self._archive.events} events"}
        )

    def _store_blobs(self) -> None:
        _, content = open_archive(self._archive.path)
        stored = (line for line in content if isinstance(line, StoredBlob))
        for batch in _batches(stored, lambda blob: len(blob.data)):
            with schema.transaction(self._connection):
                blobs.store_blobs(self._connection, batch)

    def _compare_history(self, stream: str, rows: Iterable[EventRow]) -> None:
        """Refuse to attach a run to a history other than the one it continues."""
        part = next(one for one in self._archive.manifest.parts if one.stream == stream)
        here = queries.segment_rows(self._connection, Segment(stream, part.after, part.upto))
        parent = _parent_stream([one.stream for one in queries.lineage(self._connection, stream)], stream)
        for row, known in zip_longest(rows, here):
            if (
                row is None
                or known is None
                or _comparable_content(known, parent) != _comparable_content(row, self._parent_of(stream))
            ):
                what = f"{stream}, which {self._archive.manifest.run} continues, has another history here"
                raise RunExists(what)
            self._numbers[row.seq] = known.seq

    def _append_rows(self, rows: Iterable[EventRow]) -> None:
        for batch in _batches(rows, lambda row: len(row.payload)):
            (outcome,) = self._appender.append([prepare_append([self._to_new_event(row) for row in batch])])
            if isinstance(outcome, StateError):
                raise BadArchive(self._archive.path, str(outcome)) from outcome
            for row, item in zip(batch, outcome, strict=True):
                self._numbers[row.seq] = item.seq
                self._check_state(row, item)

    def _to_new_event(self, row: EventRow) -> NewEvent:
        event: Event = decode_event(row)
        if isinstance(event, RunForked):
            event = self._attach_fork(row.stream, event)
        return NewEvent(row.stream, event, self._numbers.get(row.cause or 0), row.ts_us)

    def _attach_fork(self, stream: str, event: RunForked) -> RunForked:
        """Return the event that begins a fork here; without its parent, it continues the ancestor."""
        parent = self._parent_of(stream)
        parent_hash = self._hash_at(parent, event.parent_seq)
        named = queries.link_at(self._connection, event.parent, event.parent_seq)
        if named is not None and named[1].hex() == parent_hash:
            parent = event.parent
        return event.model_copy(update={"parent": parent, "parent_hash": parent_hash})

    def _parent_of(self, stream: str) -> str:
        return _parent_stream([part.stream for part in self._archive.manifest.parts], stream)

    def _hash_at(self, stream: str, run_seq: int) -> str:
        link = queries.link_at(self._connection, stream, run_seq)
        if link is None:
            raise BadArchive(
                self._archive.path, f"{stream}@{run_seq} is missing from it, though an event continues it"
            )
        return link[1].hex()

    def _check_state(self, row: EventRow, item: RecordedEvent) -> None:
        if row.state_hash is None or row.fold != FOLD_VERSION or row.state_hash.hex() == item.state_hash:
            return
        what = f"{row.stream}@{row.run_seq} folds to another state than it did"
        raise BadArchive(self._archive.path, what)

    def _pause_or_cancel(self, stream: str) -> None:
        """Pause the run, and cancel the imported parts of the runs that it continues."""
        tip = snapshots.load_tip(self._connection, stream)
        state = tip.state if tip else None
        if not isinstance(state, RunState) or state.has_ended:
            return
        run = self._archive.manifest.run
        if stream != run:
            reason = f"imported as far as {run} continues it"
            append_to_draft(self._appender, [NewEvent(stream, RunCancelled(reason=reason))])
        elif state.status is not RunStatus.PAUSED:
            append_to_draft(self._appender, [NewEvent(stream, RunPaused(reason="imported"))])


def _batches(items: Iterable[_Item], size_of: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Yield the items in lists of bounded length and size."""
    batch: list[_Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if len(batch) == _BATCH or size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _parent_stream(lies_in: list[str], stream: str) -> str:
    """Return the stream that holds the event which `stream` continues.

    This is the stream before it in its history. It is not always the forked one: a fork at an event that its
    parent had from an ancestor continues that ancestor.
    """
    place = lies_in.index(stream)
    return lies_in[place - 1] if place else ""


def _comparable_content(row: EventRow, parent: str) -> tuple[int, Event]:
    """Return what must be the same in two logs if a run may continue either."""
    event = decode_event(row)
    if isinstance(event, RunForked):
        event = event.model_copy(update={"parent": parent, "parent_hash": "0" * 64})
    return row.run_seq, event
