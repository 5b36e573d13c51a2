"""A cache of folders that steps keep for later jobs; the oldest are removed when it grows too large.

A folder is in the cache as a whole or not at all. Reading it marks it as used. If it is removed while a job
uses it, open files stay and the rest is missing: an error of this run, not of a kernel.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

_CLOCK = ".clock"
_ABANDONED_S = 24 * 3600
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class FolderCache:
    """Folders by key under `root`, up to `max_bytes` in total."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self, key: str) -> Path | None:
        """Return the folder of a key and mark it as used now; None if there is none."""
        path = self._key_path(key)
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    @contextlib.contextmanager
    def create_draft(self) -> Iterator[Path]:
        """Yield a new empty folder to fill and then `put`; it is removed on failure."""
        path = self._root / (".new-" + uuid.uuid4().hex)
        path.mkdir(mode=0o700)
        try:
            yield path
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def put(self, key: str, draft: Path) -> Path:
        """Add a filled folder to the cache; if the key is taken, the first folder stays."""
        path = self._key_path(key)
        try:
            draft.rename(path)
        except OSError:  # another process was faster
            shutil.rmtree(draft, ignore_errors=True)
        self._evict_oldest(path)
        return path

    def drop(self, key: str) -> None:
        """Remove the folder of a key."""
        shutil.rmtree(self._key_path(key), ignore_errors=True)

    def _key_path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError("%r is no key of a shelf" % key[:80])
        return self._root / key

    def _evict_oldest(self, keep: Path) -> None:
        """Remove what was used longest ago, never `keep`; drafts that a killed step left count too."""
        found = []
        for path in self._root.iterdir():
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime, _folder_size(path), path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._max_bytes:
                return
            if path not in (keep, self._root / _CLOCK) and not _is_fresh_draft(path):
                shutil.rmtree(path, ignore_errors=True)
                total -= size


def _is_fresh_draft(path: Path) -> bool:
    """Whether a draft may still be in progress: it is younger than any step may run."""
    if not path.name.startswith(".new-"):
        return False
    try:
        newest = max((entry.stat().st_mtime for entry in path.iterdir()), default=path.stat().st_mtime)
    except OSError:
        return True  # it is being put into the cache, or removed, at this moment
    with (path.parent / _CLOCK).open("w") as clock:  # use the file system's clock, which may differ from ours
        return os.fstat(clock.fileno()).st_mtime - newest < _ABANDONED_S


def _folder_size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(entry.lstat().st_size for entry in path.rglob("*"))
