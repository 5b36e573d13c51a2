"""The errors of a home and its log, as one tree; each class has a stable `code`.

StateError
├── HomeError                 the directory
│   ├── HomeUnreadable        not a directory, or no permission
│   ├── HomeOnNetwork         a network file system, where locks and fsync cannot be trusted
│   ├── HomeLocked            another process owns the log
│   ├── HomeMoved             its path does not lead to it any more
│   └── NoLog                 nothing was ever recorded here; perhaps the directory does not exist
├── LogError                  the stored log
│   ├── LogTooNew             a newer version of this program wrote it
│   ├── LogDamaged            a row, page or file is not what was written
│   └── TailLost              acknowledged events are gone
│       └── WalLost           the log was in use, and neither its -wal file nor HEAD shows that it is whole
├── AppendError               an append
│   ├── EventRefused          it cannot follow the history
│   ├── StaleAppend           the caller had not seen the stream's newest events
│   ├── DuplicateOutcome      its idempotency key is taken by another payload
│   ├── StorageFull           no space; nothing was stored, later appends may succeed
│   ├── StorageBusy           another process holds a lock; nothing was stored, later appends may succeed
│   ├── StorageFailed         the disk or SQLite failed; nothing was acknowledged
│   └── LogClosed             the log was closed
├── OfflineError              work on a log that no process owns
│   ├── BadTarget             the output file exists already, or is the log's own
│   ├── BadArchive            not an archive, cut short, or edited
│   ├── RunExists             the log already has a run of that name
│   └── RunKept               a run cannot be taken out: it has not ended, or others continue it
└── ReadError                 a read
    ├── BlobMissing
    │   └── BlobPruned        it was here; it went with the runs that named it, or was damaged
    ├── StreamUnknown
    └── ReadModelsStale       another version made them; opening the log for writing rebuilds them
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StateError(Exception):
    """Base of this room's errors. `code` is stable; the CLI maps it to an exit status."""

    code = "state"


class HomeError(StateError):
    code = "home"


class HomeUnreadable(HomeError):  # noqa: N818 - the names of this tree say what happened
    code = "home_unreadable"


class HomeOnNetwork(HomeError):  # noqa: N818
    code = "home_on_network"


class HomeLocked(HomeError):  # noqa: N818
    """`owner_pid` is the process that owns the home, None if its note could not be read."""

    code = "home_locked"

    def __init__(self, home: Path, owner_pid: int | None) -> None:
        who = "another process" if owner_pid is None else f"process {owner_pid}"
        super().__init__(f"{home}: {who} owns this home; stop it, or use another --home")
        self.home = home
        self.owner_pid = owner_pid


class HomeMoved(HomeError):  # noqa: N818
    code = "home_moved"


class NoLog(HomeError):  # noqa: N818
    code = "no_log"


class LogError(StateError):
    code = "log"


class LogTooNew(LogError):  # noqa: N818
    code = "log_too_new"


class LogDamaged(LogError):  # noqa: N818
    """`what` is wrong with the log; `seq`, `stream`, `run_seq` name the first bad row (None: no row)."""

    code = "log_damaged"

    def __init__(
        self, what: str, *, seq: int | None = None, stream: str | None = None, run_seq: int | None = None
    ) -> None:
        where = "" if seq is None else f"event {seq}" + (f" ({stream}@{run_seq})" if stream else "") + ": "
        super().__init__(f"the log is damaged: {where}{what}")
        self.what = what
        self.seq = seq
        self.stream = stream
        self.run_seq = run_seq


class TailLost(LogError):  # noqa: N818
    """Event `anchor_seq` was acknowledged, but the log ends at `head_seq`."""

    code = "tail_lost"

    def __init__(self, anchor_seq: int, head_seq: int) -> None:
        super().__init__(
            f"the log ends at event {head_seq}, but event {anchor_seq} was acknowledged: its tail was lost "
            "(was only the main database file copied, or its -wal file deleted?); restore a backup, or save "
            "what is there with agentctl repair"
        )
        self.anchor_seq = anchor_seq
        self.head_seq = head_seq


class WalLost(TailLost):
    """The -wal file is gone, and without HEAD nobody knows what was in it; the log ends at `head_seq`."""

    code = "wal_lost"

    def __init__(self, head_seq: int) -> None:
        LogError.__init__(
            self,
            f"the log was in use, and its -wal file and HEAD are gone: events after {head_seq} may be lost "
            "(was only the main database file copied?); restore a backup, or accept what is there with "
            "agentctl repair",
        )
        self.anchor_seq = self.head_seq = head_seq


class AppendError(StateError):
    code = "append"


class EventRefused(AppendError):  # noqa: N818
    code = "event_refused"


class StaleAppend(AppendError):  # noqa: N818
    """The stream is at `actual`, the caller expected `expected`; both are run_seqs."""

    code = "stale_append"

    def __init__(self, stream: str, expected: int, actual: int) -> None:
        super().__init__(f"{stream}: expected to follow run_seq {expected}, the stream is at {actual}")
        self.stream = stream
        self.expected = expected
        self.actual = actual


class DuplicateOutcome(AppendError):  # noqa: N818
    """Event `seq` holds `key` with other content; `seq` is None if both are in the same append."""

    code = "duplicate_outcome"

    def __init__(self, stream: str, key: str, seq: int | None) -> None:
        where = "the same append" if seq is None else f"event {seq}"
        super().__init__(f"{stream}: {key} is recorded already in {where}, with another content")
        self.stream = stream
        self.key = key
        self.seq = seq


class StorageFull(AppendError):  # noqa: N818
    code = "storage_full"


class StorageBusy(AppendError):  # noqa: N818
    code = "storage_busy"


class StorageFailed(AppendError):  # noqa: N818
    code = "storage_failed"


class LogClosed(AppendError):  # noqa: N818
    code = "log_closed"


class OfflineError(StateError):
    code = "offline"


class BadTarget(OfflineError):  # noqa: N818
    code = "bad_target"


class BadArchive(OfflineError):  # noqa: N818
    """`what` says what is wrong with the archive `path`."""

    code = "bad_archive"

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path
        self.what = what


class RunExists(OfflineError):  # noqa: N818
    code = "run_exists"


class RunKept(OfflineError):  # noqa: N818
    code = "run_kept"


class ReadError(StateError):
    code = "read"


class BlobMissing(ReadError):  # noqa: N818
    code = "blob_missing"


class BlobPruned(BlobMissing):
    code = "blob_pruned"


class StreamUnknown(ReadError):  # noqa: N818
    code = "stream_unknown"


class ReadModelsStale(ReadError):  # noqa: N818
    code = "read_models_stale"


def sqlite_code(error: sqlite3.Error) -> int:
    """Return an error's primary result code; 0 if the error comes from Python and has none."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


_BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def is_busy(error: Exception) -> bool:
    """Return whether `error` says that another connection holds a lock on the database."""
    return isinstance(error, sqlite3.Error) and sqlite_code(error) in _BUSY_CODES


READ_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What reading a damaged database raises: also SQLite's own message may quote bytes that are no UTF-8."""


def to_state_error(error: sqlite3.Error | UnicodeDecodeError) -> StateError:
    """Map an error of `READ_ERRORS` to this tree, by its primary result code and not by its message."""
    if isinstance(error, UnicodeDecodeError):
        return LogDamaged(f"a text in it is no UTF-8: {error}")
    primary = sqlite_code(error)
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return LogDamaged(str(error))
    if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return HomeUnreadable(f"the log cannot be opened: {error}")
    if primary == sqlite3.SQLITE_TOOBIG:
        return LogDamaged(f"a value in it is larger than any that this program writes: {error}")
    if primary == sqlite3.SQLITE_ERROR:  # our SQL is fixed, so the tables are wrong
        return LogDamaged(f"its tables are not as this program makes them: {error}")
    if not primary and str(error).startswith("Could not decode to UTF-8"):  # Python's own error has no code
        return LogDamaged(f"a text in it is no UTF-8: {error}")
    if primary in _BUSY_CODES:
        return StorageBusy(f"another process holds a lock on the log: {error}; retry when it has ended")
    if primary == sqlite3.SQLITE_FULL:
        return StorageFull(f"no space left for the log: {error}; free some and retry")
    return StorageFailed(f"the log could not be used: {error}")


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FAILED = frozenset({errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE})


def to_home_error(error: OSError, path: Path) -> StateError:
    """Map what a system call says of a file of the home to this tree."""
    if error.errno in _FULL:
        return StorageFull(f"{path}: no space left; free some and retry")
    if error.errno == errno.EROFS:
        return StorageFailed(f"{path}: {READ_ONLY}")
    kind = StorageFailed if error.errno in _FAILED else HomeUnreadable
    return kind(f"{path}: {error.strerror}")


READ_ONLY = "its file system is mounted read-only (EROFS); remount it for writing, or use another --home"


@contextmanager
def sqlite_errors() -> Iterator[None]:
    """Turn any error of SQLite in the block into an error of this tree."""
    try:
        yield
    except READ_ERRORS as error:
        raise to_state_error(error) from error
