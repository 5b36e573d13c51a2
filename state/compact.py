"""Compaction: rebuilds a log without archived runs and without blobs that no event names.

No event is deleted in place. A run is left out only if it has ended, if an archive was read to its end and
holds exactly the log's data of the run, and if no remaining run continues it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from state import blobs, projections, queries, schema, snapshots
from state.archive import RunArchive, read_archive
from state.chain import ChainVerifier
from state.copying import RowCopier, find_digests, iterate_blobs, reachable_blobs
from state.errors import RunKept, StreamUnknown
from state.events import LogRewritten
from state.head import Head
from state.log_rebuild import RebuildResult, lock_home, rebuild_log, reopen_and_settle
from state.readonly import ReadOnlyConnection
from state.records import ProgressCallback, to_recorded_event
from state.upcast import decode_event


def compact_log(
    home: Path, archives: Sequence[Path] = (), *, progress: ProgressCallback | None = None
) -> RebuildResult:
    """Rebuild the log of `home` without the runs in `archives`; no process may own the home.

    Raises:
        HomeError, LogError: the log cannot be used.
        BadArchive: an archive is damaged.
        StreamUnknown: the log has no such run.
        RunKept: a run has not ended, went on after it was archived, or is continued by a remaining run.
        StorageFull, StorageFailed: the new file could not be written; the log is unchanged.
    """
    leaving = {found.manifest.run: found for found in map(read_archive, archives)}
    with lock_home(home) as layout:
        reopen_and_settle(layout)

        def build(draft: Path) -> LogRewritten:
            with closing(ReadOnlyConnection(layout)) as handle, closing(schema.open_writer(draft)) as new:
                schema.migrate_schema(new)
                copy = RemainingRows(handle.connection(), new, leaving)
                copy.copy_all()
                return copy.make_event()

        return rebuild_log(layout, build, keep=False, progress=progress)


def _require_archived(old: sqlite3.Connection, one: RunArchive, leaving: Mapping[str, RunArchive]) -> None:
    run = one.manifest.run
    row = queries.last_row(old, run)
    if row is None:
        raise StreamUnknown(f"{one.path}: no run {run} in this log")
    if row.hash != one.head:
        raise RunKept(f"{run}: went on after {one.path} was made; archive it again")
    if not one.manifest.ended:
        raise RunKept(f"{run}: has not ended; cancel it first, or leave it in")
    for (child,) in old.execute("SELECT id FROM stream WHERE parent = ?", (run,)).fetchall():
        if child not in leaving:
            raise RunKept(f"{run}: {child} continues it; take both out, or none")


class RemainingRows:
    """Copies what remains of a log into an empty one: at first all of it, then what was appended since."""

    def __init__(
        self, old: sqlite3.Connection, new: sqlite3.Connection, leaving: Mapping[str, RunArchive]
    ) -> None:
        self._old = old
        self._new = new
        self._leaving = leaving
        self._copier = RowCopier(new)
        self._seen = 0
        self._pruned = 0

    @property
    def rows(self) -> int:
        """How many rows were copied."""
        return self._copier.rows

    def copy_all(self, *, progress: ProgressCallback | None = None) -> None:
        """Copy the rows of all runs that stay, and the blobs that these name.

        Raises:
            StreamUnknown, RunKept: a run may not be taken out.
        """
        self._old.execute("BEGIN")  # one state of a log that may be appended to
        try:
            for one in self._leaving.values():
                _require_archived(self._old, one, self._leaving)
            self._copy_rows(queries.log_head(self._old), progress)
        finally:
            self._old.execute("COMMIT")

    def _copy_rows(self, end: Head, progress: ProgressCallback | None) -> None:
        named: set[str] = set()
        with schema.transaction(self._new):
            for row in queries.log_rows(self._old, after=0, upto=end.seq):
                self._seen += 1
                if row.stream not in self._leaving:
                    self._copier.copy_row(row)
                    named |= find_digests(row.payload.encode())
                if progress is not None and row.seq % queries.PAGE == 0:
                    progress(row.seq, end.seq)
            self._copier.record_end(end.seq, bytes.fromhex(end.hash))
            self._pruned = _copy_blobs(self._old, self._new, named)
            _copy_snapshots(self._old, self._new, self._leaving)
        self._walk = ChainVerifier(
            seq=end.seq,
            log_hash=bytes.fromhex(end.hash),
            before=lambda row: queries.link_before(self._new, row),
        )

    def copy_news(self) -> int:
        """Copy and project the rows that were appended since, with their blobs; return how many there were.

        Raises:
            RunKept: a run that was to be taken out went on.
            LogDamaged: a row does not continue the log.
        """
        rows = list(queries.log_rows(self._old, after=self._walk.seq))
        if gone := next((row.stream for row in rows if row.stream in self._leaving), None):
            raise RunKept(f"{gone}: went on after it was archived; archive it again")
        named = {digest for row in rows for digest in find_digests(row.payload.encode())}
        with schema.transaction(self._new):
            for row in rows:
                self._walk.check_row(row)
                self._copier.copy_row(row)
            blobs.store_blobs(
                self._new, map(partial(blobs.find_blob, self._old), reachable_blobs(self._old, named))
            )
            projections.project_events(self._new, (to_recorded_event(row, decode_event(row)) for row in rows))
        self._seen += len(rows)
        return len(rows)

    def make_event(self) -> LogRewritten:
        """Return the event that records what was left out."""
        return LogRewritten(
            verb="compact",
            detail=f"{len(self._leaving)} runs taken out, {self._pruned} blobs pruned",
            runs={
                run: f"archived in {one.path.name}, SHA-256 {one.sha256}"
                for run, one in self._leaving.items()
            },
            taken_out=self._seen - self.rows,
        )


def _copy_blobs(old: sqlite3.Connection, new: sqlite3.Connection, named: set[str]) -> int:
    needed = reachable_blobs(old, named)
    pruned = 0
    for blob in iterate_blobs(old):
        keep = blob.encoding in blobs.TOMBSTONE_REASONS or blob.digest.hex() in needed
        blobs.store_blobs(new, [blob if keep else blobs.make_tombstone(blob, "pruned")])
        pruned += not keep
    return pruned


def _copy_snapshots(
    old: sqlite3.Connection, new: sqlite3.Connection, leaving: Mapping[str, RunArchive]
) -> None:
    for stream, run_seq in sorted(snapshots.snapshot_keys(old)):
        saved = snapshots.snapshot_at(old, stream, run_seq)
        if saved is not None and stream not in leaving:
            snapshots.store_snapshot(new, saved)
