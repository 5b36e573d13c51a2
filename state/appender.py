"""The core of the log writer: it stores a group of appends in one transaction.

All checks of an append run before the database is touched: an `_AppendPlan` links, folds and projects the
group's events on top of the committed tips, and drops the appends that fail. The rest is written at once.
Tips move only after COMMIT, so a failed commit leaves no trace.

An append that fails is first looked up by its idempotency keys: repeating a stored append returns what is
stored.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from state import blobs, projections, queries, schema, snapshots, stream_fold
from state.blobs import StoredBlob, pack_blob
from state.chain import GENESIS, row_hash
from state.crash import crash_point
from state.errors import (
    AppendError,
    DuplicateOutcome,
    EventRefused,
    StaleAppend,
    StateError,
    StorageBusy,
    StorageFailed,
    TailLost,
    to_state_error,
)
from state.events import Event, RunForked, idempotency_key
from state.fold import FOLD_VERSION
from state.fold_cache import FoldCache
from state.head import Head
from state.model import dump_json
from state.records import EventRow, NewEvent, RecordedEvent, to_recorded_event
from state.snapshots import Tip, TipCache
from state.spend import ReadModelChange
from state.upcast import decode_event

_STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_INSERT = f"INSERT INTO event VALUES ({', '.join('?' * len(EventRow._fields))})"  # noqa: S608 - marks only
_log = logging.getLogger(__name__)


class PendingEvent(NamedTuple):
    """One event of an append, serialised in the caller's thread."""

    stream: str
    event: Event
    type: str
    sv: int
    cause: int | None
    idem: str | None
    payload: str
    at_us: int | None


class PendingAppend(NamedTuple):
    """One append: all of it is stored, or none of it."""

    lines: tuple[PendingEvent, ...]
    blobs: tuple[StoredBlob, ...]
    expect: Mapping[str, int]


AppendOutcome = tuple[RecordedEvent, ...] | StateError


def prepare_append(
    events: Sequence[NewEvent], *, blobs: Sequence[bytes] = (), expect: Mapping[str, int] | None = None
) -> PendingAppend:
    """Serialise an append.

    Raises:
        EventRefused: there are no events, a stream name is bad, or JSON cannot represent an event.
        DuplicateOutcome: two of the events have the same idempotency key.
    """
    if not events:
        raise EventRefused("an append needs at least one event")
    lines = tuple(map(_prepare_event, events))
    if len(lines) > 1:
        _refuse_duplicate_keys(lines)
    return PendingAppend(lines, tuple(map(pack_blob, blobs)), expect or {})


def _refuse_duplicate_keys(lines: Sequence[PendingEvent]) -> None:
    seen: set[tuple[str, str]] = set()
    for line in lines:
        if line.idem is not None and (line.stream, line.idem) in seen:
            raise DuplicateOutcome(line.stream, line.idem, None)
        seen.add((line.stream, line.idem or ""))


def _prepare_event(new: NewEvent) -> PendingEvent:
    event = new.event
    if _STREAM.fullmatch(new.stream) is None:
        raise EventRefused(f"{new.stream!r} is not a stream: letters, digits, '.', '_', '-', at most 128")
    try:
        payload = dump_json(event).decode()
    except ValueError as error:
        raise EventRefused(
            f"{new.stream}: {type(event).__name__} cannot be written as JSON: {error}"
        ) from error
    return PendingEvent(
        new.stream, event, type(event).__name__, event.version, new.cause, idempotency_key(event), payload,
        new.at_us,
    )  # fmt: skip


class _AppendPlan:
    """A group of appends on top of the committed log, not written yet."""

    __slots__ = ("blobs", "changes", "log_hash", "now_us", "rows", "seq", "streams", "tips")

    def __init__(self, head: Head) -> None:
        self.now_us = time.time_ns() // 1000
        self.seq = head.seq
        self.log_hash = bytes.fromhex(head.hash)
        self.tips: dict[str, Tip] = {}
        self.streams: list[tuple[object, ...]] = []
        self.rows: list[EventRow] = []
        self.changes: list[ReadModelChange] = []
        self.blobs: list[StoredBlob] = []

    def savepoint(self) -> tuple[int, int, int, int, bytes, dict[str, Tip]]:
        """Return the plan's current position, for `roll_back_to`."""
        return (
            len(self.streams), len(self.rows), len(self.changes), self.seq, self.log_hash, self.tips.copy(),
        )  # fmt: skip

    def roll_back_to(self, mark: tuple[int, int, int, int, bytes, dict[str, Tip]]) -> None:
        """Go back to a savepoint, because an append failed half-way."""
        streams, rows, changes, self.seq, self.log_hash, self.tips = mark
        del self.streams[streams:], self.rows[rows:], self.changes[changes:]


class Appender:
    """Owns the read-write connection; used from one thread at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._path = path
        self._suspect = False
        self.folded = FoldCache()
        self._load_head()

    def _load_head(self) -> None:
        self.head = queries.log_head(self.connection)
        self._tips = TipCache()
        self._kinds = set(self.connection.execute("SELECT type, sv FROM kind"))

    def cached_tip(self, stream: str) -> Tip | None:
        """Return the committed tip of a stream if it is in memory; safe from any thread."""
        return self._tips.get(stream)

    def append(self, drafts: Sequence[PendingAppend]) -> list[AppendOutcome]:
        """Store a group of appends; return for each what was recorded, or its own error."""
        try:
            if self._suspect:
                self._reopen_log()
            return self._append_group(drafts)
        except sqlite3.Error as error:
            failure = self._storage_error(error)
        if isinstance(failure, StorageBusy):
            return [failure] * len(drafts)
        if len(drafts) == 1:
            return [self._resolve_commit_failure(failure, drafts[0])]
        return [outcome for one in drafts for outcome in self.append([one])]

    def _append_group(self, drafts: Sequence[PendingAppend]) -> list[AppendOutcome]:
        plan = _AppendPlan(self.head)
        outcomes = [self._apply(plan, one) for one in drafts]
        if plan.rows:
            self._write_plan(plan)
        return [
            self._resolve_failure(one, outcome) if isinstance(outcome, AppendError) else outcome
            for one, outcome in zip(drafts, outcomes, strict=True)
        ]

    # --- laying out ---

    def _apply(self, plan: _AppendPlan, one: PendingAppend) -> AppendOutcome:
        """Add one append to the plan; if it fails, restore the plan and return the error."""
        before = plan.savepoint()
        try:
            if one.expect:
                self._check_expected(plan, one.expect)
            items = tuple([self._place_event(plan, line) for line in one.lines])
            if one.blobs:
                plan.blobs += one.blobs
        except StateError as error:
            plan.roll_back_to(before)
            return error
        except Exception as error:  # noqa: BLE001 - no event of one caller may fail its neighbours
            plan.roll_back_to(before)
            streams = ", ".join({line.stream for line in one.lines})
            refused = EventRefused(f"{streams}: {error}")
            refused.__cause__ = error
            return refused
        return items

    def _check_expected(self, plan: _AppendPlan, expect: Mapping[str, int]) -> None:
        for stream, expected in expect.items():
            actual = self._planned_tip(plan, stream).run_seq
            if actual != expected:
                raise StaleAppend(stream, expected, actual)

    def _place_event(self, plan: _AppendPlan, line: PendingEvent) -> RecordedEvent:
        stream, event, type_, sv, cause, idem, payload, at_us = line
        tip = self._planned_tip(plan, stream)
        if tip.run_seq == 0:
            tip = self._begin_stream(plan, line)
        state = stream_fold.fold_event(stream, tip.state, event)
        run_seq, seq = tip.run_seq + 1, plan.seq + 1
        hashed = snapshots.should_hash_state(type_, run_seq)
        content = (
            seq, stream, run_seq, type_, sv, at_us or plan.now_us, cause, idem, payload, tip.hash,
            plan.log_hash,
            stream_fold.state_hash(state) if hashed else None, FOLD_VERSION if hashed else None,
        )  # fmt: skip
        row = EventRow._make((*content, row_hash(content)))
        item = to_recorded_event(row, event)
        plan.rows.append(row)
        plan.changes += projections.event_changes(item)
        plan.tips[stream] = Tip(stream, run_seq, row.hash, state, tip.saved)
        plan.seq, plan.log_hash = seq, row.hash
        return item

    def _planned_tip(self, plan: _AppendPlan, stream: str) -> Tip:
        found = plan.tips.get(stream) or self._tips.get(stream)
        if found is not None:
            return found
        stored = self.folded.load_tip(self.connection, stream)
        if stored is None:
            return Tip(stream, 0, GENESIS, None)
        self._tips.put(stored)
        return stored

    def _begin_stream(self, plan: _AppendPlan, line: PendingEvent) -> Tip:
        event = line.event
        if not isinstance(event, RunForked):
            plan.streams.append((line.stream, None, None, None))
            return Tip(line.stream, 0, GENESIS, None)
        parent = snapshots.load_tip(self.connection, event.parent, upto=event.parent_seq)
        if parent is None or parent.hash.hex() != event.parent_hash:
            raise EventRefused(
                f"{line.stream}: {event.parent}@{event.parent_seq} is not the event to fork from"
            )
        plan.streams.append((line.stream, event.parent, event.parent_seq, parent.hash))
        return parent._replace(stream=line.stream, saved=0)

    # --- writing ---

    def _write_plan(self, plan: _AppendPlan) -> None:
        connection = self.connection
        kinds = {(row.type, row.sv) for row in plan.rows} - self._kinds
        last = plan.rows[-1]
        with schema.transaction(connection):
            if plan.streams:
                connection.executemany("INSERT INTO stream VALUES (?, ?, ?, ?)", plan.streams)
            if plan.blobs:
                blobs.store_blobs(connection, plan.blobs)
            if kinds:
                connection.executemany("INSERT INTO kind VALUES (?, ?)", kinds)
            connection.executemany(_INSERT, plan.rows)
            projections.write_changes(connection, plan.changes)
            crash_point("log.before_commit")
        crash_point("log.after_commit")
        self._kinds |= kinds
        self._advance_tips(plan.tips, Head(last.seq, last.stream, last.run_seq, last.hash.hex()))

    def _advance_tips(self, tips: dict[str, Tip], head: Head) -> None:
        for tip in tips.values():
            self._tips.put(tip)
            self.folded.forget_stream(tip.stream)
        self.head = head

    def change_file(self, rename: Callable[[], None]) -> None:
        """Close the log's file while `rename` puts another one in its place, and open what is there then.

        That has the same events, less those of some ended runs. The WAL of the old one must be empty.

        Raises:
            OSError, sqlite3.Error: the files could not be changed.
        """
        self.connection.close()
        try:
            rename()
        finally:
            self.connection = schema.open_writer(self._path)
            self._load_head()

    def save_snapshots(self, *, every: int | None = None) -> int:
        """Snapshot ended streams, and those `every` or more events past their last one; return how many."""
        due = [
            tip
            for tip in self._tips
            if tip.run_seq - tip.saved >= (every or snapshots.snapshot_interval(tip.stream))
            or (tip.has_ended and tip.saved < tip.run_seq)
        ]
        if not due:
            return 0
        with schema.transaction(self.connection):
            saved = [snapshots.save_snapshot(self.connection, tip) for tip in due]
            schema.set_meta(self.connection, "verified", f"{self.head.seq} {self.head.hash}")
        crash_point("snapshot.after_commit")
        for tip in saved:
            self._tips.put(tip)
        return len(saved)

    # --- answering for what was not stored ---

    def _resolve_failure(self, one: PendingAppend, error: StateError) -> AppendOutcome:
        try:
            return self._find_stored(one) or error
        except StateError as worse:
            return worse
        except sqlite3.Error as broken:
            return self._storage_error(broken)

    def _find_stored(self, one: PendingAppend) -> tuple[RecordedEvent, ...] | None:
        """Return what an equal earlier append recorded, or None if nothing of this one is stored.

        Raises:
            DuplicateOutcome: other content is stored under one of its keys.
        """
        found = [
            line.idem and queries.row_by_key(self.connection, line.stream, line.idem) for line in one.lines
        ]
        first = next((index for index, row in enumerate(found) if row), None)
        if first is None:
            return None
        known = found[first]
        assert isinstance(known, EventRow)
        rows = [
            row or queries.row_at(self.connection, known.seq - first + index)
            for index, row in enumerate(found)
        ]
        return tuple(_match_stored(line, row, known) for line, row in zip(one.lines, rows, strict=True))

    def _resolve_commit_failure(self, failure: StateError, one: PendingAppend) -> AppendOutcome:
        """Answer an append whose commit failed. If it is stored after all, reload the tips from the disk."""
        answer = self._resolve_failure(one, failure)
        if self._suspect and not isinstance(answer, StateError):
            try:
                self._reopen_log()
            except (StateError, sqlite3.Error):
                return failure
        return answer

    def _storage_error(self, error: sqlite3.Error) -> StateError:
        if isinstance(error, sqlite3.IntegrityError):
            return StorageFailed(f"the database refused the events: {error}")
        mapped = to_state_error(error)
        self._suspect = self._suspect or isinstance(mapped, StorageFailed)
        return mapped

    def _reopen_log(self) -> None:
        """Open a new connection after an I/O error: only a read shows what a failed fsync left."""
        before = self.head
        self.connection.close()
        self.connection = schema.open_writer(self._path)
        self._load_head()
        found = self.head
        if found.seq < before.seq:
            self.head = before  # keep the last acknowledged event for the next try
            raise TailLost(before.seq, found.seq)
        self._suspect = False
        _log.warning("log reopened after an I/O error, at event %d (was %d)", self.head.seq, before.seq)


def _match_stored(line: PendingEvent, row: EventRow | None, known: EventRow) -> RecordedEvent:
    if row is not None and (row.stream, row.type) == (line.stream, line.type):
        event = line.event if row.payload == line.payload else decode_event(row)
        if event == line.event:
            return to_recorded_event(row, event)
    raise DuplicateOutcome(line.stream, line.idem or str(known.idem), (row or known).seq)
