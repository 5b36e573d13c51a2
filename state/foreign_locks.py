"""Names the processes that lock the database from outside, for messages.

SQLite's locks are POSIX locks on bytes of the -shm file, and Linux lists them in /proc/locks. To ask the
file itself would mean to open and close it, which drops the locks that this process holds on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from state.home import HomeLayout

PROC = Path("/proc")

_WRITE_BYTES = range(120, 121)
_READ_BYTES = range(123, 128)
"""The bytes of the -shm file that a writer and readers lock (SQLite, "WAL-mode File Format", 2.3)."""

_FIELDS = 8
"""Of a line such as `1: POSIX  ADVISORY  WRITE 4711 08:01:131085 120 120`."""


def describe_writers(layout: HomeLayout) -> str:
    """Return who else holds the write lock, as `process 4711 (sqlite3)`."""
    return _describe_holders(layout.shm, _WRITE_BYTES)


def describe_readers(layout: HomeLayout) -> str:
    """Return who else reads the log at this moment."""
    return _describe_holders(layout.shm, _READ_BYTES)


def _describe_holders(path: Path, wanted: range) -> str:
    found = sorted(set(_find_holders(path, wanted)) - {os.getpid()})
    return " and ".join(map(_describe_process, found)) or "another process"


def _find_holders(path: Path, wanted: range) -> Iterator[int]:
    with suppress(OSError, ValueError):  # another system, or another format
        inode = path.stat().st_ino
        for line in (PROC / "locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if len(fields) != _FIELDS or fields[1] != "POSIX" or int(fields[5].rpartition(":")[2]) != inode:
                continue
            end = wanted.stop if fields[7] == "EOF" else int(fields[7])
            if int(fields[6]) < wanted.stop and end >= wanted.start:
                yield int(fields[4])


def _describe_process(pid: int) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return f"process {pid} ({(PROC / str(pid) / 'comm').read_text(encoding='utf-8').strip()})"
    return f"process {pid}"
