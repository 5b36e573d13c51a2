"""`verify_log` checks a whole log from its rows and names the first thing that is wrong.

It derives both hash chains anew, validates and folds every event, and compares recorded state hashes,
snapshots and read models with the result. It checks every blob against its digest, and the log's end against
the HEAD anchor. It only reads, page by page, so the owner may keep writing; a short transaction at the end
covers what was appended meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from state import blobs, projections, queries, snapshots, stream_fold
from state.chain import GENESIS, ChainVerifier
from state.errors import LogDamaged, TailLost, sqlite_errors
from state.events import Event, idempotency_key
from state.fold import FOLD_VERSION
from state.head import EMPTY_HEAD, Head, read_head
from state.home import HomeLayout
from state.opening import check_log_end
from state.readonly import ReadOnlyConnection
from state.records import EventRow, ProgressCallback, RecordedEvent, to_recorded_event
from state.snapshots import Tip, TipCache
from state.storage_checks import (
    LogFinding,
    check_blobs,
    check_pages,
    compare_read_models,
    finding_at_row,
    finding_from_error,
)
from state.stream_fold import StreamState
from state.upcast import decode_event

_BLOBS = "SELECT count(*), coalesce(sum(encoding NOT IN ('pruned', 'lost')), 0) FROM blob"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked and what was found; `findings` begins with the first bad row of the log.

    `head` is the last event that was reached. `anchored` says whether there was a HEAD anchor to compare
    with. `taken_out` counts events that are no longer in this log (archived, or cut by a repair), `pruned`
    counts such blobs.
    """

    events: int
    taken_out: int
    pruned: int
    state_hashes: int
    blobs: int
    snapshots: int
    head: Head
    anchored: bool
    findings: tuple[LogFinding, ...]

    @property
    def is_ok(self) -> bool:
        return not self.findings

    @property
    def first_finding(self) -> LogFinding | None:
        return self.findings[0] if self.findings else None

    def require_ok(self, what: str) -> None:
        """Raise LogDamaged if anything was found; the message says that `what` is damaged."""
        if self.first_finding is not None:
            raise LogDamaged(f"{what}: {self.first_finding}")


def verify_log(home: Path, *, deep: bool = True, progress: ProgressCallback | None = None) -> VerifyReport:
    """Check the log of `home`, owned or not; `deep=False` checks the chains and the anchor only.

    Raises:
        NoLog, HomeUnreadable, LogTooNew: this program cannot check it.
        LogDamaged: the file is not a log at all, or lacks tables.
        TailLost: there was a log, and it is gone.
    """
    findings: list[LogFinding] = []
    anchor = _read_anchor(HomeLayout(home), findings)
    return _run_checks(HomeLayout(home), anchor, findings, deep=deep, progress=progress)


def verify_file(path: Path, *, deep: bool = True, progress: ProgressCallback | None = None) -> VerifyReport:
    """Check a database that is no home's log, such as a backup or a log being built, as `verify_log` does.

    Raises:
        HomeError, LogError: as for `verify_log`.
    """
    return _run_checks(HomeLayout(path.parent, path.name), None, [], deep=deep, progress=progress)


def _run_checks(
    layout: HomeLayout,
    anchor: Head | None,
    findings: list[LogFinding],
    *,
    deep: bool,
    progress: ProgressCallback | None,
) -> VerifyReport:
    handle = ReadOnlyConnection(layout)
    try:
        with sqlite_errors(), closing(sqlite3.connect("", isolation_level=None)) as scratch:
            replay = _ReplayCheck(handle.connection(), scratch) if deep else None
            check_end = partial(check_log_end, layout, handle.connection(), anchor)
            return _VerifyPass(
                handle.connection(), replay, findings, progress, anchored=anchor is not None
            ).run_pass(check_end)
    finally:
        handle.close()


def _read_anchor(layout: HomeLayout, findings: list[LogFinding]) -> Head | None:
    """Read HEAD before the log, so that HEAD is never ahead of the rows that are read."""
    try:
        return read_head(layout.head)
    except LogDamaged as error:
        findings.append(finding_from_error("tail", error))
        return None


class _VerifyPass:
    """One pass over a log. It checks the chains and, if given a replay, all that follows from the rows."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        replay: _ReplayCheck | None,
        findings: list[LogFinding],
        progress: ProgressCallback | None,
        *,
        anchored: bool,
    ) -> None:
        self._connection = connection
        self._replay = replay
        self._findings = findings
        self._progress = progress
        self._anchored = anchored
        self._walk = ChainVerifier(
            seq=0,
            log_hash=GENESIS,
            before=partial(queries.link_before, connection),
            beyond=partial(queries.gap_end, connection),
        )
        self._head = EMPTY_HEAD
        self._rows = 0

    def run_pass(self, check_end: Callable[[], None]) -> VerifyReport:
        stored = kept = 0
        if self._replay is not None:
            with self._collect_errors("page"):
                self._findings += check_pages(self._connection)
        with self._collect_errors("page"):
            self._check_rows()
        with self._collect_errors("tail"):
            self._check_end(check_end)
        if self._replay is not None:
            self._findings += self._replay.findings
            with self._collect_errors("blob"):
                self._findings += check_blobs(self._connection)
        with self._collect_errors("blob"):
            stored, kept = self._connection.execute(_BLOBS).fetchone()
        self._findings.sort(key=lambda finding: (finding.seq is None, finding.seq or 0))
        return VerifyReport(
            events=self._rows,
            taken_out=self._walk.seq - self._rows,
            pruned=stored - kept,
            state_hashes=self._replay.state_hashes if self._replay else 0,
            blobs=kept if self._replay else 0,
            snapshots=self._replay.snapshots if self._replay else 0,
            head=self._head,
            anchored=self._anchored,
            findings=tuple(self._findings),
        )

    @contextmanager
    def _collect_errors(self, part: str) -> Iterator[None]:
        """Record what cannot be read as a finding, so that the other checks go on."""
        try:
            with sqlite_errors():
                yield
        except LogDamaged as error:
            last = f" (after event {self._walk.seq})" if part == "page" and self._walk.seq else ""
            self._findings.append(LogFinding(part, f"{error.what}{last}"))

    def _check_rows(self) -> None:
        try:
            self._check_committed()
            self._connection.execute("BEGIN")  # short: rows appended meanwhile, and the tables
            try:
                self._check_committed()
                if self._replay is not None:
                    self._replay.check_leftovers()
            finally:
                self._connection.execute("COMMIT")
        except LogDamaged as error:
            self._findings.append(
                finding_from_error("event" if error.seq == self._walk.seq else "chain", error)
            )

    def _check_committed(self) -> None:
        last = queries.last_row(self._connection)
        total = 0 if last is None else last.seq
        for row in queries.log_rows(self._connection, after=self._walk.seq, upto=total):
            self._walk.check_row(row)
            self._rows += 1
            self._head = Head(row.seq, row.stream, row.run_seq, row.hash.hex())
            if self._replay is not None:
                self._replay.check_row(row)
            if self._progress is not None and row.seq % queries.PAGE == 0:
                self._progress(row.seq, total)

    def _check_end(self, check_end: Callable[[], None]) -> None:
        try:
            check_end()
        except TailLost as error:
            self._findings.append(LogFinding("tail", str(error)))
        except LogDamaged as error:
            self._findings.append(finding_from_error("tail", error))


class _ReplayCheck:
    """Derives what the log stored beside each row, and compares."""

    def __init__(self, connection: sqlite3.Connection, scratch: sqlite3.Connection) -> None:
        self._connection = connection
        self._scratch = scratch
        self._tips = TipCache()
        self._page: list[RecordedEvent] = []
        self._kinds: set[tuple[str, int]] = set()
        self._saved = snapshots.snapshot_keys(connection)
        self.findings: list[LogFinding] = []
        self.state_hashes = 0
        self.snapshots = 0
        projections.create_tables(scratch)

    def check_row(self, row: EventRow) -> None:
        """Fold and project one row.

        Raises:
            LogDamaged: its event cannot be read, or cannot follow.
        """
        event = decode_event(row)
        tip = self._tips.get(row.stream) or self._load_tip_before(row)
        state = snapshots.fold_row(tip.state if tip else None, row, event)
        self._tips.put(Tip(row.stream, row.run_seq, row.hash, state))
        self._kinds.add((row.type, row.sv))
        self.findings += self._compare_row(row, event, state)
        self._page.append(to_recorded_event(row, event))
        if len(self._page) == queries.PAGE:
            self._project_page()

    def check_leftovers(self) -> None:
        """Compare the read models, and report snapshots whose event does not exist."""
        self._project_page()
        for type_, version in self._kinds - set(self._connection.execute("SELECT type, sv FROM kind")):
            self.findings.append(LogFinding("kind", f"{type_} version {version} is not in the list of kinds"))
        self.findings += compare_read_models(self._connection, self._scratch)
        self.findings += (
            LogFinding("snapshot", f"{stream}@{run_seq} is no event of the log")
            for stream, run_seq in self._saved
        )

    def _load_tip_before(self, row: EventRow) -> Tip | None:
        """Return the tip before `row` if it is not in memory: a fork's first row, or a run ended long ago."""
        return snapshots.load_tip(self._connection, row.stream, upto=row.run_seq - 1, snapshots=False)

    def _project_page(self) -> None:
        projections.project_events(self._scratch, self._page)
        self._page.clear()

    def _compare_row(self, row: EventRow, event: Event, state: StreamState) -> Iterator[LogFinding]:
        if row.idem != idempotency_key(event):
            yield finding_at_row("event", f"its idempotency key {row.idem} is not that of its content", row)
        if row.state_hash is not None and row.fold == FOLD_VERSION:
            self.state_hashes += 1
            if stream_fold.state_hash(state) != row.state_hash:
                yield finding_at_row("state_hash", "the state after it is not the one that was recorded", row)
        for digest in blobs.referenced_digests(event):
            if not blobs.has_blob(self._connection, digest):
                yield finding_at_row("blob", f"{row.type} names blob {digest}, which is not stored", row)
        if (row.stream, row.run_seq) in self._saved:
            yield from self._compare_snapshot(row, state)

    def _compare_snapshot(self, row: EventRow, state: StreamState) -> Iterator[LogFinding]:
        self._saved.remove((row.stream, row.run_seq))
        try:
            saved = snapshots.snapshot_at(self._connection, row.stream, row.run_seq)
            if saved is None:  # the owner replaced it meanwhile
                return
            self.snapshots += 1
            same = snapshots.restore_tip(self._connection, saved).state == state
        except (ValueError, LogDamaged) as error:
            yield finding_at_row("snapshot", str(error), row)
        else:
            if not same:
                yield finding_at_row("snapshot", "its state is not the one that the events give", row)
