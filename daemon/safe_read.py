"""Reads files that users provide: only regular files, and only up to a size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, *, most: int) -> bytes:
    """Return the bytes of a file of at most `most` bytes.

    Pipes and devices are refused: a pipe could block forever, and a device or a sparse file could fill
    the memory.

    Raises:
        OSError: the file cannot be read, is not a regular file (EINVAL), or is larger (EFBIG).
    """
    _require_regular(path.stat())  # check before opening, because opening some devices has side effects
    with open(path, "rb", opener=_open_nonblocking) as file:
        _require_regular(os.fstat(file.fileno()))
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes")
    return data


def _require_regular(found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
