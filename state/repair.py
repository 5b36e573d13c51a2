"""Repair: rebuilds a damaged log from its good rows and says what each run lost.

A run is cut at its first bad row: one that cannot be read or folded, whose content does not match its hash,
that does not continue its stream, or that does not match the hash in the row after it. Everything before that
row is saved, and so are all other runs; a run that continues a lost event is lost too. Nothing is guessed.

A run is paused, with the reason, if it was or may have been cut, or if one of its events names a damaged
blob.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from state import blobs, queries, salvage, schema, snapshots
from state.appender import Appender
from state.blobs import StoredBlob
from state.chain import GENESIS, ChainLink, check_link, row_hash
from state.copying import RowCopier
from state.errors import READ_ERRORS, LogDamaged, LogError, StateError
from state.events import LogRewritten, RunForked, RunPaused
from state.head import EMPTY_HEAD, Head, read_head, read_second_head
from state.home import HomeLayout
from state.log_rebuild import RebuildResult, append_to_draft, lock_home, rebuild_log
from state.model import RunStatus
from state.opening import IN_USE, has_wal, refresh_read_models
from state.records import EventRow, NewEvent, ProgressCallback
from state.snapshots import Tip, TipCache
from state.upcast import decode_event
from state.verify import verify_log

UNKNOWN_STREAM = "?"
"""Stands for the run of an event so damaged that even its run is unknown."""


@dataclass(slots=True)
class StreamLoss:
    """What was lost of one stream: `events` many, from run_seq `first` on, because of `why`."""

    stream: str
    first: int | None
    why: str
    events: int = 0

    def __str__(self) -> str:
        start = "" if self.first is None else f" from {self.stream}@{self.first} on"
        return f"{self.events} event{'' if self.events == 1 else 's'}{start}: {self.why}"


class RepairResult(NamedTuple):
    """What a repair lost, by run; which blobs; and the new log (None if nothing was wrong).

    `unknown` says what may be lost besides, where nothing is left that would show it.
    """

    lost: tuple[StreamLoss, ...]
    blobs: tuple[str, ...]
    rewritten: RebuildResult | None
    unknown: str = ""


def repair_log(home: Path, *, progress: ProgressCallback | None = None) -> RepairResult:
    """Rebuild the log of `home` from its sound rows; the old files are kept. No process may own the home.

    Raises:
        HomeError: the home cannot be used, or is owned.
        LogTooNew: a newer version wrote the log; it is left as it is.
        LogDamaged: nothing of it can be read; restore a backup.
        StorageFull, StorageFailed: the new file could not be written; the log is unchanged.
    """
    with lock_home(home) as layout:
        if _is_log_sound(home, progress):
            return RepairResult((), (), None)
        anchor, certain = _read_anchor(layout)
        work = _LogRepair(anchor)
        cut_off = not certain and not has_wal(layout)

        def build(draft: Path) -> LogRewritten:
            with closing(_open_damaged(layout)) as old, closing(schema.open_writer(draft)) as new:
                schema.migrate_schema(new)
                work.copy_good_rows(old, new)
                if not certain:
                    work.unknown = _describe_unknown(old, anchor, cut_off=cut_off)
                refresh_read_models(new)
                work.pause_runs(Appender(draft, new))
            return work.rebuild_event()

        rewritten = rebuild_log(layout, build, keep=True, progress=progress)
    lost, lost_blobs = tuple(work.lost.values()), tuple(sorted(work.lost_blobs))
    return RepairResult(lost, lost_blobs, rewritten, work.unknown)


def _is_log_sound(home: Path, progress: ProgressCallback | None) -> bool:
    try:
        return verify_log(home, progress=progress).is_ok
    except (LogError, *READ_ERRORS):  # also "too new": a damaged list of kinds may say so
        return False


def _read_anchor(layout: HomeLayout) -> tuple[Head, bool]:
    """Return the last event that is known to have been acknowledged, and whether none came after it.

    Only HEAD itself names the very last one; its second witness may be a second behind.
    """
    with suppress(LogDamaged):
        found = read_head(layout.head)
        return found or EMPTY_HEAD, found is not None and layout.head.exists()
    return read_second_head(layout.head) or EMPTY_HEAD, False


def _describe_unknown(old: sqlite3.Connection, anchor: Head, *, cut_off: bool) -> str:
    """Say what may be lost of a log without HEAD; nothing if its owner had closed it."""
    if _read_in_use(old) is None and not anchor.seq:
        return ""
    last = max(salvage.last_seq(old, anchor.seq), anchor.seq)
    if not anchor.seq:
        how_many = "nothing says how many"
    else:
        how_many = "at most those of a second" if anchor.seq >= last else "any number"
    wal = ", and its WAL is gone" if cut_off else ""
    return f"HEAD is gone{wal}: events after event {last} may be lost, {how_many}"


def _read_in_use(old: sqlite3.Connection) -> str | None:
    try:
        return schema.get_meta(old, IN_USE)
    except READ_ERRORS:
        return "unreadable"


def _open_damaged(layout: HomeLayout) -> sqlite3.Connection:
    """Open a damaged log for reading, if it is recognisable as one."""
    connection = sqlite3.connect(
        f"{layout.database.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None
    )
    try:
        connection.execute("PRAGMA query_only=1")
        _require_log(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_log(connection: sqlite3.Connection) -> None:
    if not schema.check_version(connection):
        raise LogDamaged("its database is empty; restore a backup")


class _LogRepair:
    """Copies the good rows and remembers what it leaves out."""

    def __init__(self, anchor: Head) -> None:
        self._anchor = anchor
        self._links: dict[str, ChainLink] = {}
        self._tips = TipCache()
        self._named: set[str] = set()
        self.lost: dict[str, StreamLoss] = {}
        self.lost_blobs: set[str] = set()
        self.unknown = ""

    def copy_good_rows(self, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        with schema.transaction(new):
            copy = RowCopier(new)
            last = salvage.last_seq(old, self._anchor.seq)
            where: dict[int, tuple[str, int]] | None = None
            log_hash = GENESIS
            for item, attested in _pair_attested(salvage.salvage_rows(old, last)):
                if isinstance(item, int):
                    where = salvage.event_places(old) if where is None else where
                    self._record_unreadable(item, where)
                else:
                    self._copy_row(new, copy, item, attested=attested)
                    log_hash = item.hash
            if copy.rows == 0 < last:
                raise LogDamaged("no event of it can be read; restore a backup")
            same_end = self._anchor.seq == last
            copy.record_end(last, bytes.fromhex(self._anchor.hash) if same_end else log_hash)
            self._copy_blobs(old, new)

    # --- rows ---

    def _record_unreadable(self, seq: int, where: dict[int, tuple[str, int]]) -> None:
        stream, run_seq = where.get(seq, (UNKNOWN_STREAM, None))
        self._record_loss(stream, run_seq, f"event {seq} is missing or cannot be read")

    def _record_loss(self, stream: str, run_seq: int | None, why: str) -> None:
        self.lost.setdefault(stream, StreamLoss(stream, run_seq, why)).events += 1

    def _copy_row(
        self, new: sqlite3.Connection, copy: RowCopier, row: EventRow, *, attested: bytes | None
    ) -> None:
        if row.stream in self.lost:
            self._record_loss(row.stream, row.run_seq, "")
            return
        try:
            check_link(row, self._links.get(row.stream) or self._expected_link(new, row))
            event = decode_event(row)  # after the hash check: a newer version's event is not damage
            _require_attested(row, attested)
            before = self._tips.get(row.stream) or self._tip_before(new, row)
            state = snapshots.fold_row(before.state if before else None, row, event)
            copy.copy_row(row)
        except LogDamaged as error:
            self._attribute_missing(row)
            self._record_loss(row.stream, row.run_seq, f"event {row.seq} {error.what}")
        except sqlite3.IntegrityError as error:
            self._record_loss(row.stream, row.run_seq, f"event {row.seq} {error}")
        else:
            self._tips.put(Tip(row.stream, row.run_seq, row.hash, state))
            self._links[row.stream] = (row.run_seq, row.hash)
            self._named.update(blobs.referenced_digests(event))

    def _attribute_missing(self, row: EventRow) -> None:
        """Attribute unreadable events to this row's stream if its run_seqs have a gap of that size."""
        last, _ = self._links.get(row.stream, (row.run_seq - 1, b""))
        unknown = self.lost.get(UNKNOWN_STREAM)
        missing = row.run_seq - 1 - last
        if unknown is None or not 0 < missing <= unknown.events:
            return
        self.lost[row.stream] = StreamLoss(row.stream, last + 1, unknown.why, missing)
        unknown.events -= missing
        if unknown.events == 0:
            del self.lost[UNKNOWN_STREAM]

    def _expected_link(self, new: sqlite3.Connection, row: EventRow) -> ChainLink | None:
        """Return what a stream's first row must continue: nothing, or a saved event of its parent."""
        event = decode_event(row) if row.type == RunForked.__name__ else None
        if isinstance(event, RunForked):
            return queries.link_at(new, event.parent, event.parent_seq)
        return (0, GENESIS)

    def _tip_before(self, new: sqlite3.Connection, row: EventRow) -> Tip | None:
        event = decode_event(row)
        if isinstance(event, RunForked):
            return snapshots.load_tip(new, event.parent, upto=event.parent_seq)
        return snapshots.load_tip(new, row.stream, upto=row.run_seq - 1)

    # --- blobs ---

    def _copy_blobs(self, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        for blob in salvage.salvage_blobs(old):
            sound = blob.encoding in blobs.TOMBSTONE_REASONS or _is_sound(blob)
            blobs.store_blobs(new, [blob if sound else blobs.make_tombstone(blob, "lost")])
            if not sound:
                self.lost_blobs.add(blob.digest.hex())
        for digest in self._named:
            if not blobs.has_blob(new, digest):
                self.lost_blobs.add(digest)
                blobs.store_blobs(new, [StoredBlob(bytes.fromhex(digest), 0, "lost", b"")])

    # --- what follows ---

    def pause_runs(self, appender: Appender) -> None:
        """Pause the runs that lost something, until a person has looked at them."""
        found = appender.connection.execute("SELECT run FROM runs WHERE status = ?", (RunStatus.RUNNING,))
        for (run,) in found.fetchall():
            why = self._pause_reason(appender.connection, run)
            if why is not None:
                append_to_draft(appender, [NewEvent(run, RunPaused(reason=f"repaired: {why}"))])

    def _pause_reason(self, connection: sqlite3.Connection, run: str) -> str | None:
        if run in self.lost:
            return f"lost {self.lost[run]}"
        if UNKNOWN_STREAM in self.lost:
            return f"this or another run lost {self.lost[UNKNOWN_STREAM]}"
        query = "SELECT 1 FROM event WHERE stream = ? AND run_seq > ? AND run_seq <= ? AND instr(payload, ?)"
        for digest in sorted(self.lost_blobs):
            for segment in queries.lineage(connection, run):
                if connection.execute(query, (*segment, digest)).fetchone():
                    return f"lost blob {digest}"
        return None

    def rebuild_event(self) -> LogRewritten:
        events = sum(loss.events for loss in self.lost.values())
        unknown = f"; {self.unknown}" if self.unknown else ""
        return LogRewritten(
            verb="repair",
            detail=f"{events} events and {len(self.lost_blobs)} blobs were lost{unknown}",
            runs={stream: f"lost {loss}" for stream, loss in self.lost.items()},
            taken_out=events,
        )


def _pair_attested(items: Iterator[EventRow | int]) -> Iterator[tuple[EventRow | int, bytes | None]]:
    """Yield each item with its hash according to the sound row right after it, or with None."""
    before: EventRow | int | None = None
    for item in items:
        if before is not None:
            yield before, _attested_hash(before, item)
        before = item
    if before is not None:
        yield before, None


def _attested_hash(before: EventRow | int, item: EventRow | int) -> bytes | None:
    if isinstance(item, int) or isinstance(before, int) or item.seq != before.seq + 1:
        return None
    return item.log_prev if row_hash(item[:-1]) == item.hash else None


def _require_attested(row: EventRow, attested: bytes | None) -> None:
    if attested not in (None, row.hash):
        raise LogDamaged("is not the event that the one after it was written after")


def _is_sound(blob: StoredBlob) -> bool:
    with suppress(StateError):
        blobs.unpack_blob(blob)
        return True
    return False
