"""The lock of a home: an advisory file lock that ends with the process that holds it.

The lock has its own file, because closing any descriptor of the database would drop SQLite's own locks. The
file's text names the owner for people; only the lock itself decides.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from state.errors import HomeLocked, HomeUnreadable

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TRIES = 10
_PAUSE_S = 0.02  # a reader probes the lock for microseconds; an owner holds it much longer


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The process that owns a home: its pid, the boot id, and when it took the lock (UNIX seconds).

    `waits_for` says what its appends wait for, None if they do not wait.
    """

    pid: int
    boot: str
    since: float
    waits_for: str | None = None


class HomeLock:
    """Holds the exclusive lock of one home until `release`, or until the process ends."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            HomeLocked: another process holds it.
            HomeUnreadable: the lock file cannot be opened.
        """
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise HomeUnreadable(f"{path}: {error.strerror}") from error
        if not _acquire_lock(self._descriptor):
            os.close(self._descriptor)
            owner = _read_note(path)
            raise HomeLocked(path.parent, owner.pid if owner else None)
        self._owner = LockOwner(os.getpid(), read_boot_id(), time.time())
        self.note_wait(None)

    def note_wait(self, what: str | None) -> None:
        """Tell readers of the lock what the owner's appends wait for, None if they do not wait."""
        note = json.dumps(asdict(replace(self._owner, waits_for=what))).encode()
        with suppress(OSError):  # on a full disk the lock still holds; only the owner's name is missing
            os.pwrite(self._descriptor, note, 0)
            os.ftruncate(self._descriptor, len(note))

    def release(self) -> None:
        """Release the lock. The file stays, with empty text."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def read_owner(path: Path) -> LockOwner | None:
    """Return who holds the lock file at `path`, or None if nobody does or the file does not exist.

    An owner whose note cannot be read has pid 0.

    Raises:
        HomeUnreadable: the file exists but may not be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HomeUnreadable(f"{path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_note(path) or LockOwner(0, "", 0.0)
    finally:
        os.close(descriptor)
    return None


def read_boot_id() -> str:
    """Return the id of this boot of the machine, empty if the system has none."""
    return _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""


def _acquire_lock(descriptor: int) -> bool:
    for attempt in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < _TRIES:
                time.sleep(_PAUSE_S)
        else:
            return True
    return False


def _read_note(path: Path) -> LockOwner | None:
    try:
        return LockOwner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
