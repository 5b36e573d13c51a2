"""`agentctl tail`: prints the log as lines: its end, or from a place on, and as it grows."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import Any

import click

from agentctl.app import Session, common_options
from agentctl.completers import complete_runs
from agentctl.event_lines import format_event_line
from agentctl.event_lookup import find_event, find_seq_before
from agentctl.run_lookup import parse_event_number
from agentctl.terminal_style import FAMILY_STYLES, print_line, style
from daemon import exits
from daemon.errors import UnknownRun
from state.errors import HomeError, NoLog, StreamUnknown
from state.events import EVENT_TYPES, FAMILIES
from state.model import SYSTEM_STREAM
from state.reader import LogReader
from state.records import ProgressCallback, RecordedEvent

PAGE = 500
DEFAULT_LINES = 20
LOOK_SECONDS = 0.1
AGE_PATTERN = re.compile(r"(\d+)\s*(s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)(\s+ago)?")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _parse_types(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the event types that families, names and patterns select; None if none were given."""
    chosen: set[str] = set()
    for word in (part.strip() for item in value for part in item.split(",")):
        names = FAMILIES.get(word, ()) or [name for name in EVENT_TYPES if fnmatchcase(name, word)]
        if not names:
            raise click.BadParameter(
                f"{word!r} is neither a family ({', '.join(FAMILIES)}) nor the name of an event"
            )
        chosen.update(names)
    return tuple(sorted(chosen)) or None


def parse_moment(text: str, now: datetime) -> datetime:
    """Parse `--since`: an ISO 8601 time (UTC unless it has a zone), or an age such as `10 min`.

    Raises:
        ValueError: it is neither.
    """
    found = AGE_PATTERN.fullmatch(text.strip())
    if found:
        try:
            return now - parse_age(found)
        except OverflowError as error:
            raise ValueError("it is before the earliest possible date") from error
    said = datetime.fromisoformat(text)
    return said if said.tzinfo else said.replace(tzinfo=UTC)


def parse_age(found: re.Match[str]) -> timedelta:
    """Return the age that `AGE_PATTERN` matched.

    Raises:
        OverflowError: it is too large for a timedelta.
    """
    return timedelta(**{_UNITS[found[2][0]]: int(found[1])})


def _parse_since(context: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    try:
        return None if value is None else parse_moment(value, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(
            f"{value!r} is neither an ISO 8601 time nor an age such as '10 min'"
        ) from error


def _parse_after(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> int | tuple[str, int] | None:
    """Parse `RUN@SEQ`, or a sequence number of the whole log."""
    if value is None:
        return None
    run, mark, text = value.rpartition("@")
    if not mark and text.isascii() and text.isdecimal():
        return int(text)
    number = parse_event_number(text)
    if not (run and number):
        raise click.BadParameter(f"{value!r} is neither RUN@SEQ nor a number")
    return run, number


def _parse_pattern(_: click.Context, __: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value, re.IGNORECASE)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from error


@click.command(epilog=exits.epilog())
@click.option("-f", "--follow", is_flag=True, help="Wait for more; survives restarts of the owner.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    help="At most so many: the last events, or with --after or --since the first ones.  "
    f"[default: {DEFAULT_LINES}; then all]",
)
@click.option(
    "--type", "types", multiple=True, callback=_parse_types, help="Families or event names, with commas."
)
@click.option("--since", callback=_parse_since, help="From this time on: ISO 8601, or '10 min ago'.")
@click.option(
    "--after",
    callback=_parse_after,
    metavar="RUN@SEQ|SEQ",
    help="Start with the event after this one: RUN@SEQ as in a line, or the `seq` of --json.",
)
@click.option("--run", "run", help="Events of this run only.", shell_complete=complete_runs)
@click.option(
    "--grep",
    metavar="REGEX",
    callback=_parse_pattern,
    help="Only lines that match, ignoring case; -n counts these lines.",
)
@common_options
def tail(
    session: Session,
    *,
    follow: bool,
    lines: int | None,
    since: datetime | None,
    after: int | tuple[str, int] | None,
    grep: re.Pattern[str] | None,
    **chosen: Any,
) -> None:
    """Show the last events of the log, or all from a given point on, one per line."""
    out = _EventPrinter(session, grep)
    with _open_log(session, follow=follow) as reader:
        wanted = EventFilter(
            after=find_event(reader, *after).seq if isinstance(after, tuple) else after, **chosen
        )
        wanted.require_run(reader)
        if since is not None:
            wanted = replace(wanted, after=max(wanted.after or 0, find_seq_before(reader, since)))
        position = reader.head.seq if wanted.after is None else wanted.after
        for item in _initial_matches(out, wanted, reader, lines=lines):
            out.print_event(item)
            position = max(position, item.seq)
        while follow:
            position = _print_new(out, wanted, reader, position=position)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events: of one run or all, of some types or all, the last ones or all after a place."""

    run: str | None = None
    types: tuple[str, ...] | None = None
    after: int | None = None

    def require_run(self, reader: LogReader) -> None:
        """Raise UnknownRun if there is no such run."""
        if self.run not in (None, SYSTEM_STREAM) and not reader.run_rows(self.run):
            raise UnknownRun.with_nearest(self.run, reader.run_ids())

    def read_page(
        self, reader: LogReader, after: int, limit: int = PAGE, *, newest: bool = False
    ) -> list[RecordedEvent]:
        """Return the next events; none if the stream has not begun."""
        try:
            return reader.read(stream=self.run, types=self.types, after=after, limit=limit, newest=newest)
        except StreamUnknown:
            return []

    def read_page_before(self, reader: LogReader, upto: int | None) -> list[RecordedEvent]:
        """Return the page of events that ends at a global seq, or the last page."""
        try:
            return reader.read(stream=self.run, types=self.types, limit=PAGE, newest=True, upto=upto)
        except StreamUnknown:
            return []

    def initial_events(self, reader: LogReader, lines: int | None) -> Iterator[RecordedEvent]:
        """Yield the last `lines` events, or all events after the place (at most `lines`, if given)."""
        if self.after is None:
            yield from self.read_page(reader, 0, DEFAULT_LINES if lines is None else lines, newest=True)
            return
        after, left = self.after, lines
        while page := self.read_page(reader, after, PAGE if left is None else min(PAGE, left)):
            yield from page
            after = page[-1].seq
            left = None if left is None else left - len(page)


def _open_log(session: Session, *, follow: bool) -> LogReader:
    """Open the log; when following, wait until it exists."""
    while True:
        try:
            return LogReader.open(session.home)
        except HomeError as error:
            to_come = isinstance(error, NoLog) or not session.home.exists()
            if not (follow and to_come):
                raise
            time.sleep(LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class _EventPrinter:
    """Prints events that match, as lines in the colour of their family or as JSON."""

    session: Session
    grep: re.Pattern[str] | None

    def matches(self, item: RecordedEvent) -> bool:
        """Return whether an event's full line matches the pattern."""
        return self.grep is None or self.grep.search(format_event_line(item, width=None)) is not None

    def print_event(self, item: RecordedEvent) -> None:
        """Print an event, whether it matches or not."""
        if self.session.json:
            self.session.emit(event_json(item))
        else:
            print_line(style(format_event_line(item), FAMILY_STYLES.get(item.event.family)))


def _initial_matches(
    out: _EventPrinter, wanted: EventFilter, reader: LogReader, *, lines: int | None
) -> Iterator[RecordedEvent]:
    """Yield the events to show first; with a pattern, these are the last lines that match it."""
    if out.grep is None:
        yield from wanted.initial_events(reader, lines)
        return
    if wanted.after is not None:
        found = (item for item in wanted.initial_events(reader, None) if out.matches(item))
        with out.session.progress_bar("searching"):
            first = list(islice(found, 1))
        yield from islice(chain(first, found), lines)
        return
    with out.session.progress_bar("searching") as bar:
        last = _last_matching(
            out, wanted, reader, lines=DEFAULT_LINES if lines is None else lines, progress=bar
        )
    yield from last


def _last_matching(
    out: _EventPrinter, wanted: EventFilter, reader: LogReader, *, lines: int, progress: ProgressCallback
) -> list[RecordedEvent]:
    """Return the last events that match, searching back through the whole log if necessary."""
    found: list[RecordedEvent] = []
    upto: int | None = None
    end = reader.head.seq
    while len(found) < lines and (page := wanted.read_page_before(reader, upto)):
        found = [item for item in page if out.matches(item)] + found
        upto = page[0].seq - 1
        progress(end - upto, end)
    return found[-lines:] if lines else []


def _print_new(out: _EventPrinter, wanted: EventFilter, reader: LogReader, *, position: int) -> int:
    """Print what matches in the page after `position`, or sleep; return the new position."""
    page = wanted.read_page(reader, position)
    for item in filter(out.matches, page):
        out.print_event(item)
    if not page:
        time.sleep(LOOK_SECONDS)
        return position
    return page[-1].seq


def event_json(item: RecordedEvent) -> dict[str, Any]:
    """Return an event as one JSON object; `seq` is what `--after` takes."""
    return {
        "seq": item.seq,
        "run": item.stream,
        "run_seq": item.run_seq,
        "time": item.time.isoformat(),
        "type": item.type,
        "event": item.event.model_dump(mode="json", exclude={"type"}),
    }
