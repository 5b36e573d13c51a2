"""Short queries that read rows, on any connection.

A stream that continues another (a fork) is read through its ancestors: `lineage` returns its segments, root
first. Along a lineage both `seq` and `run_seq` rise, so either is a cursor. No query stays open between
pages, because an open reader would keep the writer from checkpointing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from state import schema
from state.chain import GENESIS, ChainLink
from state.head import EMPTY_HEAD, Head
from state.records import COLUMNS, EventRow, RowParser, parse_row, require_rising

MAX_SEQ = 2**63 - 1
"""No log holds more events than this."""

PAGE = 2000
PAGE_BYTES = 16 << 20
"""Rows per query of an iteration; each query takes a few milliseconds."""

_SELECT = f"SELECT {COLUMNS} FROM event "  # noqa: S608 - column names of ours

_PAYLOAD = EventRow._fields.index("payload")

_LINEAGE = """
WITH RECURSIVE line(id, parent, parent_seq, upto, depth) AS (
  SELECT id, parent, parent_seq, 9223372036854775807, 0 FROM stream WHERE id = ?
  UNION ALL
  SELECT s.id, s.parent, s.parent_seq, min(line.parent_seq, line.upto), line.depth + 1
  FROM line JOIN stream s ON s.id = line.parent)
SELECT id, coalesce(parent_seq, 0), upto FROM line WHERE coalesce(parent_seq, 0) < upto ORDER BY depth DESC"""
"""A parent has no segment if the fork starts at an event that the parent itself has from an ancestor."""


class Segment(NamedTuple):
    """The part of a lineage that lies in one stream: run_seq from `after` + 1 to `upto`."""

    stream: str
    after: int
    upto: int


_parse_segment = RowParser(Segment)


def lineage(connection: sqlite3.Connection, stream: str) -> tuple[Segment, ...]:
    """Return the segments of `stream`, its oldest ancestor first; empty if there is no such stream."""
    return tuple(map(_parse_segment, connection.execute(_LINEAGE, (stream,)).fetchall()))


def last_row(connection: sqlite3.Connection, stream: str | None = None) -> EventRow | None:
    """Return the newest row of the log, or of one stream (its own rows, not its ancestors')."""
    where, order = ("", "seq") if stream is None else ("WHERE stream = ?", "run_seq")
    parameters = () if stream is None else (stream,)
    found = connection.execute(_SELECT + f"{where} ORDER BY {order} DESC LIMIT 1", parameters).fetchone()
    return None if found is None else parse_row(found)


def log_head(connection: sqlite3.Connection) -> Head:
    """Return where the log ends; for an event that was taken out, only its number and hash are known."""
    row = last_row(connection)
    seq = 0 if row is None else row.seq
    gap = gap_at(connection, seq + 1)
    if gap is not None:
        return Head(gap.upto, "", 0, gap.hash.hex())
    return EMPTY_HEAD if row is None else Head(row.seq, row.stream, row.run_seq, row.hash.hex())


def row_at(connection: sqlite3.Connection, seq: int) -> EventRow | None:
    """Return the row with this global number, or None."""
    found = connection.execute(_SELECT + "WHERE seq = ?", (seq,)).fetchone()
    return None if found is None else parse_row(found)


def row_by_key(connection: sqlite3.Connection, stream: str, idem: str) -> EventRow | None:
    """Return the row of a stream with this idempotency key, or None."""
    found = connection.execute(_SELECT + "WHERE stream = ? AND idem = ?", (stream, idem)).fetchone()
    return None if found is None else parse_row(found)


def rows_by_prefix(connection: sqlite3.Connection, stream: str, prefix: str) -> list[EventRow]:
    """Return a stream's own rows whose idempotency key is `prefix` and something after it, in order."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    found = connection.execute(
        _SELECT + "WHERE stream = ? AND idem > ? AND idem < ? ORDER BY run_seq", (stream, prefix, end)
    )
    return [parse_row(row) for row in found.fetchall()]


class Gap(NamedTuple):
    """Events `seq` to `upto` are no longer in this log; the row after them continues `hash`."""

    seq: int
    upto: int
    hash: bytes


_parse_gap = RowParser(Gap)


def gap_at(connection: sqlite3.Connection, seq: int) -> Gap | None:
    """Return the gap that the event `seq` is in, or None if that event was not taken out."""
    if schema.read_pragma(connection, "user_version") < schema.WITH_GAPS:
        return None
    found = connection.execute(
        "SELECT * FROM gap WHERE seq <= ? ORDER BY seq DESC LIMIT 1", (seq,)
    ).fetchone()
    gap = None if found is None else _parse_gap(found)
    return gap if gap is not None and gap.upto >= seq else None


def gap_end(connection: sqlite3.Connection, seq: int) -> tuple[int, bytes] | None:
    """Return the last number of the gap that begins at `seq`, and what the row after it continues."""
    gap = gap_at(connection, seq)
    return None if gap is None or gap.seq != seq else (gap.upto, gap.hash)


def lineage_row(connection: sqlite3.Connection, stream: str, run_seq: int) -> EventRow | None:
    """Return one row of a lineage, None if there is no such event."""
    for segment in lineage(connection, stream):
        if segment.after < run_seq <= segment.upto:
            found = connection.execute(
                _SELECT + "WHERE stream = ? AND run_seq = ?", (segment.stream, run_seq)
            ).fetchone()
            return None if found is None else parse_row(found)
    return None


def link_at(connection: sqlite3.Connection, stream: str, run_seq: int) -> ChainLink | None:
    """Return (run_seq, hash) of one event of a lineage, None if there is no such event."""
    row = lineage_row(connection, stream, run_seq)
    return None if row is None else (run_seq, row.hash)


def link_before(connection: sqlite3.Connection, row: EventRow) -> ChainLink | None:
    """Return what `row` must continue according to the database; the chain starts at (0, GENESIS)."""
    return link_at(connection, row.stream, row.run_seq - 1) or ((0, GENESIS) if row.run_seq == 1 else None)


def log_rows(connection: sqlite3.Connection, *, after: int, upto: int | None = None) -> Iterator[EventRow]:
    """Yield all rows with seq in (after, upto], in order."""
    while True:
        found = connection.execute(
            _SELECT + "WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
            (after, MAX_SEQ if upto is None else upto, PAGE),
        )
        page, is_last = _fetch_page(found)
        yield from map(parse_row, page)
        if is_last:
            return
        after = require_rising(after, page[-1][0])


def stream_rows(
    connection: sqlite3.Connection, stream: str, *, after: int, upto: int | None = None
) -> Iterator[EventRow]:
    """Yield the rows of a stream and its ancestors with run_seq in (after, upto], in order."""
    return lineage_rows(connection, lineage(connection, stream), after=after, upto=upto)


def lineage_rows(
    connection: sqlite3.Connection, segments: Iterable[Segment], *, after: int, upto: int | None = None
) -> Iterator[EventRow]:
    """Yield a lineage's rows with run_seq in (after, upto], in order."""
    for segment in segments:
        end = segment.upto if upto is None else min(segment.upto, upto)
        yield from segment_rows(connection, Segment(segment.stream, max(after, segment.after), end))


def segment_rows(connection: sqlite3.Connection, segment: Segment) -> Iterator[EventRow]:
    """Yield the rows of one stream with run_seq in (after, upto], in order."""
    stream, after, upto = segment
    while after < upto:
        found = connection.execute(
            _SELECT + "WHERE stream = ? AND run_seq > ? AND run_seq <= ? ORDER BY run_seq LIMIT ?",
            (stream, after, upto, PAGE),
        )
        page, is_last = _fetch_page(found)
        yield from map(parse_row, page)
        if is_last:
            return
        after = require_rising(after, page[-1][2])


def _fetch_page(found: sqlite3.Cursor) -> tuple[list[Any], bool]:
    """Return rows of a query for `PAGE` rows, and whether there are no more; long rows make short pages."""
    page: list[Any] = []
    size = 0
    for row in found:
        page.append(row)
        size += len(row[_PAYLOAD] or "")
        if size > PAGE_BYTES:
            found.close()  # or it would hold on to this state of the log
            return page, False
    return page, len(page) < PAGE


class EventSelection(NamedTuple):
    """Which events a reader wants: of one stream or all, of some types only, between two global seqs."""

    stream: str | None = None
    after: int = 0
    types: tuple[str, ...] | None = None
    upto: int | None = None


def select_rows(
    connection: sqlite3.Connection, wanted: EventSelection, *, limit: int, newest: bool
) -> list[EventRow]:
    """Return up to `limit` rows in log order: the first that match, or the last ones if `newest`."""
    wanted, limit = wanted._replace(after=min(wanted.after, MAX_SEQ)), min(limit, MAX_SEQ)
    parts = _selection_parts(connection, wanted)
    rows: list[EventRow] = []
    for condition, parameters in reversed(parts) if newest else parts:
        rows += _select_part(
            connection, condition, parameters, wanted.types, limit - len(rows), newest=newest
        )
        if len(rows) >= limit:
            break
    return rows[::-1] if newest else rows


def _selection_parts(
    connection: sqlite3.Connection, wanted: EventSelection
) -> list[tuple[str, list[object]]]:
    if wanted.stream is None:
        return [("seq > ? AND seq <= ?", [wanted.after, MAX_SEQ if wanted.upto is None else wanted.upto])]
    return [
        (
            "stream = ? AND run_seq > ? AND run_seq <= ?",
            [
                segment.stream,
                _run_seq_after(connection, segment, wanted.after),
                segment.upto if wanted.upto is None else _run_seq_after(connection, segment, wanted.upto),
            ],
        )
        for segment in lineage(connection, wanted.stream)
    ]


def _select_part(
    connection: sqlite3.Connection,
    condition: str,
    parameters: list[object],
    types: Sequence[str] | None,
    limit: int,
    *,
    newest: bool,
) -> list[EventRow]:
    if types is not None:
        condition += f" AND type IN ({', '.join('?' * len(types))})"
    order = ("run_seq" if condition.startswith("stream") else "seq") + (" DESC" if newest else "")
    found = connection.execute(
        _SELECT + f"WHERE {condition} ORDER BY {order} LIMIT ?",
        (*parameters, *(types or ()), limit),
    )
    return [parse_row(row) for row in found]


def _run_seq_after(connection: sqlite3.Connection, segment: Segment, seq: int) -> int:
    """Return the last run_seq of the segment whose seq is at most `seq`.

    seq rises with run_seq, so this bisects with point look-ups: the index on (stream, run_seq) cannot seek by
    seq, and a scan would make following a long stream quadratic.
    """
    last = last_row(connection, segment.stream)
    low, high = segment.after, min(segment.upto, last.run_seq if last else 0)
    while low < high and seq > 0:
        middle = (low + high + 1) // 2
        found = connection.execute(
            "SELECT seq FROM event WHERE stream = ? AND run_seq = ?", (segment.stream, middle)
        ).fetchone()
        low, high = (middle, high) if found is not None and found[0] <= seq else (low, middle - 1)
    return low
