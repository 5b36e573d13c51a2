"""Loads the states of streams, from the newest usable snapshot plus the events after it.

A snapshot is a cache. It is used only if its fold version is current, its bytes match their digest, and it
names the hash of the event at which it was taken. Deleting all snapshots changes nothing but the time taken.
"""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from state import stream_fold
from state.chain import GENESIS
from state.crash import crash_point
from state.errors import LogDamaged
from state.events import Event
from state.fold import FOLD_VERSION, IllegalEvent, RunState
from state.json_bounds import inflate_json
from state.model import SYSTEM_STREAM, dump_json
from state.queries import Segment, lineage, lineage_rows, link_at
from state.records import EventRow, RowParser
from state.stream_fold import StreamState
from state.system import SystemState
from state.upcast import decode_event

SNAPSHOT_EVERY = 1000
"""Events of a run between two snapshots."""

SYSTEM_SNAPSHOT_EVERY = 100
"""The same for the system stream: its state is small, and each reader folds the events after a snapshot."""

HASH_EVERY = 256
"""Events of a stream between two recorded state hashes, besides those at milestones."""

MAX_STATE_BYTES = 64 << 20
MAX_STRUCTURE_BYTES = 16 << 20
"""The most JSON of a state, and of it beside texts: a run's has a few MiB. A larger snapshot is not used."""

_MILESTONES = frozenset({"RoundCompleted", "RunCompleted"})

_log = logging.getLogger(__name__)


class Tip(NamedTuple):
    """The end of a stream: its last run_seq and that event's hash, the folded state, its newest snapshot."""

    stream: str
    run_seq: int
    hash: bytes
    state: StreamState | None
    saved: int = 0

    @property
    def has_ended(self) -> bool:
        return isinstance(self.state, RunState) and self.state.has_ended


class StoredSnapshot(NamedTuple):
    """A stored snapshot, without its fold version."""

    stream: str
    run_seq: int
    head: bytes
    digest: bytes
    data: bytes


_parse_snapshot = RowParser(StoredSnapshot)

_NEWEST_QUERY = (
    "SELECT stream, run_seq, head, digest, data FROM snapshot "
    "WHERE stream = ? AND run_seq <= ? AND fold = ? ORDER BY run_seq DESC"
)


class TipCache:
    """Tips in memory: those of live streams, and the last `keep` of ended runs."""

    def __init__(self, keep: int = 8) -> None:
        self._tips: dict[str, Tip] = {}
        self._ended: dict[str, None] = {}
        self._keep = keep

    def get(self, stream: str) -> Tip | None:
        return self._tips.get(stream)

    def put(self, tip: Tip) -> None:
        """Store a tip; drop the oldest one of an ended run if there are too many."""
        self._tips[tip.stream] = tip
        if tip.has_ended:
            self._ended.pop(tip.stream, None)
            self._ended[tip.stream] = None
            if len(self._ended) > self._keep:
                oldest = next(iter(self._ended))
                del self._ended[oldest], self._tips[oldest]

    def __iter__(self) -> Iterator[Tip]:
        return iter(self._tips.values())


def snapshot_interval(stream: str) -> int:
    """Return how many events of a stream are between two snapshots."""
    return SYSTEM_SNAPSHOT_EVERY if stream == SYSTEM_STREAM else SNAPSHOT_EVERY


def should_hash_state(type_: str, run_seq: int) -> bool:
    """Return whether the log records the state's hash on this row."""
    return type_ in _MILESTONES or run_seq % HASH_EVERY == 0


def save_snapshot(connection: sqlite3.Connection, tip: Tip) -> Tip:
    """Store a snapshot of a stream in the current transaction; return the tip that knows of it."""
    assert tip.state is not None
    data = zlib.compress(dump_json(tip.state), 1)
    connection.execute("DELETE FROM snapshot WHERE stream = ? AND fold <> ?", (tip.stream, FOLD_VERSION))
    store_snapshot(connection, StoredSnapshot(tip.stream, tip.run_seq, tip.hash, sha256(data).digest(), data))
    crash_point("snapshot.before_commit")
    return tip._replace(saved=tip.run_seq)


def store_snapshot(connection: sqlite3.Connection, saved: StoredSnapshot) -> None:
    """Store a ready snapshot of the current fold version."""
    stream, run_seq, *rest = saved
    connection.execute(
        "INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?, ?, ?, ?)", (stream, run_seq, FOLD_VERSION, *rest)
    )


def load_tip(
    connection: sqlite3.Connection, stream: str, *, upto: int | None = None, snapshots: bool = True
) -> Tip | None:
    """Return a stream's tip, or its tip at run_seq `upto`; None if there is no such event.

    Raises:
        LogTooNew, LogDamaged: an event on the way cannot be read, or cannot follow.
    """
    segments = lineage(connection, stream)
    if not segments:
        return None
    saved = _load_newest(connection, segments, upto) if snapshots else None
    tip = Tip(stream, 0, GENESIS, None) if saved is None else saved._replace(stream=stream)
    for row in lineage_rows(connection, segments, after=tip.run_seq, upto=upto):
        tip = tip._replace(run_seq=row.run_seq, hash=row.hash, state=fold_row(tip.state, row))
    return tip if upto in (None, tip.run_seq) else None


def fold_row(state: StreamState | None, row: EventRow, event: Event | None = None) -> StreamState:
    """Fold a stored row; `event` is its decoded event, if the caller has it.

    Raises:
        LogDamaged: the event cannot follow, so it is not what was recorded.
    """
    event = event or decode_event(row)
    try:
        return stream_fold.fold_event(row.stream, state, event)
    except IllegalEvent as error:
        what = f"cannot follow the events before it: {error}"
        raise LogDamaged(what, seq=row.seq, stream=row.stream, run_seq=row.run_seq) from error


def _load_newest(connection: sqlite3.Connection, segments: Sequence[Segment], upto: int | None) -> Tip | None:
    limit = 2**63 - 1 if upto is None else upto
    for segment in reversed(segments):
        rows = connection.execute(_NEWEST_QUERY, (segment.stream, min(segment.upto, limit), FOLD_VERSION))
        for row in rows:
            try:
                return restore_tip(connection, _parse_snapshot(row))
            except (ValueError, LogDamaged) as error:
                _log.warning("snapshot of %s@%s is ignored: %s", row[0], row[1], error)
    return None


def restore_tip(connection: sqlite3.Connection, saved: StoredSnapshot) -> Tip:
    """Return the tip that a stored snapshot describes.

    Raises:
        ValueError: it is not what was written, or belongs to another history.
    """
    if sha256(saved.data).digest() != saved.digest:
        raise ValueError("its bytes do not match their digest")
    if link_at(connection, saved.stream, saved.run_seq) != (saved.run_seq, saved.head):
        raise ValueError("it was taken at another event")
    model: Any = SystemState if saved.stream == SYSTEM_STREAM else RunState
    try:
        state = model.model_validate_json(inflate_json(saved.data, MAX_STATE_BYTES, MAX_STRUCTURE_BYTES))
    except ValueError as error:
        raise ValueError(f"its state cannot be read: {error}") from error
    return Tip(saved.stream, saved.run_seq, saved.head, state, saved.run_seq)


def snapshot_keys(connection: sqlite3.Connection) -> set[tuple[str, int]]:
    """Return (stream, run_seq) of the snapshots that the current fold can use."""
    rows = connection.execute("SELECT stream, run_seq FROM snapshot WHERE fold = ?", (FOLD_VERSION,))
    return {(stream, run_seq) for stream, run_seq in rows}


def snapshot_at(connection: sqlite3.Connection, stream: str, run_seq: int) -> StoredSnapshot | None:
    """Return the snapshot of a stream at an event, or None.

    Raises:
        LogDamaged: the stored row is no snapshot.
    """
    row = connection.execute(_NEWEST_QUERY, (stream, run_seq, FOLD_VERSION)).fetchone()
    return _parse_snapshot(row) if row is not None and row[1] == run_seq else None
