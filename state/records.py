"""The forms of an event: `NewEvent` goes into the log, `EventRow` is stored, `RecordedEvent` comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints

from state.errors import LogDamaged
from state.events import Event

Stored = TypeVar("Stored", bound=tuple[Any, ...])

ProgressCallback = Callable[[int, int], None]
"""Called now and then with how much work is done and how much there is; both count events by default."""


class RowParser(Generic[Stored]):
    """Parses table rows into a named tuple and checks that each column has its declared type.

    SQLite enforces a table's types when it writes. When it reads pages that were swapped or overwritten, it
    returns whatever is there; such columns must not pass as a row.
    """

    def __init__(self, cls: type[Stored]) -> None:
        hints = get_type_hints(cls).items()
        self._allowed = {name: get_args(hint) or (hint,) for name, hint in hints}
        self._shapes = frozenset(product(*self._allowed.values()))
        self._cls = cls
        self._make = tuple.__new__  # what a named tuple's own `__new__` calls, once the columns are counted

    def __call__(self, columns: Iterable[object]) -> Stored:
        """Return the columns as one value.

        Raises:
            LogDamaged: a column holds a value of another type; the message names the first one.
        """
        found = tuple(columns)
        if tuple(map(type, found)) in self._shapes:
            return self._make(self._cls, found)
        raise self._damaged_error(found)

    def _damaged_error(self, found: tuple[object, ...]) -> LogDamaged:
        bad = [
            f"its {name} is of the type {type(value).__name__}"
            for (name, allowed), value in zip(self._allowed.items(), found, strict=False)
            if type(value) not in allowed
        ]
        sound = {name: value for name, value in zip(self._allowed, found, strict=False) if type(value) is int}
        what = bad[0] if bad else f"it has {len(found)} columns"
        return LogDamaged(f"a stored {self._cls.__name__} is none: {what}", seq=sound.get("seq"))


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event for `stream` (a run's id, or SYSTEM_STREAM); `cause` is the seq of the event that led to it.

    `at_us` is when it happened, in UNIX microseconds, for an event that comes from another log. None means
    now.
    """

    stream: str
    event: Event
    cause: int | None = None
    at_us: int | None = None


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event as the log holds it.

    `seq` orders the whole log, `run_seq` the stream. `ts_us` is the wall clock in UNIX microseconds, for
    display only. `hash` and `state_hash` are hexadecimal; `state_hash` is None if none was recorded.
    """

    seq: int
    stream: str
    run_seq: int
    ts_us: int
    event: Event
    cause: int | None
    hash: str
    state_hash: str | None

    @property
    def time(self) -> datetime:
        """The wall clock at the append, in UTC."""
        return datetime.fromtimestamp(self.ts_us / 1_000_000, tz=UTC)

    @property
    def event_id(self) -> str:
        """The event's id as people and commands write it: RUN@SEQ."""
        return f"{self.stream}@{self.run_seq}"

    @property
    def type(self) -> str:
        return type(self.event).__name__


class EventRow(NamedTuple):
    """One row of the table `event`, in column order.

    `prev` and `log_prev` are the hashes of the rows before it in its stream and in the log. `fold` is the
    fold version with which `state_hash` was computed.
    """

    seq: int
    stream: str
    run_seq: int
    type: str
    sv: int
    ts_us: int
    cause: int | None
    idem: str | None
    payload: str
    prev: bytes
    log_prev: bytes
    state_hash: bytes | None
    fold: int | None
    hash: bytes


COLUMNS = ", ".join(EventRow._fields)

parse_row = RowParser(EventRow)


def require_rising(after: int, to: int) -> int:
    """Return `to`, where a read goes on; it must rise, or a page out of order would loop for ever.

    Raises:
        LogDamaged: `to` is not after `after`.
    """
    if to <= after:
        raise LogDamaged(f"its rows are out of order: {to} comes after {after}")
    return to


class EventKind(NamedTuple):
    """One row of the table `kind`: an event type that the log holds, and its version."""

    type: str
    version: int


parse_kind = RowParser(EventKind)


def to_recorded_event(row: EventRow, event: Event) -> RecordedEvent:
    """Return `row` in the form that callers see, with its decoded event."""
    state_hash = None if row.state_hash is None else row.state_hash.hex()
    return RecordedEvent(
        row.seq, row.stream, row.run_seq, row.ts_us, event, row.cause, row.hash.hex(), state_hash
    )
