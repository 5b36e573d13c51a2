"""Reads what is readable of a damaged database: row by row if a page of rows fails.

Everything here handles the errors in UNREADABLE; what cannot be read is reported by its number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

from state import queries, schema
from state.blobs import StoredBlob, parse_blob
from state.errors import READ_ERRORS, LogDamaged
from state.queries import PAGE
from state.records import COLUMNS, EventRow, parse_row

_ROWS = f"SELECT {COLUMNS} FROM event WHERE seq > ? AND seq <= ? ORDER BY seq"  # noqa: S608 - our own names
_INDEX = "SELECT {} FROM event INDEXED BY sqlite_autoindex_event_1"
_BLOB_PAGE = 50

_LEAST_EVENT_BYTES = 100
_LEAST_BLOB_BYTES = 32
"""No row is shorter: of an event, the three hashes alone have 96 bytes, and a blob's digest 32."""

UNREADABLE = (*READ_ERRORS, LogDamaged)
"""Errors from a damaged page: SQLite finds no row in it, or one with columns of other types."""


def last_seq(connection: sqlite3.Connection, anchored: int) -> int:
    """Return the number of the last event, from whatever is still readable; at least `anchored`.

    A damaged number that is higher than this file could reach does not count.
    """
    most = anchored
    with suppress(*READ_ERRORS):  # events that were taken out have numbers and no room
        most = max(most, connection.execute("SELECT max(upto) FROM gap").fetchone()[0] or 0)
    most = min(most + _count_room(connection, _LEAST_EVENT_BYTES), queries.MAX_SEQ)
    found = anchored
    for query in ("SELECT max(seq) FROM event", _INDEX.format("max(seq)")):
        with suppress(*READ_ERRORS):
            found = max(found, connection.execute(f"{query} WHERE seq <= ?", (most,)).fetchone()[0] or 0)
    return found


def _count_room(connection: sqlite3.Connection, size: int) -> int:
    """Return how many rows of `size` bytes the file has room for."""
    return schema.read_pragma(connection, "page_count") * schema.read_pragma(connection, "page_size") // size


def salvage_rows(connection: sqlite3.Connection, upto: int) -> Iterator[EventRow | int]:
    """Yield each readable event up to `upto`, and the number of each unreadable one, in order.

    Numbers in known gaps are skipped.
    """
    after = 0
    while after < upto:
        end = min(after + PAGE, upto)
        try:
            page = [parse_row(row) for row in connection.execute(_ROWS, (after, end)).fetchall()]
        except UNREADABLE:
            page = [
                row for seq in range(after + 1, end + 1) if (row := _read_row(connection, seq)) is not None
            ]
        there = {row.seq: row for row in page}
        for seq in range(after + 1, end + 1):
            row = there.get(seq)
            if row is not None or not _known_gap(connection, seq):
                yield seq if row is None else row
        after = end


def _read_row(connection: sqlite3.Connection, seq: int) -> EventRow | None:
    with suppress(*UNREADABLE):
        return queries.row_at(connection, seq)
    return None


def _known_gap(connection: sqlite3.Connection, seq: int) -> bool:
    with suppress(*UNREADABLE):
        return queries.gap_at(connection, seq) is not None
    return False


def event_places(connection: sqlite3.Connection) -> dict[int, tuple[str, int]]:
    """Return stream and run_seq of events by number, from the index alone; empty if it is damaged too."""
    with suppress(*READ_ERRORS):
        found = connection.execute(_INDEX.format("seq, stream, run_seq")).fetchall()
        there = [(seq, stream, at) for seq, stream, at in found if (type(stream), type(at)) == (str, int)]
        return {seq: (stream, run_seq) for seq, stream, run_seq in there}
    return {}


def salvage_blobs(connection: sqlite3.Connection) -> Iterator[StoredBlob]:
    """Yield the readable blobs, sound or not."""
    last, most = 0, _count_room(connection, _LEAST_BLOB_BYTES)
    with suppress(*READ_ERRORS):
        newest = "SELECT coalesce(max(rowid), 0) FROM blob WHERE rowid <= ?"
        last = connection.execute(newest, (most,)).fetchone()[0]
    with suppress(*UNREADABLE):  # only their numbers are damaged, and nothing names blobs by number
        beyond = connection.execute("SELECT * FROM blob WHERE rowid > ? LIMIT ?", (most, _BLOB_PAGE))
        yield from (parse_blob(columns) for columns in beyond.fetchall())
    query = "SELECT * FROM blob WHERE rowid > ? AND rowid <= ? ORDER BY rowid"
    for after in range(0, last, _BLOB_PAGE):
        try:
            page = connection.execute(query, (after, after + _BLOB_PAGE)).fetchall()
        except READ_ERRORS:
            page = []
            for rowid in range(after + 1, after + _BLOB_PAGE + 1):
                with suppress(*READ_ERRORS):
                    page += connection.execute(query, (rowid - 1, rowid)).fetchall()
        for columns in page:
            with suppress(LogDamaged):  # without a digest, no event can name it
                yield parse_blob(columns)
