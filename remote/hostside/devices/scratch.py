"""Watches the folder that a jailed compiler may write to, and ends a program that fills it.

File limits bound one file, so a kernel could fill the disk with many. The folder's total is checked while the
program runs. So is the free space of the disk, which also reveals files that no longer have a name.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path
from typing import Iterator

from remote.hostside import process_tree

MAX_BYTES = 16 << 30
MAX_FILES = 200_000
MAX_DEPTH = 64
FLOOR_BYTES = 2 << 30
"""Bytes that stay free on the disk; half of the free space where that is less."""
LOOK_S = 0.2


class WatchedScratch:
    """A watched folder. `ended` says why the program was ended: `limit`, `disk`, or empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended = ""
        self._over = threading.Event()

    @contextlib.contextmanager
    def watch_folder(self) -> Iterator[None]:
        """Watch the folder while a program runs that this process started."""
        floor = min(FLOOR_BYTES, _free_bytes(self.folder) // 2)
        watching = threading.Thread(target=self._poll_limits, args=(floor,), daemon=True)
        watching.start()
        try:
            yield
        finally:
            self._over.set()
            watching.join()
            self._check_limits(floor)

    def remove_folder(self) -> None:
        """Remove the folder at any depth: Python's own removal gives up at its recursion limit."""
        subprocess.run(["rm", "-rf", "--", str(self.folder)], check=False)

    def _poll_limits(self, floor: int) -> None:
        while not self._over.wait(LOOK_S):
            self._check_limits(floor)
            if self.ended:
                process_tree.kill_descendants()

    def _check_limits(self, floor: int) -> None:
        if not self.ended and _exceeds_limits(self.folder):
            self.ended = "limit"
        elif not self.ended and _free_bytes(self.folder) < floor:
            self.ended = "disk"


def _free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _exceeds_limits(folder: Path) -> bool:
    """Whether a folder is too large or too deep to scan; entries that vanish meanwhile count as zero."""
    size = files = 0
    left = [(str(folder), 0)]
    while left:
        place, depth = left.pop()
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                files += 1
                if size > MAX_BYTES or files > MAX_FILES or depth > MAX_DEPTH:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    left.append((entry.path, depth + 1))
    return False
