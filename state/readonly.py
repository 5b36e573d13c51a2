"""A read-only connection to a log, in whatever condition its owner left it.

- Running, or crashed with its shared memory left: `mode=ro`.
- Stopped cleanly, and the user cannot write the directory: SQLite refuses `mode=ro` and needs `immutable=1`,
  which is correct only while there is no -wal file.
- Crashed, and the shared memory is gone: a private copy of database and -wal is opened.

In the last two cases the connection is reopened when the files change, so that a follower sees a restarted
owner.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import ExitStack
from pathlib import Path

from state import schema
from state.errors import HomeUnreadable, NoLog, sqlite_errors
from state.home import HomeLayout, missing_home_error, require_directory
from state.home_files import refuse_link
from state.opening import require_never_written
from state.upcast import check_kinds

_FileStamps = tuple[tuple[int, int, int] | None, ...]


class ReadOnlyConnection:
    """Hands out the connection; reopens it when a frozen view of the files is out of date."""

    def __init__(self, layout: HomeLayout) -> None:
        """Open the log.

        Raises:
            NoLog, HomeUnreadable, LogTooNew, LogDamaged: as listed for `LogReader.open`.
        """
        self._layout = layout
        self._database = str(layout.database)
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._frozen: _FileStamps | None = None
        self._file: tuple[int, int] | None = None
        with sqlite_errors():
            self._connection = self._open_connection()

    def connection(self) -> sqlite3.Connection:
        if self._file != _file_id(self._database) or (
            self._frozen is not None and self._frozen != self._file_stamps()
        ):
            self.close()
            self._connection = self._open_connection()
        return self._connection

    def close(self) -> None:
        self._connection.close()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def _open_connection(self) -> sqlite3.Connection:
        self._frozen = None
        _require_readable(self._layout)
        self._file = _file_id(self._database)  # a rebuilt log is another file with the same name
        uri = self._layout.database.resolve().as_uri()
        try:
            return _connect(f"{uri}?mode=ro", self._layout)
        except sqlite3.OperationalError:
            self._frozen = self._file_stamps()
        if not self._layout.wal.exists():
            return _connect(f"{uri}?immutable=1", self._layout)
        with ExitStack() as stack:  # a copy that cannot be opened is not kept
            self._copy = copy = tempfile.TemporaryDirectory(prefix="nki-agent-read-")
            stack.callback(copy.cleanup)
            for source in (self._layout.database, self._layout.wal):
                shutil.copyfile(source, Path(copy.name) / source.name)
            connection = _connect((Path(copy.name) / self._layout.database.name).as_uri(), self._layout)
            stack.pop_all()
        return connection

    def _file_stamps(self) -> _FileStamps:
        return tuple(_file_stamp(path) for path in (self._layout.database, self._layout.wal))


def _file_id(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - asked before each read
    except FileNotFoundError:
        return None
    return (found.st_dev, found.st_ino)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _require_readable(layout: HomeLayout) -> None:
    try:
        exists = layout.database.exists()
        require_directory(layout.home)
    except PermissionError:
        exists = True
    _require_log(layout, exists=exists)
    for path in (layout.database, layout.wal, layout.shm):
        refuse_link(path)
    if not os.access(layout.database, os.R_OK):
        raise HomeUnreadable(f"{layout.database}: no permission to read")


def _require_log(layout: HomeLayout, *, exists: bool) -> None:
    if exists:
        return
    if not layout.home.is_dir():
        raise missing_home_error(layout.home)
    require_never_written(layout)
    raise NoLog(f"{layout.home}: holds no log; nothing was recorded here yet")


def _connect(uri: str, layout: HomeLayout) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    schema.limit_values(connection)
    try:
        connection.execute("PRAGMA query_only=1")
        connection.execute("PRAGMA busy_timeout=5000")
        _require_log(layout, exists=schema.check_version(connection))
        check_kinds(connection.execute("SELECT type, sv FROM kind").fetchall())
    except BaseException:
        connection.close()
        raise
    return connection
