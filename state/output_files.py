"""Files that a person asked for: never one of the home's own, whole or not there, and named in errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from state.atomic_files import atomic_write
from state.errors import BadTarget, StorageFailed, StorageFull
from state.home import is_home_file

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FAILED = frozenset({errno.EIO, errno.EROFS, errno.EFBIG})
"""What a system call says when the disk, not the name that was given, is at fault."""


@contextmanager
def open_output(home: Path, target: Path, *, replace: bool) -> Iterator[Path]:
    """Give the name to write under; what is there when the block ends well takes `target`'s place.

    Links are followed, so that what they lead to is replaced, not they themselves.

    Raises:
        BadTarget: as `check_output`, or it cannot be written.
        StorageFull, StorageFailed: the disk has no room for it, or failed; what was there is as it was.
    """
    check_output(home, target, replace=replace)
    with translate_os_errors(target), atomic_write(_real_path(target)) as part:
        yield part


def write_output(home: Path, target: Path, content: bytes) -> None:
    """Put `content` at `target`, in the place of what is there; raises as `open_output`."""
    with open_output(home, target, replace=True) as part:
        part.write_bytes(content)


def check_output(home: Path, target: Path, *, replace: bool) -> None:
    """Refuse a name that nothing can, or may, be written to.

    Raises:
        BadTarget: it belongs to the log of `home`, is no file, has no folder, or is there and to stay.
    """
    with translate_os_errors(target):
        place = _real_path(target)
        if is_home_path(home, place):
            raise BadTarget(f"{target} belongs to the log itself; name a file elsewhere")
        if place.exists() and not place.is_file():
            raise BadTarget(f"{target} is a folder or a device; name a file")
        if place.exists() and not replace:
            raise BadTarget(f"{target} is there already; name another file, or replace it with --replace")
        if not place.parent.is_dir():
            raise BadTarget(f"{target}: there is no folder {place.parent}; make it first")


def _real_path(target: Path) -> Path:
    return Path(os.path.realpath(target))


def is_home_path(home: Path, place: Path) -> bool:
    """Return whether `place` is one of the home's own files, lies in one, or is one by another name."""
    if not home.is_dir():
        return False
    for inside, folder in pairwise((place, *place.parents)):
        if folder.exists() and folder.samefile(home) and is_home_file(inside.name):
            return True
    own = (path for path in home.iterdir() if is_home_file(path.name) and path.exists())
    return place.exists() and any(path.samefile(place) for path in own)


@contextmanager
def translate_os_errors(target: Path) -> Iterator[None]:
    """Let no OSError leave the block: the name that was given is what a person knows."""
    full = f"{target}: no space left for it; free some and retry"
    try:
        yield
    except StorageFull as error:  # of SQLite, for a database that is written there
        raise StorageFull(full) from error
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(full) from error
        kind = StorageFailed if error.errno in _FAILED else BadTarget
        raise kind(f"{target}: cannot be written: {error.strerror}") from error
