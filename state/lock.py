"""The lock of a home: one process writes, and its lock ends with it.

Three things say who owns a home, because each alone can be taken away:

- `NAME.owner` is locked with flock and only its owner may open it, so that nobody who may merely read the
  home can keep the owner out. It decides.
- `NAME` is locked too and names the owner, for readers and older versions. A reader may hold a lock on it.
- A socket in the abstract namespace, named after the home's inode, survives that somebody deletes both files.

The log itself notes its owner as well (`opening.IN_USE`). The lock has files of its own, because closing any
descriptor of the database would drop SQLite's locks.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import struct
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from state.errors import HomeLocked, HomeUnreadable, to_home_error
from state.home_files import open_home_file, read_home_file

PROC = Path("/proc")
_ENDED_STATES = ("Z", "X")
_BOOT_ID = PROC / "sys/kernel/random/boot_id"
_TRIES = 10
_PAUSE_S = 0.02  # a reader probes the lock for microseconds; an owner holds it much longer
_NOTE_BYTES = 4096

_log = logging.getLogger(__name__)


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
        """Take the lock that `path` names.

        Raises:
            HomeLocked: another process holds it.
            HomeUnreadable: a lock file cannot be opened.
        """
        self._files: list[int] = []
        self._witness: _SocketWitness | None = None
        self._owner = LockOwner(os.getpid(), read_boot_id(), time.time())
        try:
            self._take(path)
        except BaseException:
            self._close()
            raise
        self.note_wait(None)

    def _take(self, path: Path) -> None:
        owner_file = self._open(path.with_name(f"{path.name}.owner"), 0o600)
        self._note_file = self._open(path, 0o640)
        if not _acquire_lock(owner_file):
            raise HomeLocked(path.parent, _owner_pid(path))
        if not _acquire_lock(self._note_file):
            owner = _read_note(path)
            if owner is not None and is_process_alive(owner.pid, owner.boot):  # of an older version
                raise HomeLocked(path.parent, owner.pid)
            _log.warning("a process that may read %s holds a lock on it; it does not own the home", path)
        self._witness = _claim_socket(path)

    def _open(self, path: Path, mode: int) -> int:
        try:
            descriptor = open_home_file(path.parent, path.name, os.O_RDWR | os.O_CREAT, mode)
        except OSError as error:
            raise to_home_error(error, path) from error
        self._files.append(descriptor)
        return descriptor

    def note_wait(self, what: str | None) -> None:
        """Tell readers of the lock what the owner's appends wait for, None if they do not wait."""
        note = json.dumps(asdict(replace(self._owner, waits_for=what))).encode()
        with suppress(OSError):  # on a full disk the lock still holds; only the owner's name is missing
            os.pwrite(self._note_file, note, 0)
            os.ftruncate(self._note_file, len(note))

    def release(self) -> None:
        """Release the lock. The files stay, with empty text."""
        os.ftruncate(self._note_file, 0)
        self._close()

    def _close(self) -> None:
        if self._witness is not None:
            self._witness.close()
        for descriptor in self._files:
            os.close(descriptor)


def read_owner(path: Path) -> LockOwner | None:
    """Return who holds the lock file at `path`, or None if nobody does or the file does not exist.

    An owner whose note cannot be read has pid 0.

    Raises:
        HomeUnreadable: the file exists but may not be read.
    """
    try:
        descriptor = open_home_file(path.parent, path.name, os.O_RDONLY)
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


def process_start(pid: int) -> str:
    """Return when a process started, in ticks since boot; empty if it has ended or that cannot be read.

    One that was killed stays in the table of processes until its parent takes note, and holds nothing.
    """
    with suppress(OSError, IndexError):
        told = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return "" if told[0] in _ENDED_STATES else told[19]
    return ""


def is_process_alive(pid: int, boot: str) -> bool:
    """Return whether a process of this boot is there, under any user."""
    return boot == read_boot_id() and process_start(pid) != ""


class _SocketWitness:
    """A listening socket that is closed at the latest with its owner: a lock may end without a release."""

    def __init__(self, claim: socket.socket) -> None:
        self._descriptor: int | None = claim.detach()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    __del__ = close


def _claim_socket(path: Path) -> _SocketWitness | None:
    """Bind the socket of this lock; None if a stranger has bound it, which proves nothing.

    Raises:
        HomeLocked: a process of this user or root has it.
    """
    home = path.parent.stat()
    address = f"\0nki-kernel-agent/{home.st_dev:x}-{home.st_ino:x}/{path.name}"
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(address)
        claim.listen(1)
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:  # no abstract namespace here
            return None
        pid, uid = _peer_of(address)
        if uid in (0, os.geteuid()):
            raise HomeLocked(path.parent, pid) from error
        _log.warning("a process of user %s has the socket that belongs to %s", uid, path)
        return None
    return _SocketWitness(claim)


def _peer_of(address: str) -> tuple[int | None, int | None]:
    """Return the pid and the user of the process that listens at an address."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        probe.connect(address)
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", found)
        return pid or None, uid
    return None, None


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


def _owner_pid(path: Path) -> int | None:
    owner = _read_note(path)
    return owner.pid if owner else None


def _read_note(path: Path) -> LockOwner | None:
    try:
        return LockOwner(**json.loads(read_home_file(path.parent, path.name, most=_NOTE_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
