"""Queries for recent events, on any connection; their cost does not grow with the log."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from state.point_in_time import cut_segments
from state.queries import lineage, row_by_key
from state.records import EventRow

_RECENT_QUERY = """
SELECT type, count(*), max(run_seq), min(ts_us), max(ts_us) FROM
  (SELECT type, run_seq, ts_us FROM event WHERE stream = ? ORDER BY run_seq DESC LIMIT ?)
GROUP BY type"""

_CALLS_QUERY = """
SELECT endpoint, model, outcome, ms FROM spend
WHERE run = ? AND outcome IS NOT NULL ORDER BY run_seq DESC LIMIT ?"""


class RecentEvents(NamedTuple):
    """How often an event type is among the last ones, its last run_seq, its first and last times (µs)."""

    number: int
    run_seq: int
    first_us: int
    last_us: int


class CallAttempt(NamedTuple):
    """One attempt at an answer: `outcome` is answered, lost or a kind of failure; `ms` its duration."""

    endpoint: str
    model: str
    outcome: str
    ms: float | None


def recent_events_by_type(connection: sqlite3.Connection, stream: str, last: int) -> dict[str, RecentEvents]:
    """Return a stream's last events by type, without those of its ancestors."""
    found = connection.execute(_RECENT_QUERY, (stream, last)).fetchall()
    return {str(row[0]): RecentEvents(*map(int, row[1:])) for row in found}


def recent_calls(connection: sqlite3.Connection, run: str, last: int) -> list[CallAttempt]:
    """Return a run's last attempts at answers, newest first."""
    return [CallAttempt._make(row) for row in connection.execute(_CALLS_QUERY, (run, last)).fetchall()]


def last_row_by_key(
    connection: sqlite3.Connection, stream: str, idem: str, upto: int | None = None
) -> EventRow | None:
    """Return the last row of a stream or its ancestors with an idempotency key, or None.

    With `upto`, the last one up to that event of the stream.
    """
    segments = lineage(connection, stream)
    for segment in reversed(segments if upto is None else cut_segments(segments, upto)):
        row = row_by_key(connection, segment.stream, idem)
        if row is not None and row.run_seq <= segment.upto:
            return row
    return None
