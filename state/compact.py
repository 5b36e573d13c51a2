"""Compaction: a log made anew without the runs that are safe in archives, and without blobs nobody names.

No event is deleted in place. A run is left out only when an archive, read to its end, holds exactly what the
log holds of it, when it has ended and when no run that stays continues it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from state import blobs, queries, schema, snapshots
from state.archive import Archive, read
from state.copying import RowCopy, digests_in, reachable, stored_blobs
from state.errors import RunKept, StreamUnknown
from state.events import LogRewritten
from state.readonly import ReadOnly
from state.records import Progress
from state.rewrite import Rewritten, reopened, rewrite, stopped


def compact(home: Path, archives: Sequence[Path] = (), *, progress: Progress | None = None) -> Rewritten:
    """Make the log of `home` anew without the runs in `archives`; nobody may own the home.

    Raises:
        HomeError, LogError: the log cannot be used.
        BadArchive: an archive is damaged.
        StreamUnknown: the log has no such run.
        RunKept: a run goes on, went on after its archive was made, or is continued by one that stays.
        StorageFull, StorageFailed: the new file could not be written; the log is as it was.
    """
    leaving = {found.manifest.run: found for found in map(read, archives)}
    with stopped(home) as layout:
        reopened(layout)

        def build(draft: Path) -> LogRewritten:
            with closing(ReadOnly(layout)) as handle, closing(schema.open_writer(draft)) as new:
                for one in leaving.values():
                    _require_safe(handle.connection(), one, leaving)
                return _build(handle.connection(), new, leaving)

        return rewrite(layout, build, keep=False, progress=progress)


def _require_safe(old: sqlite3.Connection, one: Archive, leaving: Mapping[str, Archive]) -> None:
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


def _build(old: sqlite3.Connection, new: sqlite3.Connection, leaving: Mapping[str, Archive]) -> LogRewritten:
    schema.migrate(new)
    end = queries.head(old)
    named: set[str] = set()
    total = 0
    with schema.transaction(new):
        copy = RowCopy(new)
        for row in queries.log_rows(old, after=0):
            total += 1
            if row.stream not in leaving:
                copy.put(row)
                named |= digests_in(row.payload.encode())
        copy.end(end.seq, bytes.fromhex(end.hash))
        pruned = _copy_blobs(old, new, named)
        _copy_snapshots(old, new, leaving)
    return LogRewritten(
        verb="compact",
        detail=f"{len(leaving)} runs taken out, {pruned} blobs pruned",
        runs={run: f"archived in {one.path.name}, SHA-256 {one.sha256}" for run, one in leaving.items()},
        taken_out=total - copy.rows,
    )


def _copy_blobs(old: sqlite3.Connection, new: sqlite3.Connection, named: set[str]) -> int:
    needed = reachable(old, named)
    pruned = 0
    for blob in stored_blobs(old):
        keep = blob.encoding in blobs.GONE or blob.digest.hex() in needed
        blobs.store(new, [blob if keep else blobs.tombstone(blob, "pruned")])
        pruned += not keep
    return pruned


def _copy_snapshots(old: sqlite3.Connection, new: sqlite3.Connection, leaving: Mapping[str, Archive]) -> None:
    for stream, run_seq in sorted(snapshots.keys(old)):
        saved = snapshots.stored_at(old, stream, run_seq)
        if saved is not None and stream not in leaving:
            snapshots.store(new, saved)
