"""Writes files atomically: under another name first, synced, then renamed into place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from state.crash import crash_point


@contextmanager
def atomic_write(path: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """Yield an empty file to write to; if the block succeeds, that file durably replaces `path`.

    It is made anew, with `mode` as far as the umask allows it, so that nobody else's link is followed. If the
    block fails, its file is removed. A killed process leaves a `.part` file, which the next write replaces;
    its name is short however long `path`'s is.
    """
    part = path.with_name(f".{sha256(os.fsencode(path.name)).hexdigest()[:16]}.part")
    part.unlink(missing_ok=True)
    create_file(part, mode)
    try:
        yield part
        fsync_path(part)
        crash_point("file.before_rename")
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)
    crash_point("file.after_rename")


def create_file(path: Path, mode: int) -> None:
    """Create an empty file; raises FileExistsError if anything is there, even a link to nothing."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))


def fsync_path(path: Path) -> None:
    """Make a file's content, or a directory's names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
