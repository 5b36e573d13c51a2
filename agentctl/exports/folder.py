"""Writes a folder of files for other programs: never outside it, and never over somebody else's files.

No link below the folder is followed. A manifest (`MANIFEST`) records what was written, so that the next
export replaces its own files and notices files that were edited or were there before. Each file is
written atomically. A new folder appears at once with everything in it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from secrets import token_hex

from state.atomic_files import fsync_path
from state.errors import BadTarget
from state.model import digest_of
from state.output_files import is_home_path, translate_os_errors

MANIFEST = ".nki-kernel-agent.json"
"""The manifest of an exported folder: the digests of the files written there, by path."""

_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_MANIFEST = 64 << 20


def write_folder(home: Path, root: Path, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Write `files`, by paths below `root`; files of an earlier export that are no longer made are
    removed.

    Raises:
        BadTarget: `root` is no folder or belongs to the log of `home`; or a path in it is a link, a
            folder, or a file that no export wrote (`force` replaces it). Nothing was written then.
        StorageFull, StorageFailed: the disk is full or failed; each file that was written is complete.
    """
    made = {str(require_safe_path(path)): data for path, data in files.items()}
    if is_home_path(home, Path(os.path.realpath(root))):
        raise BadTarget(f"{root} belongs to the log itself; name a folder elsewhere")
    with translate_os_errors(root):
        if not os.path.lexists(root):
            _write_new_folder(root, made)
            return
        with _open_root(root) as folder:
            known = _read_manifest(folder)
            if not force:
                _refuse_foreign(root, folder, made, known=known)
            _write_files(root, folder, made)
            _write_files(root, folder, {MANIFEST: _manifest_json(made)})
            for path in sorted(known.keys() - made.keys()):
                _remove_file(folder, path, known[path])


def require_safe_path(path: str) -> PurePosixPath:
    """Return a path that stays below a folder and has no hidden part.

    Raises:
        BadTarget: it leads elsewhere, or a part of it is hidden. Names may come from a log, and so from
            anybody, and other programs obey files such as `.git/config`.
    """
    found = PurePosixPath(path)
    parts = found.parts
    hidden = any(part.startswith(".") for part in parts)
    if not parts or found.is_absolute() or hidden or "\0" in path:
        raise BadTarget(f"{path!r} is no name for a file of an export")
    return found


def _manifest_json(made: Mapping[str, bytes]) -> bytes:
    return json.dumps({path: digest_of(data) for path, data in sorted(made.items())}, indent=1).encode()


def _write_new_folder(root: Path, made: Mapping[str, bytes]) -> None:
    """Create a folder with all its files, or nothing."""
    if not root.parent.is_dir():
        raise BadTarget(f"{root}: there is no folder {root.parent}; make it first")
    staging = root.parent / f".{root.name[:100]}.{token_hex(6)}.part"
    staging.mkdir()
    try:
        with _open_root(staging) as folder:
            _write_files(staging, folder, {**made, MANIFEST: _manifest_json(made)})
        staging.rename(root)  # this fails if somebody created the folder meanwhile, unless it is empty
    except BaseException:
        _remove_staging(staging)
        raise
    fsync_path(root.parent)


def _remove_staging(staging: Path) -> None:
    from shutil import rmtree

    rmtree(staging, ignore_errors=True)


@contextmanager
def _open_root(root: Path) -> Iterator[int]:
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the root itself may be a link
    except NotADirectoryError:
        raise BadTarget(f"{root} is a file; name a folder") from None
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _open_below(folder: int, parts: tuple[str, ...], *, create: bool) -> Iterator[int]:
    """Open a folder below another one, following no link."""
    here = os.dup(folder)
    try:
        for part in parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=here)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _write_files(root: Path, folder: int, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        *parents, name = PurePosixPath(path).parts
        try:
            with _open_below(folder, tuple(parents), create=True) as place:
                _write_file(place, name, data)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
                text = f"{root / path}: a link, a file or a folder is in the way; it is not touched"
                raise BadTarget(text) from error
            raise


def _write_file(place: int, name: str, data: bytes) -> None:
    """Replace a file atomically; a link is replaced itself, not what it points to."""
    part = f".{digest_of(os.fsencode(name))[:16]}.part"
    with suppress(FileNotFoundError):
        os.unlink(part, dir_fd=place)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o666, dir_fd=place)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, name, src_dir_fd=place, dst_dir_fd=place)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=place)
        raise


def _read_manifest(folder: int) -> dict[str, str]:
    """Return what an earlier export wrote, by path; an invalid manifest counts as empty."""
    data = _read_file(folder, MANIFEST, most=_MOST_MANIFEST)
    try:
        found = json.loads(data or b"{}")
        return {str(require_safe_path(path)): str(digest) for path, digest in found.items()}
    except (ValueError, AttributeError, RecursionError, BadTarget):
        return {}


def _read_file(folder: int, path: str, *, most: int | None = None) -> bytes | None:
    """Return the bytes of a regular file, None if there is none.

    Raises:
        OSError: something else has its name (ELOOP for a link, ENOTDIR, EISDIR).
    """
    *parents, name = PurePosixPath(path).parts
    try:
        with _open_below(folder, tuple(parents), create=False) as place:
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _NO_FOLLOW, dir_fd=place)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EISDIR, "not a regular file")
        return file.read() if most is None else file.read(most)


def _refuse_foreign(root: Path, folder: int, made: Mapping[str, bytes], *, known: Mapping[str, str]) -> None:
    """Refuse to replace a file that no export wrote, or that was edited since.

    Raises:
        BadTarget: it names the first such file.
    """
    for path, data in made.items():
        try:
            there = _read_file(folder, path)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
                raise
            raise BadTarget(f"{root / path}: a link, a file or a folder is in the way") from error
        if there is not None and there != data and digest_of(there) != known.get(path):
            whose = "was edited since it was exported" if path in known else "is not of an export"
            raise BadTarget(f"{root / path} {whose}; name another folder, or replace it with --force")


def _remove_file(folder: int, path: str, digest: str) -> None:
    """Remove a file of an earlier export, unless it was edited, and folders that become empty."""
    with suppress(OSError):
        content = _read_file(folder, path)
        *parents, name = PurePosixPath(path).parts
        if content is None or digest_of(content) != digest:
            return
        with _open_below(folder, tuple(parents), create=False) as place:
            os.unlink(name, dir_fd=place)
        for depth in range(len(parents), 0, -1):
            with _open_below(folder, tuple(parents[: depth - 1]), create=False) as place:
                os.rmdir(parents[depth - 1], dir_fd=place)
