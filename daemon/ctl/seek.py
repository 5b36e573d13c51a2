"""Finding a place in the log by bisection: an event of a run by its number, a moment by its time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import datetime

from daemon.errors import UnknownEvent, UnknownRun
from state.errors import StreamUnknown
from state.reader import LogReader
from state.records import Recorded


def event_at(reader: LogReader, stream: str, run_seq: int) -> Recorded:
    """Return event number `run_seq` of a stream.

    Raises:
        UnknownRun, UnknownEvent: there is no such stream, or it has no such event.
    """
    try:
        before = _last_before(reader, stream, lambda item: item.run_seq >= run_seq)
        found = reader.read(stream=stream, after=before, limit=1)
    except StreamUnknown as error:
        raise UnknownRun.among(stream, reader.run_ids()) from error
    if not found or found[0].run_seq != run_seq:
        raise UnknownEvent.beyond(stream, run_seq, reader.run_seq(stream))
    return found[0]


def seq_before(reader: LogReader, moment: datetime) -> int:
    """Return the global seq after which all events are at or after `moment`.

    Wall clocks can step back; then this is one such place, not the only one.
    """
    return _last_before(reader, None, lambda item: item.time >= moment)


def _last_before(reader: LogReader, stream: str | None, late: Callable[[Recorded], bool]) -> int:
    """Return the last seq from which reading on meets only events that are `late` (which rises with seq)."""

    def next_is_late(seq: int) -> bool:
        found = reader.read(stream=stream, after=seq, limit=1)
        return not found or late(found[0])

    return bisect_left(range(reader.head().seq), x=True, key=next_is_late)
