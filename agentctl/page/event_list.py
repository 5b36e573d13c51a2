"""The event list of the page: newest first, in pages, filtered by run, type, text and upper bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentctl.event_lines import describe_event
from state.reader import LogReader
from state.records import RecordedEvent

PAGE = 200
"""Events per response."""

MAX_SCANNED = 20_000
"""The maximum number of events that are searched for a text, per response."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event in words: its place, type and family, and the candidate that it is about, if any."""

    seq: int
    run: str
    run_seq: int
    time: str
    type: str
    family: str
    candidate: str | None
    text: str


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events, newest first. `before` is where to continue, None at the beginning of the log."""

    lines: tuple[EventLine, ...]
    before: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """Selects events: of one run or all, of some types or all, with a text; sequence numbers `after` to
    `before`.
    """

    run: str | None = None
    types: tuple[str, ...] | None = None
    text: str = ""
    after: int = 0
    before: int | None = None


def query_events(reader: LogReader, sought: EventQuery) -> EventPage:
    """Return the newest events that match; a text search reads the log page by page.

    Raises:
        StreamUnknown: there is no such run.
    """
    found: list[EventLine] = []
    before, scanned, wanted = sought.before, 0, sought.text.casefold()
    while len(found) < PAGE and scanned < MAX_SCANNED:
        page = reader.read(
            stream=sought.run, types=sought.types, after=sought.after,
            upto=None if before is None else before - 1, limit=PAGE, newest=True,
        )  # fmt: skip
        if not page:
            return EventPage(tuple(found), None)
        for item in reversed(page):
            before = item.seq
            one = event_line(item)
            if wanted in f"{one.run}@{one.run_seq} {one.type} {one.candidate} {one.text}".casefold():
                found.append(one)
            if len(found) == PAGE:
                break
        scanned += len(page)
    return EventPage(tuple(found), before)


def event_line(item: RecordedEvent) -> EventLine:
    """Return an event in words."""
    key: Any = getattr(item.event, "key", None)
    return EventLine(
        seq=item.seq,
        run=item.stream,
        run_seq=item.run_seq,
        time=item.time.isoformat(timespec="milliseconds"),
        type=item.type,
        family=item.event.family,
        candidate=key.rpartition(".")[0] if isinstance(key, str) else None,
        text=describe_event(item.event),
    )
