"""Opens the files of a home without following links.

Whoever may write a home could put a link in the place of one of its files, so that a process with more rights
would overwrite what the link leads to. So every file of a home is opened through a descriptor of its folder,
must not be a link, and must be a regular file: a pipe could block its reader for ever. Only the home's own
path may be a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from state.errors import HomeUnreadable

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def open_home_folder(home: Path, name: str = "", *, create: bool = False) -> Iterator[int]:
    """Yield a descriptor of a folder of the home, for `dir_fd`; `name` is relative, empty for the home.

    Raises:
        HomeUnreadable: a link or a file is in its place.
        OSError: there is no such folder, or it cannot be made.
    """
    handle = os.open(home, _FOLDER)
    try:
        for part in PurePath(name).parts:
            if create:
                _make_folder(part, handle)
            inner = _open_part(home / name, part, _FOLDER | os.O_NOFOLLOW, folder=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def open_home_file(home: Path, name: str, flags: int, mode: int = 0o640) -> int:
    """Return a descriptor of a file of the home; `name` is relative to the home.

    Raises:
        HomeUnreadable: a link, a pipe or a device is in its place.
        OSError: as for `os.open`; IsADirectoryError for a folder.
    """
    place = PurePath(name)
    parent = "" if place.parent == PurePath() else str(place.parent)
    with open_home_folder(home, parent) as folder:
        descriptor = _open_part(home / name, place.name, flags | _SAFE, folder=folder, mode=mode)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(home / name))
    raise HomeUnreadable(f"{home / name}: not a regular file; remove it")


def read_home_file(home: Path, name: str, *, most: int) -> bytes:
    """Return the first `most` bytes of a file of the home; raises as `open_home_file` does."""
    with open(open_home_file(home, name, os.O_RDONLY), "rb") as file:
        return file.read(most)


def refuse_link(path: Path) -> None:
    """Refuse a link where a library will open a file of the home by its name.

    Raises:
        HomeUnreadable: `path` is a link, or neither a file nor a folder.
    """
    try:
        kind = path.lstat().st_mode
    except OSError:  # missing, or opening it says what is wrong
        return
    if stat.S_ISLNK(kind):
        raise _link_error(path)
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise HomeUnreadable(f"{path}: not a regular file; remove it")


def _make_folder(name: str, folder: int) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)


def _open_part(path: Path, name: str, flags: int, *, folder: int, mode: int = 0o640) -> int:
    try:
        return os.open(name, flags, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, folder):
            raise _link_error(path) from error
        if error.errno == errno.ENXIO:  # a pipe without a reader, or a socket
            raise HomeUnreadable(f"{path}: not a regular file; remove it") from error
        error.filename = str(path)
        raise


def _is_link(name: str, folder: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _link_error(path: Path) -> HomeUnreadable:
    return HomeUnreadable(f"{path}: is a link, and files of a home must be plain files; remove it")
