"""Files of a cache whose content is checked before it is believed: each has its SHA-256 in a file beside it.

The digest is on the disk before the file has its name. So a file that a kill, a power cut or a bad disk left
in any other state than it was written in does not fit its digest, and counts as missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from state.atomic_files import atomic_write, fsync_path

SUFFIX = ".sha256"


def seal_file(draft: Path, path: Path) -> None:
    """Durably give a finished draft its name, and its digest.

    Raises:
        OSError: it could not be written; the file counts as missing.
    """
    fsync_path(draft)
    with atomic_write(_digest_path(path)) as part:
        part.write_text(_hash_file(draft) + "\n", encoding="ascii")
    draft.replace(path)
    fsync_path(path.parent)


def is_sound(path: Path) -> bool:
    """Return whether a file is there and as it was sealed."""
    try:
        return read_seal(path) == _hash_file(path)
    except (OSError, ValueError):
        return False


def read_seal(path: Path) -> str:
    """Return the digest that is beside a file, without a look at the file.

    Raises:
        OSError: there is none.
    """
    return _digest_path(path).read_text(encoding="ascii").strip()


class SealChecker:
    """Checks each file once, and again when it was changed: references can have gigabytes."""

    def __init__(self) -> None:
        self._sound: dict[Path, tuple[int, int, int]] = {}

    def is_sound(self, path: Path) -> bool:
        """Return whether a file is there and as it was sealed."""
        try:
            told = path.stat()
        except OSError:
            return False
        mark = (told.st_ino, told.st_size, told.st_mtime_ns)
        if self._sound.get(path) != mark:
            if not is_sound(path):
                return False
            self._sound[path] = mark
        return True


def list_unsound(folder: Path) -> Iterator[Path]:
    """Yield the files below `folder` that are not as they were sealed; drafts are left out."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        draft = any(part.startswith(".") for part in parts)
        if path.suffix != SUFFIX and not draft and path.is_file() and not is_sound(path):
            yield path


def _digest_path(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
