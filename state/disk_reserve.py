"""The reserve: a file that holds some of the disk, to be given up when the disk is full.

What it frees is for the events that end things in good order: outcomes of what is in flight, pauses. It is
also given up when the disk is too full for the log even to be opened.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

RESERVE_BYTES = 8 << 20
"""Some thousand events."""

LOW_BYTES = 4 << 20
"""With less than this free, the disk is as good as full."""

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_log = logging.getLogger(__name__)


class DiskReserve:
    """The reserve of one home, at `path`."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self.size = size

    @property
    def required_bytes(self) -> int:
        """How much must be free for it to be made: it, and twice what counts as full, so as not to flap."""
        return self.size + 2 * LOW_BYTES

    def create(self) -> bool:
        """Set the space aside unless it is; return False when there is too little.

        Where the file system cannot set space aside, there is no reserve: that is logged, and no reason to
        stop.
        """
        if self._path.exists():
            return True
        if free_bytes(self._path.parent) < self.required_bytes:
            return False
        try:
            self._allocate_file()
        except OSError as error:
            self._path.unlink(missing_ok=True)
            if error.errno in _NO_SPACE:
                return False
            _log.warning("no space can be set aside in %s: %s", self._path.parent, error)
        return True

    def release(self) -> bool:
        """Give the space up; return whether there was any."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True

    def _allocate_file(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self.size)
        finally:
            os.close(descriptor)


def free_bytes(folder: Path) -> int:
    """Return how much an ordinary user may still write to the disk of `folder`."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
