"""Leases on device cores and CPUs: one file each, locked by the runner of the job that holds it.

The lock is an operating system lock (`flock`), so it ends with its holders, whoever they are and however they
end. The job's step inherits it, so a core is not given away while the step of a killed runner is alive. The
holder writes a mark into the file. By that mark the next holder finds and ends the processes that a step left
running.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from remote.hostside import process_tree
from remote.hostside.workdir import open_leases_folder

_NOTE_BYTES = 200


class DeviceLease:
    """A core or CPU that is ours until `release`, or until all processes that hold `fd` are gone."""

    def __init__(self, index: int, fd: int) -> None:
        self.index = index
        self.fd = fd

    def write_mark(self, mark: str) -> None:
        """Write down the mark of the processes that use it."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, mark.encode()[:_NOTE_BYTES], 0)

    def release(self) -> None:
        """Give the lease back: none of its processes is left."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)


def acquire_lease(kind: str, indices: list[int]) -> DeviceLease | None:
    """Return a lease on the first free device of `kind`; None if none is free.

    Raises:
        OSError: the lease files cannot be opened.
    """
    folder = open_leases_folder()
    for index in indices:
        fd = _open_lease_file(folder / f"{kind}-{index}")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            continue
        if _end_last_holder(fd):
            return DeviceLease(index, fd)
        os.close(fd)
    return None


def _open_lease_file(path: Path) -> int:
    """Open a lease file, which any user may have created and all may use."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    # Linux may forbid O_CREAT on another user's file in such a folder, so create it only as a second try.
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(fd, 0o666)
    return fd


def _end_last_holder(fd: int) -> bool:
    """End the last holder's processes; return whether none is left."""
    mark = os.pread(fd, _NOTE_BYTES, 0).decode("utf-8", "replace")
    return not mark or not process_tree.kill_marked(mark)
