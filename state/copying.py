"""Copies rows and blobs unchanged from one log file to another, leaving some out.

Rows keep their numbers and hashes; rows that are left out leave a gap, and the chain goes on after it. A blob
that is left out is replaced by a tombstone. To find the blobs that the remaining rows need, this module looks
for digests in their text, and in the text of those blobs. This keeps too much rather than too little, and
needs no list of the fields that may name a blob.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator

from state import blobs
from state.blobs import StoredBlob, parse_blob
from state.chain import GENESIS
from state.errors import BlobMissing
from state.events import RunForked
from state.records import EventRow
from state.upcast import decode_event

_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_INSERT = f"INSERT INTO event VALUES ({', '.join('?' * len(EventRow._fields))})"  # noqa: S608 - marks only


class RowCopier:
    """Writes rows, in log order, into a database without rows, in the current transaction."""

    def __init__(self, target: sqlite3.Connection) -> None:
        self._target = target
        self._streams: set[str] = set()
        self._kinds: set[tuple[str, int]] = set()
        self._seq = 0
        self._hash = GENESIS
        self.rows = 0

    def copy_row(self, row: EventRow) -> None:
        """Copy a row; the log's triggers check that it continues what is there.

        Raises:
            sqlite3.IntegrityError: it does not; nothing was stored.
        """
        if row.seq > self._seq + 1:
            self._record_gap(row.seq - 1, row.log_prev)
        if row.stream not in self._streams:
            self._target.execute("INSERT OR IGNORE INTO stream VALUES (?, ?, ?, ?)", _stream_row(row))
        if (row.type, row.sv) not in self._kinds:
            self._target.execute("INSERT INTO kind VALUES (?, ?)", (row.type, row.sv))
        self._target.execute(_INSERT, row)
        self._streams.add(row.stream)
        self._kinds.add((row.type, row.sv))
        self._seq, self._hash = row.seq, row.hash
        self.rows += 1

    def record_end(self, seq: int, log_hash: bytes) -> None:
        """Record where the source log ended, so that no number is used twice."""
        if seq > self._seq:
            self._record_gap(seq, log_hash)

    def _record_gap(self, upto: int, log_hash: bytes) -> None:
        self._target.execute("INSERT OR IGNORE INTO gap VALUES (?, ?, ?)", (self._seq + 1, upto, log_hash))


def _stream_row(row: EventRow) -> tuple[object, ...]:
    """Return the row of the table `stream` for a stream's first event."""
    event = decode_event(row)
    if isinstance(event, RunForked):
        return (row.stream, event.parent, event.parent_seq, row.prev)
    return (row.stream, None, None, None)


def find_digests(text: bytes) -> set[str]:
    """Return everything in a text that looks like a digest."""
    return {found.decode() for found in _DIGEST.findall(text)}


def reachable_blobs(connection: sqlite3.Connection, named: Iterable[str]) -> set[str]:
    """Return the stored blobs among those named, and among those that they name in turn."""
    found: set[str] = set()
    todo = list(named)
    while todo:
        digest = todo.pop()
        if digest in found:
            continue
        try:
            data = blobs.fetch_blob(connection, digest)
        except BlobMissing:
            continue
        found.add(digest)
        todo += find_digests(data)
    return found


def iterate_blobs(connection: sqlite3.Connection) -> Iterator[StoredBlob]:
    """Yield all rows of the table `blob`."""
    return map(parse_blob, blobs.read_blob_columns(connection))
