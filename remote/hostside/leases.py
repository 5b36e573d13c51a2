"""Who has a NeuronCore, and who a CPU: one file each, locked by the runner of the job that has it.

The lock is the kernel's (`flock`): it ends with its holders, however they end, and whoever they are. The
step of the job inherits it, so that a core is not given away while the step of a killed runner is alive.
What a step left running in other processes is known by the note in the file: the next holder ends it first.
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
    """A core or CPU that is ours until `release`, or until we and what inherited `fd` are gone."""

    def __init__(self, index: int, fd: int) -> None:
        self.index = index
        self.fd = fd

    def write_mark(self, mark: str) -> None:
        """Write down whose processes use it."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, mark.encode()[:_NOTE_BYTES], 0)

    def release(self) -> None:
        """Give it back: none of its processes is left."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)


def acquire_lease(kind: str, indices: list[int]) -> DeviceLease | None:
    """Return a lease on the first of `kind` that is free, None if none is.

    Raises:
        OSError: the files of leases cannot be opened.
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
    """Open a file of leases, which any user may have made, and all may use."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    # The kernel may forbid O_CREAT on another user's file in such a folder, so it comes second.
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(fd, 0o666)
    return fd


def _end_last_holder(fd: int) -> bool:
    """Whether none of the last holder's processes is left, after ending them."""
    mark = os.pread(fd, _NOTE_BYTES, 0).decode("utf-8", "replace")
    return not mark or not process_tree.kill_marked(mark)
