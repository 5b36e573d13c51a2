"""Compaction while the log's owner works: a new file is made beside the log, and takes its place at the end.

All but the end goes on beside appends: the rows that stay are copied and proved, then those that came
meanwhile, in ever shorter rounds. Only for the last few, and for the change of files, do appends wait.
Readers notice that another file has the log's name, and open it (`state.readonly`). A crash leaves the old
log or the new one, as with `state.log_rebuild`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from state import schema
from state.appender import Appender
from state.archive import read_archive
from state.atomic_files import create_file, fsync_path
from state.compact import RemainingRows
from state.crash import crash_point
from state.errors import StorageFailed, sqlite_errors
from state.events import LogRewritten
from state.head import Head
from state.home import HomeLayout
from state.log import EventLog
from state.log_rebuild import DRAFT_NAME, RebuildResult, append_to_draft, discard_draft, replace_log
from state.model import SYSTEM_STREAM
from state.opening import note_in_use, note_replaced, refresh_read_models, settle_log
from state.readonly import ReadOnlyConnection
from state.records import NewEvent, ProgressCallback
from state.verify import VerifyReport, verify_file

FEW_EVENTS = 32
"""Appends wait only while so many events, or fewer, are copied."""

MAX_ROUNDS = 50
"""Rounds of copying what came meanwhile; where appends are faster than that, they wait a little longer."""


def compact_open_log(
    log: EventLog, archives: Sequence[Path] = (), *, progress: ProgressCallback | None = None
) -> RebuildResult:
    """Compact an open log as `compact_log` does a closed one; call this outside of event loops.

    Raises:
        BadArchive, StreamUnknown, RunKept, LogDamaged, StorageFull, StorageFailed: as for `compact_log`; the
            log is as it was, and goes on.
    """
    leaving = {found.manifest.run: found for found in map(read_archive, archives)}
    layout, draft = HomeLayout(log.home), HomeLayout(log.home, DRAFT_NAME)
    discard_draft(draft)
    try:
        with sqlite_errors(), closing(ReadOnlyConnection(layout)) as handle:
            create_file(draft.database, 0o640)
            with closing(schema.open_writer(draft.database)) as new:
                copy = RemainingRows(handle.connection(), new, leaving)
                report = _make_draft(copy, new, draft, progress=progress)
                crash_point("compaction.proved")
                with log.pause_appends() as appender:
                    copy.copy_news()
                    event = copy.make_event()
                    head = _complete_draft(new, draft, event, appender.head)
                    _change_files(log, appender, draft, head=head)
    finally:
        discard_draft(draft)
    return RebuildResult(event, replace(report, events=copy.rows + 1, head=head), None)


def _make_draft(
    copy: RemainingRows, new: sqlite3.Connection, draft: HomeLayout, *, progress: ProgressCallback | None
) -> VerifyReport:
    """Copy and prove the log as it is now, then what came meanwhile, until only a few events are missing."""
    schema.migrate_schema(new)
    copy.copy_all(progress=progress)
    refresh_read_models(new)
    report = verify_file(draft.database, progress=progress)
    report.require_ok("what was made of it does not verify, and was thrown away")
    for _ in range(MAX_ROUNDS):
        if copy.copy_news() <= FEW_EVENTS:
            break
    new.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    fsync_path(draft.database)
    return report


def _complete_draft(new: sqlite3.Connection, draft: HomeLayout, event: LogRewritten, anchor: Head) -> Head:
    """Record the compaction in the draft, and which HEAD it replaces; make one file of it."""
    appender = Appender(draft.database, new)
    append_to_draft(appender, [NewEvent(SYSTEM_STREAM, event)])
    with schema.transaction(new):
        schema.set_meta(new, "verified", f"{appender.head.seq} {appender.head.hash}")
        note_replaced(new, anchor)
    new.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    new.close()
    fsync_path(draft.database)
    return appender.head


def _change_files(log: EventLog, appender: Appender, draft: HomeLayout, *, head: Head) -> None:
    """Put the draft in the place of the log; appends wait meanwhile, and go on in the new file."""
    layout = HomeLayout(log.home)
    log.require_in_place()
    try:
        settle_log(appender.connection)
        busy, pages, done = appender.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy or pages != done:
            raise StorageFailed("a reader holds on to an old state of the log; end it and retry")
        appender.change_file(lambda: replace_log(draft, layout, head))
    finally:
        note_in_use(appender.connection, log.home)
