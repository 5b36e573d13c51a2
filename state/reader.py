"""`LogReader` reads a home's event log and never writes; any number may be open, in any process.

Each call is one short query that closes its cursor before it returns. A slow caller therefore never keeps the
writer from checkpointing. `state.readonly` says how the database is opened after each way in which its owner
may have left it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from state import blobs, effect_progress, lineage_read_models, projections, queries, recent_events, snapshots
from state.errors import StreamUnknown, sqlite_errors
from state.events import EffectProgressed
from state.fold import RunState
from state.fold_cache import FoldCache
from state.head import EMPTY_HEAD, Head, read_head
from state.home import HomeLayout
from state.model import SYSTEM_STREAM
from state.opening import check_log_end
from state.readonly import ReadOnlyConnection
from state.records import EventRow, ProgressCallback, RecordedEvent, to_recorded_event
from state.replay import ReplayResult, replay_run
from state.snapshots import Tip
from state.system import SystemState
from state.upcast import decode_event

POLL_S = 0.05
"""Seconds between two checks of `wait_for_events`; a check costs microseconds."""

PAGE = 1000
"""How many events of a history are read at once."""

_RUN_ROWS = "SELECT * FROM runs"
_STANDINGS = "SELECT run, status, round, best_ms, predicted FROM runs WHERE ended = 0 ORDER BY first_seq"


class RunStanding(NamedTuple):
    """The current standing of a run that has not ended. `best_ms` is computed by a model if `predicted`."""

    run: str
    status: str
    round: int
    best_ms: float | None
    predicted: bool | None


class LogReader:
    """Reads one home's log. Get it with `open`; threads may share it."""

    def __init__(self, layout: HomeLayout) -> None:
        self._layout = layout
        self._handle = ReadOnlyConnection(layout)
        self._mutex = threading.Lock()

    @classmethod
    def open(cls, home: Path) -> Self:
        """Open the log of `home` for reading, whether its owner runs, stopped or crashed.

        Raises:
            NoLog: nothing was ever recorded there.
            TailLost: there was a log, and it is gone.
            HomeUnreadable: not a directory, or no permission.
            LogTooNew: a newer version of this program wrote it.
            LogDamaged: it cannot be read.
        """
        return cls(HomeLayout(home))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._mutex:
            self._handle.close()

    def check_end(self) -> None:
        """Compare the log's end with its HEAD anchor, as opening for writing does.

        Raises:
            TailLost: acknowledged events are gone.
            LogDamaged: the anchor is unreadable, or names an event that is not the one in the log.
        """
        anchor = read_head(self._layout.head)  # read before the log: HEAD is never ahead of what is committed
        with self._mutex, sqlite_errors():
            check_log_end(self._layout, self._handle.connection(), anchor)

    # --- events ---

    def read(
        self,
        *,
        stream: str | None = None,
        after: int = 0,
        limit: int = 500,
        types: Sequence[str] | None = None,
        newest: bool = False,
        upto: int | None = None,
    ) -> list[RecordedEvent]:
        """Return up to `limit` events with a global seq above `after` (and at most `upto`), in log order.

        `stream` restricts them to a run and its ancestors (or the system stream), `types` to event types.
        `newest` takes the last matching events instead of the first.

        Raises:
            StreamUnknown: there is no such stream.
        """
        wanted = queries.EventSelection(stream, after, None if types is None else tuple(types), upto)
        with self._mutex, sqlite_errors():
            connection = self._handle.connection()
            if stream is not None and not queries.lineage(connection, stream):
                raise StreamUnknown(f"no run {stream}")
            rows = queries.select_rows(connection, wanted, limit=limit, newest=newest)
        return [to_recorded_event(row, decode_event(row)) for row in rows]

    def iterate_events(
        self,
        stream: str,
        types: Sequence[str],
        *,
        after: int = 0,
        upto: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[RecordedEvent]:
        """Yield all events of the given types of a run and its ancestors, in order, reading page by page.

        `after` and `upto` are global seqs, as in `read`.

        Raises:
            StreamUnknown: there is no such stream.
        """
        while page := self.read(stream=stream, after=after, types=types, limit=PAGE, upto=upto):
            after = page[-1].seq
            yield from page
            if progress is not None:
                progress(page[-1].run_seq, self.run_seq(stream))

    def event_by_seq(self, seq: int) -> RecordedEvent | None:
        """Return the event with this global seq, or None."""
        with self._mutex, sqlite_errors():
            row = queries.row_at(self._handle.connection(), seq)
        return None if row is None else to_recorded_event(row, decode_event(row))

    def run_event(self, stream: str, run_seq: int) -> RecordedEvent | None:
        """Return the event of a run or its ancestors with this run_seq, or None.

        Raises:
            StreamUnknown: there is no such stream.
        """
        with self._mutex, sqlite_errors():
            connection = self._handle.connection()
            if not queries.lineage(connection, stream):
                raise StreamUnknown(f"no run {stream}")
            row = queries.lineage_row(connection, stream, run_seq)
        return None if row is None else to_recorded_event(row, decode_event(row))

    def event_by_key(self, stream: str, idem: str, upto: int | None = None) -> RecordedEvent | None:
        """Return the event with this idempotency key from a run or its ancestors, or None.

        With `upto`, ignore what came after that event of the run.
        """
        with self._mutex, sqlite_errors():
            row = recent_events.last_row_by_key(self._handle.connection(), stream, idem, upto)
        return None if row is None else to_recorded_event(row, decode_event(row))

    def effect_parts(self, run: str, key: str) -> list[EffectProgressed]:
        """Return which parts of an effect are done, in order."""
        with self._mutex, sqlite_errors():
            return effect_progress.read_parts(self._handle.connection(), run, key)

    def count_vain_deliveries(self, run: str, key: str) -> effect_progress.VainDeliveries:
        """Count the deliveries of an effect in a row, before the current one, that brought nothing."""
        with self._mutex, sqlite_errors():
            return effect_progress.count_vain_deliveries(self._handle.connection(), run, key)

    def recent_events_by_type(self, stream: str, last: int) -> dict[str, recent_events.RecentEvents]:
        """Return a stream's last events by type; see `state.recent_events.recent_events_by_type`."""
        with self._mutex, sqlite_errors():
            return recent_events.recent_events_by_type(self._handle.connection(), stream, last)

    def recent_calls(self, run: str, last: int) -> list[recent_events.CallAttempt]:
        """Return a run's last attempts to get an answer from a model, newest first."""
        with self._mutex, sqlite_errors():
            connection = self._handle.connection()
            projections.require_current(connection)
            return recent_events.recent_calls(connection, run, last)

    @property
    def head(self) -> Head:
        """Return the last event's place and hash."""
        row = self._last_row(None)
        return EMPTY_HEAD if row is None else Head(row.seq, row.stream, row.run_seq, row.hash.hex())

    def run_seq(self, stream: str) -> int:
        """Return a stream's last run_seq, 0 if it has no events."""
        row = self._last_row(stream)
        return 0 if row is None else row.run_seq

    def _last_row(self, stream: str | None) -> EventRow | None:
        with self._mutex, sqlite_errors():
            return queries.last_row(self._handle.connection(), stream)

    def wait_for_events(self, *, after: int, timeout_s: float) -> bool:
        """Wait for events after the global seq `after`; return whether there are any."""
        deadline = time.monotonic() + timeout_s
        while self.head.seq <= after:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(POLL_S, left))
        return True

    def run_began_us(self, run: str) -> int:
        """Return when a run began, in UNIX microseconds; a fork begins with its own first event."""
        found = self.read(stream=run, types=("RunCreated", "RunForked"), newest=True, limit=1)
        return found[0].ts_us if found else 0

    def round_began_us(self, run: str) -> int:
        """Return when a run's last round began, in UNIX microseconds; 0 if it had none."""
        found = self.read(stream=run, types=("RoundStarted",), newest=True, limit=1)
        return found[0].ts_us if found else 0

    def get_blob(self, digest: str) -> bytes:
        """Return a blob's bytes; raises BlobMissing."""
        with self._mutex, sqlite_errors():
            return blobs.fetch_blob(self._handle.connection(), digest)

    # --- states ---

    def load_tip(self, stream: str, folded: FoldCache) -> Tip | None:
        """Return the current tip of a stream. Events that `folded` has seen are not folded again."""
        with self._mutex, sqlite_errors():
            return folded.load_tip(self._handle.connection(), stream)

    def run_state(self, run: str, to: int | None = None) -> RunState:
        """Return a run's state now, or right after run_seq `to`.

        Raises:
            StreamUnknown: there is no such run, or it has no such event.
        """
        with self._mutex, sqlite_errors():
            tip = snapshots.load_tip(self._handle.connection(), run, upto=to)
        if tip is None or not isinstance(tip.state, RunState):
            raise StreamUnknown(f"no run {run}" if to is None else f"no event {run}@{to}")
        return tip.state

    def replay_run(
        self, run: str, to: int | None = None, *, progress: ProgressCallback | None = None
    ) -> ReplayResult:
        """Fold a run from its first row and compare every hash; see `state.replay.replay_run`."""
        with self._mutex, sqlite_errors():
            return replay_run(self._handle.connection(), run, to, progress)

    def event_hash(self, run: str, run_seq: int) -> str:
        """Return the hash of an event of a run or its ancestors.

        Raises:
            StreamUnknown: there is no such run, or it has no such event.
        """
        with self._mutex, sqlite_errors():
            link = queries.link_at(self._handle.connection(), run, run_seq)
        if link is None:
            raise StreamUnknown(f"no event {run}@{run_seq}")
        return link[1].hex()

    def system_state(self, upto: int | None = None) -> SystemState:
        """Return the system stream's state; with `upto`, as it was after the event with that global seq."""
        last = None
        if upto is not None:
            if not self.run_seq(SYSTEM_STREAM):
                return SystemState()
            newest = self.read(stream=SYSTEM_STREAM, limit=1, newest=True, upto=upto)
            if not newest:
                return SystemState()
            last = newest[0].run_seq
        with self._mutex, sqlite_errors():
            tip = snapshots.load_tip(self._handle.connection(), SYSTEM_STREAM, upto=last)
        return tip.state if tip is not None and isinstance(tip.state, SystemState) else SystemState()

    def known_evaluations(self, cache_key: str) -> list[RecordedEvent]:
        """Return the events whose verdict was judged (not reused) under this cache key, oldest first.

        For each level, only the first pass and the first refusal are kept.
        """
        query = "SELECT seq FROM evaluations WHERE cache_key = ? ORDER BY seq"
        with self._mutex, sqlite_errors():
            connection = self._handle.connection()
            projections.require_current(connection)
            found = connection.execute(query, (cache_key,)).fetchall()
        return [item for (seq,) in found if (item := self.event_by_seq(seq)) is not None]

    # --- read models ---

    def run_summaries(self) -> list[dict[str, Any]]:
        """Return all runs, newest first, with their speed-up, spend in USD and counts of attempts."""
        return self._query_rows(lineage_read_models.RUNS_QUERY)

    def run_rows(self, run: str | None = None) -> list[dict[str, Any]]:
        """Return all runs, newest first, or only one (empty if there is no such run).

        Unlike `run_summaries`, this leaves out counts over all attempts, which take longer as the log grows.
        """
        if run is not None:
            return self._query_rows(f"{_RUN_ROWS} WHERE run = ?", run)
        return self._query_rows(f"{_RUN_ROWS} ORDER BY first_seq DESC")

    def active_runs(self) -> tuple[str, ...]:
        """Return the ids of runs that have not ended, oldest first."""
        return tuple(standing.run for standing in self.run_standings())

    def run_standings(self) -> list[RunStanding]:
        """Return the standings of the runs that have not ended, oldest first."""
        with self._mutex, sqlite_errors():
            connection = self._handle.connection()
            projections.require_current(connection)
            return [RunStanding._make(row) for row in connection.execute(_STANDINGS).fetchall()]

    def attempt_rows(
        self, run: str, *, upto: int | None = None, since: int | None = None
    ) -> list[dict[str, Any]]:
        """Return all candidates of a run and its ancestors; see `lineage_read_models.load_attempts`."""
        return self._query_lineage(
            lambda connection, name: lineage_read_models.load_attempts(connection, name, upto, since), run
        )

    def failed_plan_rows(self, run: str, *, upto: int | None = None) -> list[dict[str, Any]]:
        """Return the plans that a run and its ancestors have not, and why."""
        return self._query_lineage(
            lambda connection, name: lineage_read_models.load_failed_plans(connection, name, upto), run
        )

    def candidate_rows(self, run: str) -> list[dict[str, Any]]:
        """Return a run's correct kernels, fastest first, with the columns of `attempt_rows`."""
        return self._query_lineage(lineage_read_models.load_candidates, run)

    def run_ids(self) -> tuple[str, ...]:
        """Return the ids of all runs, oldest first."""
        query = "SELECT run FROM runs ORDER BY first_seq"
        with self._mutex, sqlite_errors():
            connection = self._handle.connection()
            projections.require_current(connection)
            return tuple(row[0] for row in connection.execute(query).fetchall())

    def spend_rows(self, run: str, *, upto: int | None = None) -> list[dict[str, Any]]:
        """Return what a run's paid calls cost, by role; `unknown` counts calls without a known price.

        With `upto`, as it was after that event of the run.
        """
        return self._query_lineage(
            lambda connection, name: lineage_read_models.load_spend(connection, name, upto), run
        )

    def _query_lineage(
        self, read: Callable[[sqlite3.Connection, str], lineage_read_models.RowDicts], run: str
    ) -> lineage_read_models.RowDicts:
        with self._mutex, sqlite_errors():
            connection = self._handle.connection()
            projections.require_current(connection)
            return read(connection, run)

    def _query_rows(self, sql: str, *parameters: object) -> list[dict[str, Any]]:
        with self._mutex, sqlite_errors():
            connection = self._handle.connection()
            projections.require_current(connection)
            cursor = connection.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
