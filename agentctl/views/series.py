"""Latency over candidates: all candidates of a run, in columns, and the beams selected from them.

Plots, lists and lineage trees are drawn from this. The 11,000 candidates of a log with 100,000 events
take two megabytes of JSON. So rows are lists and not objects, and a page that has them asks only for
changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daemon.errors import UnknownEvent
from state.events import BeamSelected
from state.reader import LogReader
from state.records import RecordedEvent

COLUMNS = (
    "candidate", "parent", "round", "run_seq", "judged_at", "decided_at", "verdict", "latency_ms", "lo_ms",
    "hi_ms", "predicted", "decision", "reason", "role", "technique", "title", "bottleneck", "level", "author",
    "history", "duplicate_of", "error_code",
)  # fmt: skip
"""The columns, as in `LogReader.attempts`, in the order of each row's values."""

MAX_TITLE = 120
"""Characters of a title that a list shows."""


@dataclass(frozen=True, slots=True)
class RoundBeam:
    """The beam at the end of a round: candidates and their roles, after the run's event `run_seq`."""

    run_seq: int
    round: int
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CandidateSeries:
    """A run's candidates and beams up to its event `at`; rows and beams before `since` are left out.

    `rows` have one value for each of `columns`, in the order in which the candidates were proposed.
    """

    run: str
    at: int
    since: int
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    beams: tuple[RoundBeam, ...]


def candidate_series(
    reader: LogReader, run: str, *, at: int | None = None, since: int = 0
) -> CandidateSeries:
    """Return a run's candidates as they were after its event `at` (None: now).

    With `since`, return only candidates that a later event concerns, and later beams.

    Raises:
        StreamUnknown: there is no such run.
    """
    upto = last_run_seq(reader, run) if at is None else at
    rows = reader.attempt_rows(run, upto=at, since=since or None)
    return CandidateSeries(
        run=run,
        at=upto,
        since=since,
        columns=COLUMNS,
        rows=tuple(_series_row(row) for row in rows),
        beams=tuple(_round_beams(reader, run, since=since, upto=upto)),
    )


def require_event(reader: LogReader, run: str, at: int) -> RecordedEvent:
    """Return a run's event `at`, which may be an ancestor's.

    Raises:
        StreamUnknown: there is no such run.
        UnknownEvent: it has no such event.
    """
    item = reader.run_event(run, at)
    if item is None:
        raise UnknownEvent.with_last_event(run, at, last_run_seq(reader, run))
    return item


def last_run_seq(reader: LogReader, run: str) -> int:
    """Return the number of a run's last event, counting its ancestors' events.

    Raises:
        StreamUnknown: there is no such run.
    """
    newest = reader.read(stream=run, limit=1, newest=True)
    return newest[0].run_seq if newest else 0


def _series_row(row: dict[str, Any]) -> tuple[Any, ...]:
    title = row["title"]
    row["title"] = f"{title[: MAX_TITLE - 1]}…" if title and len(title) > MAX_TITLE else title
    return tuple(row[name] for name in COLUMNS)


def _round_beams(reader: LogReader, run: str, *, since: int, upto: int) -> list[RoundBeam]:
    found: list[RoundBeam] = []
    after = 0
    if since:
        first = reader.run_event(run, since)
        after = first.seq if first else 0
    last = reader.run_event(run, upto)
    for item in reader.iterate_events(run, ("BeamSelected",), after=after, upto=last.seq if last else None):
        if isinstance(item.event, BeamSelected):
            members = tuple((one.candidate.id, one.role.value) for one in item.event.beam)
            found.append(RoundBeam(item.run_seq, item.event.round, members))
    return found
