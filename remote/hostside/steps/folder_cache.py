"""What steps keep for later jobs: folders under a key, the oldest thrown away when there are too many bytes.

A folder is on the shelf as a whole or not at all. Taking one marks it as used; whoever uses it while it is
thrown away keeps what is open, and finds the rest missing, which is an error of this run and of no kernel.
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
    """Folders by key under `root`, up to `max_bytes` altogether."""

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
        """Give a new empty folder, to be filled and then `put` or removed; what fails leaves none."""
        path = self._root / (".new-" + uuid.uuid4().hex)
        path.mkdir(mode=0o700)
        try:
            yield path
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def put(self, key: str, draft: Path) -> Path:
        """Put a filled folder on the shelf; of two under one key the first one stays."""
        path = self._key_path(key)
        try:
            draft.rename(path)
        except OSError:  # somebody was faster
            shutil.rmtree(draft, ignore_errors=True)
        self._evict_oldest(path)
        return path

    def drop(self, key: str) -> None:
        """Throw away what is under a key."""
        shutil.rmtree(self._key_path(key), ignore_errors=True)

    def _key_path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError("%r is no key of a shelf" % key[:80])
        return self._root / key

    def _evict_oldest(self, keep: Path) -> None:
        """Throw away what was used longest ago, never `keep`; drafts that a killed step left count too."""
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
    """Whether a draft may still be under way: younger than any step may run."""
    if not path.name.startswith(".new-"):
        return False
    try:
        newest = max((entry.stat().st_mtime for entry in path.iterdir()), default=path.stat().st_mtime)
    except OSError:
        return True  # it is being put on the shelf, or thrown away, at this moment
    with (path.parent / _CLOCK).open("w") as clock:  # the file system's clock, whatever ours says
        return os.fstat(clock.fileno()).st_mtime - newest < _ABANDONED_S


def _folder_size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(entry.lstat().st_size for entry in path.rglob("*"))
