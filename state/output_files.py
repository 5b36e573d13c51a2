"""Writes files that a person asked for: atomically, and never over the home's own files."""

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
"""Error numbers of system calls that blame the disk, and not the given name."""


@contextmanager
def open_output(home: Path, target: Path, *, replace: bool, mode: int = 0o666) -> Iterator[Path]:
    """Yield an empty file to write to; if the block succeeds, that file replaces `target`.

    Links are followed: the file that a link leads to is replaced, not the link.

    Raises:
        BadTarget: as for `check_output`, or the file cannot be written.
        StorageFull, StorageFailed: the disk has no room for it, or failed; the old file is unchanged.
    """
    check_output(home, target, replace=replace)
    with translate_os_errors(target), atomic_write(_real_path(target), mode=mode) as part:
        yield part


def write_output(home: Path, target: Path, content: bytes) -> None:
    """Write `content` to `target`, replacing an existing file; raises as `open_output` does."""
    with open_output(home, target, replace=True) as part:
        part.write_bytes(content)


def check_output(home: Path, target: Path, *, replace: bool) -> None:
    """Refuse a target that cannot or must not be written.

    Raises:
        BadTarget: it belongs to the log of `home`, is not a file, has no folder, or exists and `replace` is
            false.
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
    """Return whether `place` is one of the home's own files, lies inside one, or is another name for one."""
    if not home.is_dir():
        return False
    for inside, folder in pairwise((place, *place.parents)):
        if folder.exists() and folder.samefile(home) and is_home_file(inside.name):
            return True
    own = (path for path in home.iterdir() if is_home_file(path.name) and path.exists())
    return place.exists() and any(path.samefile(place) for path in own)


@contextmanager
def translate_os_errors(target: Path) -> Iterator[None]:
    """Turn every OSError of the block into an error that names the file as the person gave it."""
    full = f"{target}: no space left for it; free some and retry"
    try:
        yield
    except StorageFull as error:  # from SQLite, for a database at this place
        raise StorageFull(full) from error
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(full) from error
        kind = StorageFailed if error.errno in _FAILED else BadTarget
        raise kind(f"{target}: cannot be written: {error.strerror}") from error
