"""Opens a log for writing; checks the lock, the version, the anchor and the tail, in turn.

This is quick however long the log is. The writer itself verified everything up to the last verified event,
which it notes with every snapshot; only later rows are derived again here.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from state import projections, queries, schema
from state.appender import Appender
from state.chain import GENESIS, ChainVerifier
from state.crash import crash_point
from state.disk_reserve import DiskReserve
from state.errors import HomeLocked, LogDamaged, NoLog, TailLost, WalLost, sqlite_code, sqlite_errors
from state.head import EMPTY_HEAD, Head, read_head, write_head
from state.home import HomeLayout, home_identity, prepare_home
from state.home_files import refuse_link
from state.lock import HomeLock, process_start, read_boot_id
from state.records import to_recorded_event
from state.upcast import check_kinds, decode_event

SAFE_SQLITE = (3, 51, 3)
"""Older versions can corrupt a WAL that two connections checkpoint at once; a single writer is safe."""

IN_USE = "in_use"
"""The note that an owner keeps in the log while it may write: its pid, the boot's id, and its start."""

_NO_ROOM_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
"""SQLite's error codes when it finds no room for its WAL or its shared memory."""

_log = logging.getLogger(__name__)


def open_log(home: Path, *, create: bool, full_check: bool) -> tuple[HomeLayout, HomeLock, Appender]:
    """Lock a home; return its layout, the held lock, and its appender.

    Raises:
        StateError: as listed for `EventLog.open`; the lock is released then.
    """
    layout = prepare_home(home, create=create)
    if not create and not layout.database.exists():
        require_never_written(layout)
        raise NoLog(f"{home}: holds no log")
    lock = HomeLock(layout.lock)
    try:
        with sqlite_errors():
            crash_point("open.locked")
            return layout, lock, _open_with_reserve(layout, full_check=full_check)
    except BaseException:
        lock.release()
        raise


def _open_with_reserve(layout: HomeLayout, *, full_check: bool) -> Appender:
    """Open the log; on a full disk, free the reserve first, because SQLite needs some space to open."""
    try:
        return _open_in_use(layout, full_check=full_check)
    except (sqlite3.Error, OSError) as error:
        full = isinstance(error, OSError) or sqlite_code(error) in _NO_ROOM_CODES
        if not (full and DiskReserve(layout.reserve).release()):
            raise
        _log.warning("the reserve was given up to open the log: %s", error)
        return _open_in_use(layout, full_check=full_check)


def _open_in_use(layout: HomeLayout, *, full_check: bool) -> Appender:
    appender = open_appender(layout, full_check=full_check)
    try:
        note_in_use(appender.connection, layout.home)
    except BaseException:
        appender.connection.close()
        raise
    return appender


def open_appender(layout: HomeLayout, *, full_check: bool = False) -> Appender:
    """Open the log for writing; the caller holds the home's lock.

    Raises:
        LogError, HomeUnreadable: as listed for `EventLog.open`.
        sqlite3.Error: not mapped.
    """
    if sqlite3.sqlite_version_info < SAFE_SQLITE:
        text = "SQLite %s has a defect when several connections write; here one alone does"
        _log.debug(text, sqlite3.sqlite_version)
    for path in (layout.database, layout.wal, layout.shm):
        refuse_link(path)
    anchor = read_head(layout.head)
    wal = has_wal(layout)  # before our connection creates one
    connection = schema.open_writer(layout.database)
    try:
        _migrate_log(connection, anchor)
        refuse_other_owner(connection, layout.home)
        if anchor is not None:
            check_anchor(connection, anchor)
        elif not wal:
            _require_closed(connection)
        check_tail(connection, full=full_check)
        refresh_read_models(connection)
        crash_point("open.checked")
        appender = Appender(layout.database, connection)
        if anchor is None or not layout.head.exists() or _is_replaced(connection, anchor):
            write_head(layout.head, appender.head)
    except BaseException:
        connection.close()
        raise
    return appender


def require_never_written(layout: HomeLayout) -> None:
    """Refuse a home without a log if its HEAD says that there was one.

    Raises:
        TailLost: events were acknowledged here.
        LogDamaged, HomeUnreadable: as for `read_head`.
    """
    _require_unanchored(read_head(layout.head))


def _require_unanchored(anchor: Head | None) -> None:
    if anchor is not None and anchor.seq > 0:
        raise TailLost(anchor.seq, 0)


def _migrate_log(connection: sqlite3.Connection, anchor: Head | None) -> None:
    if not schema.check_version(connection):
        _require_unanchored(anchor)
    schema.migrate_schema(connection)
    crash_point("open.migrated")
    check_kinds(connection.execute("SELECT type, sv FROM kind").fetchall())


def check_log_end(layout: HomeLayout, connection: sqlite3.Connection, anchor: Head | None) -> None:
    """Check that a log holds all that was acknowledged; its owner may come, go and write meanwhile.

    Read `anchor` before the log, so that it is never ahead of what is committed. What counts is the event
    that it names, wherever it is stored. Without an anchor, a log in use that has no WAL is refused.

    Raises:
        TailLost, LogDamaged: as for `check_anchor`.
        WalLost: nothing shows what was in the WAL.
    """
    if anchor is not None:
        check_anchor(connection, anchor)
        return
    for _ in range(2):  # a new owner's WAL exists by the time its note is visible
        if has_wal(layout) or schema.get_meta(connection, IN_USE) is None:
            return
    _require_closed(connection)


def check_anchor(connection: sqlite3.Connection, anchor: Head) -> None:
    """Compare the log with its HEAD anchor.

    Raises:
        TailLost: the log ends before its anchor.
        LogDamaged: the event at the anchor is not the anchored one.
    """
    if anchor == EMPTY_HEAD or _is_replaced(connection, anchor):
        return
    row = queries.row_at(connection, anchor.seq)
    if row is None:
        if queries.gap_at(connection, anchor.seq) is not None:
            return
        last = queries.last_row(connection)
        raise TailLost(anchor.seq, 0 if last is None else last.seq)
    if row.hash.hex() != anchor.hash:
        what = "is not the event that HEAD names: history was rewritten"
        raise LogDamaged(what, seq=row.seq, stream=row.stream, run_seq=row.run_seq)


def has_wal(layout: HomeLayout) -> bool:
    """Return whether the log's -wal file has content; readers create an empty one."""
    try:
        return layout.wal.stat().st_size > 0
    except FileNotFoundError:
        return False


def _require_closed(connection: sqlite3.Connection) -> None:
    """Refuse a log that is marked as in use, for a log with neither a WAL nor HEAD.

    An owner has a WAL all the time it is open. A copy of the main file alone lacks what was in it.

    Raises:
        WalLost: the log was in use.
    """
    if schema.get_meta(connection, IN_USE) is not None:
        raise WalLost(queries.log_head(connection).seq)


def note_in_use(connection: sqlite3.Connection, home: Path) -> None:
    """Mark the log as in use, if there is room in the database file itself, and start the WAL."""
    with schema.transaction(connection):
        schema.set_meta(connection, IN_USE, f"{_own_instance()} {_home_name(home)}")
    with suppress(sqlite3.Error):  # the disk may be too full to move a long WAL; the log works all the same
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _own_instance() -> str:
    return f"{os.getpid()} {read_boot_id()} {process_start(os.getpid())}"


def _home_name(home: Path) -> str:
    return "-".join(f"{number:x}" for number in home_identity(home) or ())


def refuse_other_owner(connection: sqlite3.Connection, home: Path) -> None:
    """Refuse a log whose note names another process that still runs: somebody deleted the home's lock.

    A copy of a log in use has the note of the home that it was copied from, which says nothing of this one.

    Raises:
        HomeLocked: naming that process.
    """
    note = schema.get_meta(connection, IN_USE) or ""
    pid, boot, start, noted_home = (*note.split(" "), "", "", "")[:4]
    if not (pid.isdecimal() and start) or int(pid) == os.getpid() or boot != read_boot_id():
        return
    if noted_home not in ("", _home_name(home)):  # older versions named no home
        return
    if process_start(int(pid)) == start:
        raise HomeLocked(home, int(pid))


def settle_log(connection: sqlite3.Connection) -> None:
    """Remove the in-use mark and move the whole log into its one file; the connection may then be closed."""
    with schema.transaction(connection):
        connection.execute("DELETE FROM meta WHERE key = ?", (IN_USE,))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def note_replaced(connection: sqlite3.Connection, anchor: Head) -> None:
    """Note in a log that it is about to replace the log that `anchor` belongs to.

    Replacing takes two renames: the database, then HEAD. After a crash between them the new log lies beside
    the old anchor; thanks to this note that does not count as a lost tail.
    """
    schema.set_meta(connection, "replaces", f"{anchor.seq} {anchor.hash}")


def _is_replaced(connection: sqlite3.Connection, anchor: Head) -> bool:
    return schema.get_meta(connection, "replaces") == f"{anchor.seq} {anchor.hash}"


def check_tail(connection: sqlite3.Connection, *, full: bool) -> None:
    """Derive the chain anew after the last verified event, or all of it if `full`.

    Raises:
        LogDamaged: naming the first row that does not follow.
    """
    seq, log_hash = (0, GENESIS) if full else _last_verified(connection)
    walk = ChainVerifier(
        seq=seq,
        log_hash=log_hash,
        before=lambda row: queries.link_before(connection, row),
        beyond=lambda number: queries.gap_end(connection, number),
    )
    for row in queries.log_rows(connection, after=seq):
        walk.check_row(row)


def _last_verified(connection: sqlite3.Connection) -> tuple[int, bytes]:
    note = schema.get_meta(connection, "verified")
    if note is None:
        return 0, GENESIS
    seq, _, stated = note.partition(" ")
    row = queries.row_at(connection, int(seq)) if seq.isdecimal() else None
    if row is None or row.hash.hex() != stated:
        return 0, GENESIS
    return row.seq, row.hash


def refresh_read_models(connection: sqlite3.Connection) -> None:
    """Rebuild the read models from all events, unless they are current."""
    if not projections.is_current(connection):
        rows = queries.log_rows(connection, after=0)
        projections.rebuild_read_models(
            connection, (to_recorded_event(row, decode_event(row)) for row in rows)
        )
