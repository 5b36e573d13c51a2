"""The disk reserve: a file that occupies some disk space and is deleted when the disk is full.

The freed space is for the events that end things in good order: outcomes of work in flight, and pauses. The
reserve is also released if the disk is too full to open the log.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from state.home_files import open_home_file

RESERVE_BYTES = 8 << 20
"""Enough for some thousand events."""

LOW_BYTES = 4 << 20
"""With less free space than this, the disk counts as full."""

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_log = logging.getLogger(__name__)


class DiskReserve:
    """The reserve of one home, at `path`."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self.size = size

    @property
    def required_bytes(self) -> int:
        """The free space needed to create it: its size plus a margin, so that it does not flap."""
        return self.size + 2 * LOW_BYTES

    def create(self) -> bool:
        """Reserve the space if it is not reserved yet; return False if there is too little.

        If the file system cannot reserve space, there is no reserve; this is logged and the program goes on.
        """
        if self._path.is_file() and not self._path.is_symlink():
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
        """Free the space; return whether there was a reserve."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True

    def _allocate_file(self) -> None:
        descriptor = open_home_file(
            self._path.parent, self._path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600
        )
        try:
            os.posix_fallocate(descriptor, 0, self.size)
        finally:
            os.close(descriptor)


def free_bytes(folder: Path) -> int:
    """Return how many bytes an ordinary user may still write to the disk of `folder`."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
