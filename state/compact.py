"""Compaction: rebuilds a log without archived runs and without blobs that no event names.

No event is deleted in place. A run is left out only if it has ended, if an archive was read to its end and
holds exactly the log's data of the run, and if no remaining run continues it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from state import blobs, queries, schema, snapshots
from state.archive import RunArchive, read_archive
from state.copying import RowCopier, find_digests, iterate_blobs, reachable_blobs
from state.errors import RunKept, StreamUnknown
from state.events import LogRewritten
from state.log_rebuild import RebuildResult, lock_home, rebuild_log, reopen_and_settle
from state.readonly import ReadOnlyConnection
from state.records import ProgressCallback


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
                for one in leaving.values():
                    _require_archived(handle.connection(), one, leaving)
                return _copy_remaining(handle.connection(), new, leaving)

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


def _copy_remaining(
    old: sqlite3.Connection, new: sqlite3.Connection, leaving: Mapping[str, RunArchive]
) -> LogRewritten:
    schema.migrate_schema(new)
    end = queries.log_head(old)
    named: set[str] = set()
    total = 0
    with schema.transaction(new):
        copy = RowCopier(new)
        for row in queries.log_rows(old, after=0):
            total += 1
            if row.stream not in leaving:
                copy.copy_row(row)
                named |= find_digests(row.payload.encode())
        copy.record_end(end.seq, bytes.fromhex(end.hash))
        pruned = _copy_blobs(old, new, named)
        _copy_snapshots(old, new, leaving)
    return LogRewritten(
        verb="compact",
        detail=f"{len(leaving)} runs taken out, {pruned} blobs pruned",
        runs={run: f"archived in {one.path.name}, SHA-256 {one.sha256}" for run, one in leaving.items()},
        taken_out=total - copy.rows,
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
