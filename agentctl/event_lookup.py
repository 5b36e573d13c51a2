"""Finds a place in the log: an event of a run by its number, or a moment by bisection over event times."""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime

from daemon.errors import UnknownEvent, UnknownRun
from state.errors import StreamUnknown
from state.reader import LogReader
from state.records import RecordedEvent


def find_event(reader: LogReader, stream: str, run_seq: int) -> RecordedEvent:
    """Return event number `run_seq` of a stream.

    Raises:
        UnknownRun, UnknownEvent: there is no such stream, or it has no such event.
    """
    try:
        found = reader.run_event(stream, run_seq)
    except StreamUnknown as error:
        raise UnknownRun.with_nearest(stream, reader.run_ids()) from error
    if found is None:
        raise UnknownEvent.with_last_event(stream, run_seq, reader.run_seq(stream))
    return found


def find_seq_before(reader: LogReader, moment: datetime) -> int:
    """Return the global seq after which all events are at or after `moment`.

    Wall clocks can step back; then this is one such place, not the only one.
    """

    def is_late(seq: int) -> bool:
        found = reader.read(after=seq, limit=1)
        return not found or found[0].time >= moment

    return bisect_left(range(reader.head.seq), x=True, key=is_late)
