"""Replicas: continuous copies of a log elsewhere, as segments of its events, and restoring any moment of it.

A segment is a file with the rows of some events in a row, the gaps before them, and the blobs that were
stored with them. It is zlib-compressed JSON lines: a header, then the rest. Its name says which events are in
it, and the SHA-256 of its bytes. It names the hash that it continues and ends with the hash of its last row,
so segments form the log's own chain: a missing, changed or foreign one is noticed. Segments are only added. A
log that was rewritten (`restore`, `compact`, `repair`) begins another generation beside the first.

Nothing here knows where a replica lies: `ReplicaStore` is a folder of small files.
"""

from __future__ import annotations

import base64
import json
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from state import queries, schema
from state.atomic_files import atomic_write
from state.blobs import StoredBlob, parse_blob, store_blobs
from state.chain import GENESIS, ChainVerifier
from state.copying import RowCopier, find_digests
from state.errors import LogDamaged, NoLog, StreamUnknown
from state.events import LogRewritten
from state.json_bounds import inflate_json
from state.log_rebuild import RebuildResult, lock_home, rebuild_log
from state.model import digest_of
from state.queries import Gap
from state.records import EventRow, ProgressCallback, parse_row

SEGMENT_EVENTS = 2000
"""The most events in one segment."""

SEGMENT_BYTES = 4 << 20
"""About how much text of events a segment holds."""

MAX_SEGMENT_BYTES = 1 << 30
MAX_STRUCTURE_BYTES = 16 << 20
"""The most that is read of a segment, and of it beside its texts: whoever may write there may not fill us."""

_NAME = re.compile(r"(\d{12})-(\d{12})-([0-9a-f]{64})\.seg")


class ReplicaStore(Protocol):
    """A folder of small files, somewhere. Each raises OSError (or a subclass) where it cannot be reached."""

    def list_names(self) -> list[str]: ...

    def read(self, name: str, /) -> bytes: ...

    def write(self, name: str, data: bytes, /) -> None:
        """Store a file so that it survives a power cut and is never seen in part."""
        ...


class SegmentName(NamedTuple):
    """What the name of a segment says: its generation, its first and last event, and its digest."""

    generation: str
    first: int
    last: int
    digest: str

    def __str__(self) -> str:
        return f"{self.generation}-{self.first:012}-{self.last:012}-{self.digest}.seg"

    @classmethod
    def parse(cls, text: str) -> SegmentName | None:
        """Return the parts of a name; None if it is no segment's."""
        generation, _, rest = text.partition("-")
        found = _NAME.fullmatch(rest)
        if found is None or not generation.isalnum():
            return None
        return cls(generation, int(found[1]), int(found[2]), found[3])


@dataclass(frozen=True, slots=True)
class Segment:
    """The content of a segment: it continues `before`, the hash of the log's event before its first."""

    before: bytes
    rows: tuple[EventRow, ...]
    gaps: tuple[Gap, ...]
    blobs: tuple[StoredBlob, ...]
    last_blob: int
    """The rowid of the last blob that the replica has with this segment."""


# --- writing ---------------------------------------------------------------------------------------


class Replicator:
    """Copies one log to one replica, from wherever the replica is."""

    def __init__(self, store: ReplicaStore) -> None:
        self._store = store
        self._end: tuple[str, int, bytes, int] | None = None
        """Generation, last event, its hash, last blob; None: to be found out."""

    def copy_news(self, connection: sqlite3.Connection, *, most: int = 64) -> int:
        """Copy what the replica lacks, in at most `most` segments; return how many there were.

        Raises:
            OSError: the replica cannot be reached; nothing is lost, and the next call goes on.
            LogDamaged: the log or the replica cannot be read.
        """
        if self._end is None:
            self._end = find_end(self._store, connection)
        copied = 0
        while copied < most:
            generation, last, log_hash, blob = self._end
            segment = read_segment(connection, after=last, before=log_hash, after_blob=blob)
            if segment is None:
                break
            data = pack_segment(segment)
            end = segment.rows[-1]
            try:
                self._store.write(str(SegmentName(generation, last + 1, end.seq, digest_of(data))), data)
            except BaseException:
                self._end = None  # it may be there or not
                raise
            self._end = (generation, end.seq, end.hash, segment.last_blob)
            copied += 1
        return copied

    @property
    def last_copied(self) -> int:
        """The last event that the replica is known to have."""
        return self._end[1] if self._end is not None else 0


def find_end(store: ReplicaStore, connection: sqlite3.Connection) -> tuple[str, int, bytes, int]:
    """Return where a replica of this log goes on: the generation, last event, its hash and its last blob.

    A generation whose end is not in this log belongs to another history, so that a new one begins.
    """
    generations = list_generations(store)
    for generation, names in reversed(generations.items()):
        segment = unpack_segment(store.read(str(names[-1])), names[-1])
        end = segment.rows[-1]
        row = queries.row_at(connection, end.seq)
        if row is not None and row.hash == end.hash:
            return generation, end.seq, end.hash, segment.last_blob
    return f"g{len(generations) + 1}", 0, GENESIS, 0


def read_segment(
    connection: sqlite3.Connection, *, after: int, before: bytes, after_blob: int
) -> Segment | None:
    """Read the next segment from a log, in one transaction; None if there is no event after `after`."""
    connection.execute("BEGIN")
    try:
        rows: list[EventRow] = []
        size = 0
        for row in queries.log_rows(connection, after=after):
            rows.append(row)
            size += len(row.payload)
            if len(rows) == SEGMENT_EVENTS or size > SEGMENT_BYTES:
                break
        if not rows:
            return None
        is_last = queries.log_head(connection).seq == rows[-1].seq
        blobs, last_blob = _read_blobs(connection, after_blob, None if is_last else rows)
        gaps = _read_gaps(connection, after, rows[-1].seq)
        return Segment(before, tuple(rows), gaps, tuple(blobs), last_blob)
    finally:
        connection.execute("COMMIT")


def _read_blobs(
    connection: sqlite3.Connection, after: int, rows: Sequence[EventRow] | None
) -> tuple[list[StoredBlob], int]:
    """Read the blobs up to the last one that the rows name; all if `rows` is None.

    Blobs are stored in the transaction of the event that names them, so their order is that of the events.
    What only other blobs name is here, or in the next segment.
    """
    upto = queries.MAX_SEQ if rows is None else _last_named_blob(connection, rows)
    found = connection.execute(
        "SELECT rowid, * FROM blob WHERE rowid > ? AND rowid <= ? ORDER BY rowid", (after, upto)
    ).fetchall()
    return [parse_blob(columns) for _, *columns in found], found[-1][0] if found else after


def _last_named_blob(connection: sqlite3.Connection, rows: Sequence[EventRow]) -> int:
    named = {digest for row in rows for digest in find_digests(row.payload.encode())}
    query = "SELECT rowid FROM blob WHERE digest = ?"
    found = (connection.execute(query, (bytes.fromhex(digest),)).fetchone() for digest in named)
    return max((row[0] for row in found if row is not None), default=0)


def _read_gaps(connection: sqlite3.Connection, after: int, upto: int) -> tuple[Gap, ...]:
    if schema.read_pragma(connection, "user_version") < schema.WITH_GAPS:
        return ()
    found = connection.execute("SELECT * FROM gap WHERE seq > ? AND seq <= ? ORDER BY seq", (after, upto))
    return tuple(Gap(*row) for row in found)


# --- the form of a segment -------------------------------------------------------------------------


def pack_segment(segment: Segment) -> bytes:
    """Return the bytes of a segment."""
    header = {"version": 1, "before": segment.before.hex(), "last_blob": segment.last_blob}
    lines: list[Any] = [header]
    lines += [["gap", *map(_encode, gap)] for gap in segment.gaps]
    lines += [["event", *map(_encode, row)] for row in segment.rows]
    lines += [["blob", *map(_encode, blob)] for blob in segment.blobs]
    return zlib.compress("\n".join(json.dumps(line) for line in lines).encode(), 1)


def _encode(value: object) -> object:
    return {"b": base64.b85encode(value).decode()} if isinstance(value, bytes) else value


def _decode(value: object) -> object:
    return base64.b85decode(value["b"]) if isinstance(value, dict) else value


def unpack_segment(data: bytes, name: SegmentName) -> Segment:
    """Return what is in a segment's bytes.

    Raises:
        LogDamaged: they are not what was written under this name, or no segment.
    """
    if digest_of(data) != name.digest:
        raise LogDamaged(f"segment {name} of the replica does not match its digest")
    try:
        return _parse_segment(inflate_json(data, MAX_SEGMENT_BYTES, MAX_STRUCTURE_BYTES))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LogDamaged(f"segment {name} of the replica cannot be read: {error}") from error


def _parse_segment(text: bytes) -> Segment:
    header, *lines = map(json.loads, text.decode().split("\n"))
    parts: dict[str, list[list[Any]]] = {"gap": [], "event": [], "blob": []}
    for kind, *values in lines:
        parts[kind].append(list(map(_decode, values)))
    if not parts["event"]:
        raise ValueError("it has no event")
    return Segment(
        bytes.fromhex(header["before"]),
        tuple(map(parse_row, parts["event"])),
        tuple(Gap(*values) for values in parts["gap"]),
        tuple(map(parse_blob, parts["blob"])),
        int(header["last_blob"]),
    )


def list_generations(store: ReplicaStore) -> dict[str, list[SegmentName]]:
    """Return the segments of each generation, in order, oldest generation first.

    Of two that begin at the same event, one was written before a crash and once more after it: the longer
    counts.
    """
    found = [name for text in store.list_names() if (name := SegmentName.parse(text)) is not None]
    generations: dict[str, list[SegmentName]] = {}
    for name in sorted(found, key=lambda one: (int(one.generation[1:]), one.first, -one.last)):
        known = generations.setdefault(name.generation, [])
        if not known or name.first == known[-1].last + 1:
            known.append(name)
    return generations


def iterate_segments(store: ReplicaStore, generation: Sequence[SegmentName]) -> Iterator[Segment]:
    """Yield the segments of a generation, each checked to continue the one before.

    Raises:
        LogDamaged: one is missing, was changed, or belongs to another log.
    """
    before = GENESIS
    for name in generation:
        segment = unpack_segment(store.read(str(name)), name)
        if segment.before != before:
            raise LogDamaged(f"segment {name} of the replica does not continue the one before it")
        yield segment
        before = segment.rows[-1].hash


# --- restoring -------------------------------------------------------------------------------------


def restore_replica(
    home: Path, store: ReplicaStore, at: str | None = None, *, progress: ProgressCallback | None = None
) -> RebuildResult:
    """Replace a home's log by what a replica holds, up to a moment; no process may own the home.

    `at` is an event, RUN@SEQ, or a time in ISO 8601; None means all. Each segment and the whole chain are
    verified first.

    Raises:
        HomeError, StorageFull, StorageFailed: as for `state.backup.restore_log`.
        NoLog: the replica holds nothing up to that moment.
        StreamUnknown: it has no such event.
        LogDamaged: it is damaged, and at which segment.
    """
    generations = list_generations(store)
    if not generations:
        raise NoLog("the replica holds no log")
    generation, names = list(generations.items())[-1]
    wanted = _parse_moment(at)
    _require_complete(store, generation, names)

    def build(draft: Path) -> LogRewritten:
        with closing(schema.open_writer(draft)) as new:
            schema.migrate_schema(new)
            last = _copy_until(new, store, names, wanted=wanted)
        if not last:
            raise NoLog(f"the replica holds nothing before {at}")
        return LogRewritten(verb="restore", detail=f"from a replica, up to event {last}")

    with lock_home(home, create=True) as layout:
        return rebuild_log(layout, build, keep=True, progress=progress)


def _require_complete(store: ReplicaStore, generation: str, names: Sequence[SegmentName]) -> None:
    """Refuse a replica that lacks segments between others: it would give an older log without a word."""
    found = (SegmentName.parse(text) for text in store.list_names())
    last = max(name.last for name in found if name is not None and name.generation == generation)
    if last > names[-1].last:
        raise LogDamaged(f"the replica lacks events {names[-1].last + 1} and on, of {last}")


Moment = Callable[[EventRow], bool]
"""Whether a row is after the moment that is wanted."""


def _parse_moment(at: str | None) -> tuple[Moment, str]:
    if at is None:
        return (lambda _: False), ""
    run, mark, seq = at.rpartition("@")
    if mark and seq.isdecimal():
        reached: list[EventRow] = []

        def is_after(row: EventRow) -> bool:
            if reached:
                return True
            if (row.stream, row.run_seq) == (run, int(seq)):
                reached.append(row)
            return False

        return is_after, at
    try:
        moment = datetime.fromisoformat(at).astimezone()
    except ValueError as error:
        text = f"{at!r} is neither an event (RUN@SEQ) nor a time (2026-01-31T12:00)"
        raise StreamUnknown(text) from error
    upto_us = int(moment.timestamp() * 1_000_000)
    return (lambda row: row.ts_us > upto_us), ""


def _copy_until(
    new: sqlite3.Connection, store: ReplicaStore, names: Sequence[SegmentName], *, wanted: tuple[Moment, str]
) -> int:
    """Copy rows up to the moment, and all blobs of the segments read; return the last event's number."""
    is_after, event = wanted
    ends: dict[int, tuple[int, bytes]] = {}
    walk = ChainVerifier(
        seq=0, log_hash=GENESIS, before=lambda row: queries.link_before(new, row), beyond=ends.get
    )
    copier, last, stopped = RowCopier(new), 0, False
    with schema.transaction(new):
        for segment in iterate_segments(store, names):
            done = stopped  # this segment may still hold blobs that the last one's blobs name
            ends |= {gap.seq: (gap.upto, gap.hash) for gap in segment.gaps}
            store_blobs(new, segment.blobs)
            for row in segment.rows:
                stopped = stopped or is_after(row)
                if not stopped:
                    walk.check_row(row)
                    copier.copy_row(row)
                    last = row.seq
            if done:
                break
    if event and not stopped and not _is_last(new, event):
        raise StreamUnknown(f"the replica has no event {event}")
    return last


def _is_last(new: sqlite3.Connection, event: str) -> bool:
    run, _, seq = event.rpartition("@")
    last = queries.last_row(new)
    return last is not None and (last.stream, last.run_seq) == (run, int(seq))


class FolderStore:
    """A replica in a folder of this machine, such as a mounted disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list_names(self) -> list[str]:
        return [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []

    def read(self, name: str, /) -> bytes:
        with (self._folder / name).open("rb") as file:
            return file.read(MAX_SEGMENT_BYTES)

    def write(self, name: str, data: bytes, /) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(self._folder / name) as part:
            part.write_bytes(data)
