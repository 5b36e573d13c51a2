"""The database: its tables and triggers, how it is opened for writing, and its migrations.

Each log has exactly one read-write connection, and only that one checkpoints: SQLite before 3.51.3 can
corrupt a WAL that two connections reset at once. A trigger makes events append-only. A second trigger refuses
a row that does not continue the chain, in case a lock should ever fail.

A migration is a function on a sqlite-utils Database. It is recorded in the transaction that makes its change.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from state.crash import crash_point
from state.errors import HomeUnreadable, LogDamaged, LogTooNew, StorageFailed
from state.home_files import open_home_file

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION_ID = 0x4E4B4941
"""`NKIA`: what `file` and SQLite see as the kind of this database."""

_INITIAL_SCHEMA = (
    """CREATE TABLE stream(
         id TEXT PRIMARY KEY, parent TEXT REFERENCES stream(id), parent_seq INT, parent_hash BLOB) STRICT""",
    """CREATE TABLE event(
         seq INTEGER PRIMARY KEY, stream TEXT NOT NULL REFERENCES stream(id), run_seq INT NOT NULL,
         type TEXT NOT NULL, sv INT NOT NULL, ts_us INT NOT NULL, cause INT, idem TEXT,
         payload TEXT NOT NULL, prev BLOB NOT NULL, log_prev BLOB NOT NULL,
         state_hash BLOB, fold INT, hash BLOB NOT NULL,
         UNIQUE(stream, run_seq), UNIQUE(stream, idem)) STRICT""",
    "CREATE TABLE kind(type TEXT, sv INT, PRIMARY KEY(type, sv)) STRICT, WITHOUT ROWID",
    """CREATE TABLE blob(
         digest BLOB PRIMARY KEY, size INT NOT NULL, encoding TEXT NOT NULL, data BLOB NOT NULL) STRICT""",
    """CREATE TABLE snapshot(
         stream TEXT, run_seq INT, fold INT NOT NULL, head BLOB NOT NULL, digest BLOB NOT NULL,
         data BLOB NOT NULL, PRIMARY KEY(stream, run_seq)) STRICT""",
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID",
    *(
        f"""CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table}
            BEGIN SELECT RAISE(ABORT, 'append-only: {table}'); END"""
        for table in ("event", "stream")
        for verb in ("UPDATE", "DELETE")
    ),
    """CREATE TRIGGER event_continues BEFORE INSERT ON event BEGIN
         SELECT RAISE(ABORT, 'does not continue the log')
           WHERE NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM event)
              OR NEW.log_prev IS NOT coalesce((SELECT hash FROM event WHERE seq = NEW.seq - 1), zeroblob(32));
         SELECT RAISE(ABORT, 'does not continue its stream')
           WHERE NEW.prev IS NOT coalesce(
             (SELECT hash FROM event WHERE stream = NEW.stream AND run_seq = NEW.run_seq - 1),
             (SELECT parent_hash FROM stream WHERE id = NEW.stream AND parent_seq = NEW.run_seq - 1),
             CASE NEW.run_seq WHEN 1 THEN zeroblob(32) END);
       END""",
)

_GAPS = (
    """CREATE TABLE gap(
         seq INTEGER PRIMARY KEY, upto INT NOT NULL CHECK(upto >= seq), hash BLOB NOT NULL) STRICT""",
    *(
        f"""CREATE TRIGGER gap_no_{verb.lower()} BEFORE {verb} ON gap
            BEGIN SELECT RAISE(ABORT, 'append-only: gap'); END"""
        for verb in ("UPDATE", "DELETE")
    ),
    "DROP TRIGGER event_continues",
    """CREATE TRIGGER event_continues BEFORE INSERT ON event BEGIN
         SELECT RAISE(ABORT, 'does not continue the log')
           WHERE NEW.seq IS NOT
                 max((SELECT coalesce(max(seq), 0) FROM event), (SELECT coalesce(max(upto), 0) FROM gap)) + 1
              OR NEW.log_prev IS NOT coalesce(
                 (SELECT hash FROM event WHERE seq = NEW.seq - 1),
                 (SELECT hash FROM gap WHERE upto = NEW.seq - 1), zeroblob(32));
         SELECT RAISE(ABORT, 'does not continue its stream')
           WHERE NEW.prev IS NOT coalesce(
             (SELECT hash FROM event WHERE stream = NEW.stream AND run_seq = NEW.run_seq - 1),
             (SELECT parent_hash FROM stream WHERE id = NEW.stream AND parent_seq = NEW.run_seq - 1),
             CASE NEW.run_seq WHEN 1 THEN zeroblob(32) END);
       END""",
    "CREATE UNIQUE INDEX gap_upto ON gap(upto)",
)
"""Events `seq` to `upto` are no longer in this file; the row after them continues `hash`."""

_MIGRATIONS_TABLE = "_sqlite_migrations"


class SchemaObject(NamedTuple):
    """A table, index, view or trigger: its kind, its table, and the statement that made it."""

    kind: str
    table: str
    sql: str


def _run_statements(statements: tuple[str, ...]) -> Callable[[Database], None]:
    def change(database: Database) -> None:
        for statement in statements:
            database.conn.execute(statement)

    return change


MIGRATIONS: tuple[tuple[str, Callable[[Database], None]], ...] = (
    ("0001_event_log", _run_statements(_INITIAL_SCHEMA)),
    ("0002_gaps", _run_statements(_GAPS)),
)
"""In order; `user_version` counts those applied. Released migrations are never edited."""

SCHEMA_VERSION = len(MIGRATIONS)

WITH_GAPS = 2
"""The first schema version that has the table `gap`."""

MAX_VALUE_BYTES = 256 << 20
"""The longest payload, blob or row."""

_WRITER_PRAGMAS: tuple[tuple[str, object], ...] = (
    ("journal_mode", "wal"),
    ("synchronous", 2),
    ("busy_timeout", 1000),
    ("foreign_keys", 1),
    ("wal_autocheckpoint", 1000),
    ("journal_size_limit", 64 << 20),
    ("mmap_size", 0),
    ("cell_size_check", 1),
    ("trusted_schema", 0),
    ("recursive_triggers", 1),  # without it, INSERT OR REPLACE deletes a row past the append-only trigger
    ("temp_store", 2),
    ("cache_size", -16384),
)
"""WAL with synchronous FULL lost no acknowledged event in power-cut tests. Each is read back when set."""


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the one read-write connection and check its pragmas; create the file if there is none.

    Raises:
        HomeUnreadable: it is a folder, or may not be written.
        StorageFailed: a pragma did not hold (an unusual file system may refuse WAL).
        sqlite3.Error: the file cannot be opened or is no database.
    """
    try:
        os.close(open_home_file(path.parent, path.name, os.O_RDWR | os.O_CREAT))
    except (IsADirectoryError, PermissionError) as error:
        raise HomeUnreadable(f"{path}: {error.strerror}; a log is a file that its owner may write") from error
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    limit_values(connection)
    try:
        for name, value in _WRITER_PRAGMAS:
            _set_pragma(connection, name, value)
    except BaseException:
        connection.close()
        raise
    return connection


def limit_values(connection: sqlite3.Connection) -> None:
    """Let no single value of a file that somebody else wrote fill the memory."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what the body writes, or none of it if the body raises.

    It begins IMMEDIATE, because a transaction that began with a read cannot be upgraded after another one's
    commit. SQLite ends some failed transactions by itself; a second rollback would hide the error.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _set_pragma(connection: sqlite3.Connection, name: str, value: object) -> None:
    connection.execute(f"PRAGMA {name}={value}").fetchall()
    found = connection.execute(f"PRAGMA {name}").fetchone()
    if found is not None and found[0] != value:  # an SQLite built without the feature returns nothing
        raise StorageFailed(f"SQLite keeps {name}={found[0]} where the log needs {value}")


def read_pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return the value of an integer pragma."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def check_version(connection: sqlite3.Connection) -> bool:
    """Return whether the database holds a log; False if it is empty.

    Raises:
        LogDamaged: it is another program's database.
        LogTooNew: its schema is newer than this program's.
    """
    # Tables come first: a log that is made meanwhile gets them and its id at once.
    is_empty = connection.execute("SELECT 1 FROM sqlite_schema").fetchone() is None
    version = read_pragma(connection, "user_version")
    application = read_pragma(connection, "application_id")
    if is_empty and application == 0 and version == 0:
        return False
    if application != APPLICATION_ID:
        raise LogDamaged("events.db is not an event log")
    if version > SCHEMA_VERSION:
        raise LogTooNew(
            f"the log has schema {version}, this program knows up to {SCHEMA_VERSION}: "
            "it was written by a newer version; upgrade to read it"
        )
    return True


def migrate_schema(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date. Each migration and its record are one transaction."""
    if read_pragma(connection, "user_version") == SCHEMA_VERSION:
        return
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations

    known = Migrations("state")
    for number, (name, change) in enumerate(MIGRATIONS, start=1):
        known(name=name)(_migration_step(number, change))
    with transaction(connection):
        known.apply(Database(connection, recursive_triggers=False, execute_plugins=False))


def _migration_step(number: int, change: Callable[[Database], None]) -> Callable[[Database], None]:
    def step(database: Database) -> None:
        change(database)
        crash_point("migrate.step")
        database.conn.execute(f"PRAGMA user_version={number}")
        database.conn.execute(f"PRAGMA application_id={APPLICATION_ID}")

    return step


def expected_objects(version: int) -> dict[str, SchemaObject]:
    """Return the tables, indexes and triggers that a log of this schema version has, by name."""
    from sqlite_utils import Database

    with closing(sqlite3.connect("", isolation_level=None)) as made:
        for _, change in MIGRATIONS[:version]:
            change(Database(made, recursive_triggers=False, execute_plugins=False))
        return stored_objects(made)


def stored_objects(connection: sqlite3.Connection) -> dict[str, SchemaObject]:
    """Return what a database holds beside what SQLite and sqlite-utils keep for themselves, by name."""
    rows = connection.execute("SELECT name, type, tbl_name, coalesce(sql, '') FROM sqlite_schema")
    return {
        name: SchemaObject(kind, table, " ".join(sql.split()))
        for name, kind, table, sql in rows
        if not (name.startswith("sqlite_") or (table == _MIGRATIONS_TABLE and kind in ("table", "index")))
    }


def get_meta(connection: sqlite3.Connection, key: str) -> str | None:
    """Return a note from the log's table `meta`; no event depends on these notes."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def set_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
