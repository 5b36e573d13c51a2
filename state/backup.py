"""Makes and restores backups while the log's owner keeps running.

A backup is one SQLite file: the whole log as it was at one event, checked before it gets its name. It is read
through a second, read-only connection while the owner goes on writing.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from state.crash import crash_point
from state.errors import LogDamaged, NoLog, sqlite_errors
from state.events import LogRewritten
from state.head import read_head
from state.home import HomeLayout
from state.log_rebuild import RebuildResult, copy_database, lock_home, rebuild_log
from state.opening import check_log_end
from state.output_files import check_output, open_output
from state.readonly import ReadOnlyConnection
from state.records import ProgressCallback
from state.storage_checks import check_pages
from state.verify import VerifyReport, verify_file


def backup_log(
    home: Path, target: Path, *, replace: bool = False, progress: ProgressCallback | None = None
) -> VerifyReport:
    """Write the log of `home` to the file `target`, whether its owner runs or not.

    `progress` counts pages. The copy's hash chains are derived anew, and its end is compared with the log's.
    A log that does not verify gives no backup.

    Raises:
        BadTarget: `target` cannot be written; see `state.output_files.check_output`.
        HomeError, LogError: there is nothing to back up, or it is damaged.
        StorageFull, StorageFailed: the copy could not be written.
    """
    layout = HomeLayout(home)
    check_output(home, target, replace=replace)  # before the log, which may take long to read
    anchor = read_head(layout.head)  # read before the log: HEAD is never ahead of what is committed
    with (
        closing(ReadOnlyConnection(layout)) as handle,
        open_output(home, target, replace=replace, mode=0o600) as part,
        sqlite_errors(),
    ):
        check_log_end(layout, handle.connection(), anchor)
        head = copy_database(handle.connection(), part, progress=progress)
        crash_point("backup.copied")
        report = _verify_copy(part)
        if report.head != head:
            raise LogDamaged(f"the copy ends at event {report.head.seq}, the log ended at {head.seq}")
    return report


def _verify_copy(path: Path) -> VerifyReport:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        for finding in check_pages(connection):
            raise LogDamaged(f"the copy is not sound: {finding}")
    report = verify_file(path, deep=False)
    report.require_ok("the copy is not sound")
    return report


def restore_log(home: Path, source: Path, *, progress: ProgressCallback | None = None) -> RebuildResult:
    """Replace a home's log by a backup and keep the old log beside it; no process may own the home.

    The whole backup is verified first, events and all. `progress` counts events.

    Raises:
        HomeError: the home cannot be used, or is owned.
        NoLog: `source` is no file, or holds no log.
        LogError: `source` is damaged, or from a newer version; the home is unchanged.
        StorageFull, StorageFailed: likewise.
    """
    if not os.path.isfile(source):  # noqa: PTH113 - pathlib's raises for a name that is too long
        raise NoLog(f"{source}: there is no such backup")

    def build(draft: Path) -> LogRewritten:
        handle = ReadOnlyConnection(HomeLayout(source.parent, source.name))
        try:
            head = copy_database(handle.connection(), draft)
        finally:
            handle.close()
        return LogRewritten(verb="restore", detail=f"from {source.name}, which ends at event {head.seq}")

    with lock_home(home, create=True) as layout:
        return rebuild_log(layout, build, keep=True, progress=progress)
