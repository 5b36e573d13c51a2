"""Rebuilds a log's file while no process owns it: a draft beside it is verified, then replaces it.

The replacement is one rename: a crash before it leaves the old log, a crash after it the new one. The draft
notes which HEAD it replaces (`opening.note_replaced`), so the anchor may be renewed after the rename. An
SQLite file must never meet another file's WAL, so the old log's WAL is merged into its file first.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from state import queries, schema
from state.appender import Appender, prepare_append
from state.atomic_files import create_file, fsync_path
from state.crash import crash_point
from state.errors import READ_ERRORS, LogDamaged, NoLog, StateError, StorageFailed, sqlite_errors
from state.events import LogRewritten
from state.head import Head, read_head, write_head
from state.home import HomeLayout, prepare_home
from state.home_files import refuse_link
from state.lock import HomeLock
from state.model import SYSTEM_STREAM
from state.opening import (
    IN_USE,
    note_replaced,
    open_appender,
    refresh_read_models,
    refuse_other_owner,
    settle_log,
)
from state.readonly import ReadOnlyConnection
from state.records import NewEvent, ProgressCallback
from state.storage_checks import compare_schema
from state.upcast import check_kinds
from state.verify import VerifyReport, verify_file

DRAFT_NAME = "events.db.new"

DraftBuilder = Callable[[Path], LogRewritten]
"""Builds a database in the empty file at the given path; returns the event that records the rebuild."""

_log = logging.getLogger(__name__)


class RebuildResult(NamedTuple):
    """The event that records the rebuild, the report on the new file, and where the old one is kept."""

    event: LogRewritten
    report: VerifyReport
    kept: Path | None


@contextmanager
def lock_home(home: Path, *, create: bool = False) -> Iterator[HomeLayout]:
    """Hold a home's lock, so that no other process writes; no error of SQLite leaves the block.

    Raises:
        HomeError: the home cannot be used, or another process owns it.
    """
    layout = prepare_home(home, create=create)
    lock = HomeLock(layout.lock)
    try:
        with sqlite_errors():
            yield layout
    finally:
        lock.release()


def rebuild_log(
    layout: HomeLayout, build: DraftBuilder, *, keep: bool, progress: ProgressCallback | None = None
) -> RebuildResult:
    """Replace the log by what `build` makes; the caller holds the lock.

    The old files are kept in `replaced/` if `keep`, otherwise they are deleted.

    Raises:
        LogDamaged: the new file does not verify; the log is unchanged.
        StorageFull, StorageFailed: likewise.
    """
    new = HomeLayout(layout.home, DRAFT_NAME)
    discard_draft(new)
    try:
        create_file(new.database, 0o640)
        event = build(new.database)
        _complete_draft(new.database, event, _read_anchor(layout))
        report = verify_file(new.database, progress=progress)
        report.require_ok("what was made of it does not verify, and was thrown away")
        fsync_path(new.database)
        crash_point("rewrite.proved")
        kept = _settle_old_log(layout, keep=keep) if layout.database.exists() else None
        replace_log(new, layout, report.head)
    finally:
        discard_draft(new)
    return RebuildResult(event, report, kept)


def copy_database(
    source: sqlite3.Connection, path: Path, *, progress: ProgressCallback | None = None
) -> Head:
    """Copy a whole database to the empty file `path`; its owner may keep writing. Return the copy's head.

    The surrounding read transaction fixes one state of the source; without it the copy would restart at every
    commit.
    """
    source.execute("BEGIN")
    try:
        head = queries.log_head(source)
        with closing(sqlite3.connect(path, isolation_level=None)) as target:
            source.backup(target, pages=_PAGES, progress=_backup_progress(progress))
            target.execute("PRAGMA journal_mode=DELETE").fetchall()  # one file, with none beside it
            target.execute("DELETE FROM meta WHERE key = ?", (IN_USE,))
    finally:
        source.execute("COMMIT")
    return head


_PAGES = 2000
"""Pages between two progress reports: 8 MB."""


def _backup_progress(progress: ProgressCallback | None) -> Callable[[int, int, int], None] | None:
    if progress is None:
        return None
    return lambda _, remaining, total: progress(total - remaining, total)


def migrate_log(home: Path) -> tuple[int, int]:
    """Bring the log of `home` to today's schema and read models; return the schema before and after.

    Raises:
        HomeError, LogError: it cannot be opened for writing, or is owned.
    """
    with lock_home(home) as layout:
        if not layout.database.exists():
            raise NoLog(f"{home}: holds no log")
        with closing(ReadOnlyConnection(layout)) as handle:
            before = schema.read_pragma(handle.connection(), "user_version")
        reopen_and_settle(layout)
    return before, schema.SCHEMA_VERSION


def reopen_and_settle(layout: HomeLayout) -> None:
    """Open the log as its owner would, checked and migrated, and close it again as a single file."""
    with closing(open_appender(layout).connection) as connection:
        settle_log(connection)


def _read_anchor(layout: HomeLayout) -> Head | None:
    try:
        return read_head(layout.head)
    except LogDamaged:
        return None  # no use for comparison; a new one is written at the end


def _complete_draft(path: Path, event: LogRewritten, anchor: Head | None) -> None:
    """Bring a draft up to date: schema, read models, the event of its rebuild, the HEAD that it replaces."""
    with closing(schema.open_writer(path)) as connection:
        schema.check_version(connection)
        for finding in compare_schema(connection):  # before a foreign trigger could act
            raise LogDamaged(finding.what)
        schema.migrate_schema(connection)
        check_kinds(connection.execute("SELECT type, sv FROM kind").fetchall())
        refresh_read_models(connection)
        appender = Appender(path, connection)
        append_to_draft(appender, [NewEvent(SYSTEM_STREAM, event)])
        with schema.transaction(connection):
            schema.set_meta(connection, "verified", f"{appender.head.seq} {appender.head.hash}")
            if anchor is not None:
                note_replaced(connection, anchor)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def append_to_draft(appender: Appender, events: list[NewEvent]) -> None:
    """Append events to a draft.

    Raises:
        StateError: the events were not stored.
    """
    (outcome,) = appender.append([prepare_append(events)])
    if isinstance(outcome, StateError):
        raise outcome


def _settle_old_log(layout: HomeLayout, *, keep: bool) -> Path | None:
    """Merge the old log's WAL into its file, and keep the log if asked to; return where."""
    crash_point("rewrite.before_settle")
    refuse_link(layout.database)
    try:
        with closing(schema.open_writer(layout.database)) as old:
            refuse_other_owner(old, layout.home)
            settle_log(old)
            _, pages, done = old.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if pages != done:
            raise StorageFailed(
                f"{layout.home}: a reader holds on to an old state of the log; end it and retry"
            )
    except READ_ERRORS as error:  # too damaged to merge: keep its files as they are
        _log.warning("the old log's WAL could not be brought into its file: %s", error)
        keep = True
    kept = _keep_old_log(layout) if keep else None
    crash_point("rewrite.settled")
    return kept


def _keep_old_log(layout: HomeLayout) -> Path:
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    refuse_link(layout.replaced_logs)
    layout.replaced_logs.mkdir(mode=0o700, exist_ok=True)
    number = sum(1 for path in layout.replaced_logs.glob(f"{name}*"))
    folder = layout.replaced_logs / (f"{name}.{number}" if number else name)
    folder.mkdir(mode=0o700)
    for path in (layout.database, layout.wal, layout.head):
        if path.is_file():
            _link_file(path, folder / path.name)
    fsync_path(folder)
    fsync_path(layout.replaced_logs)
    return folder


def _link_file(path: Path, to: Path) -> None:
    """Hard-link a file; if the file system has no hard links, copy it."""
    try:
        os.link(path, to)
    except OSError:
        shutil.copyfile(path, to)
        fsync_path(to)


def replace_log(new: HomeLayout, layout: HomeLayout, head: Head) -> None:
    """Give a finished draft the name of the log, whose WAL has nothing that its file lacks."""
    for path in (layout.wal, layout.shm):
        path.unlink(missing_ok=True)
    fsync_path(layout.home)
    crash_point("rewrite.before_rename")
    new.database.rename(layout.database)
    fsync_path(layout.home)
    crash_point("rewrite.renamed")
    write_head(layout.head, head)


def discard_draft(new: HomeLayout) -> None:
    """Delete what is left of a draft."""
    for path in (new.database, new.wal, new.shm, new.database.with_name(f"{new.name}-journal")):
        path.unlink(missing_ok=True)
