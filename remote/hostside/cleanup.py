"""Removes files that nobody will ask for any more: by age, and by size with the oldest first.

A job that runs, or that a home wants and asked about recently, is never touched. Ages go by the calendar
clock, so the limits are long: a clock that jumps by a day removes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from remote.hostside.errors import RequestRefused
from remote.hostside.jobs import JobFolder
from remote.hostside.workdir import Workdir, remove_path

_DAY_S = 86400.0
JOBS_S = 7 * _DAY_S
STORE_S = 14 * _DAY_S
JOBS_BYTES = 4 << 30
STORE_BYTES = 4 << 30
_WORKERS = 4  # versions of this program


def remove_stale_files(place: Workdir) -> int:
    """Remove what is too old or too large; return the number of removed entries.

    Only one call runs at a time per workdir.
    """
    with (place.root / "sweep").open("a", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        for path in place.trash.iterdir():
            if _age_seconds(path) > _DAY_S:
                remove_path(path)
        gone = _remove_oldest(place, place.jobs, JOBS_S, most_bytes=JOBS_BYTES)
        gone += _remove_oldest(place, place.store, STORE_S, most_bytes=STORE_BYTES)
        workers = sorted((place.root / "worker").iterdir(), key=_age_seconds)
        for path in workers[_WORKERS:]:
            if _age_seconds(path) > _DAY_S:
                remove_path(path)
                gone += 1
        return gone


def _remove_oldest(place: Workdir, folder: Path, most_s: float, *, most_bytes: int) -> int:
    """Remove entries older than `most_s`, then the oldest ones until the rest is within `most_bytes`."""
    paths = list(folder.iterdir())
    sizes = {path: _size_bytes(path) for path in paths}
    total = sum(sizes.values())
    gone = 0
    for path in sorted(paths, key=_age_seconds, reverse=True):
        if (_age_seconds(path) > most_s or total > most_bytes) and _is_idle(place, path):
            place.move_to_trash(path)
            total -= sizes[path]
            gone += 1
    return gone


def _is_idle(place: Workdir, path: Path) -> bool:
    """Whether a path is not a job, or is a job of which nothing runs."""
    try:
        job = JobFolder(place, path.name)
        fd = job.try_lock()
    except (RequestRefused, OSError):
        return True
    if fd is None:
        return False
    os.close(fd)
    return True


def _age_seconds(path: Path) -> float:
    """Seconds since the path was last touched; for a job, since its end or its last renewal."""
    times = [0.0]
    for touched in (path, path / "result.json", path / "leases"):
        with contextlib.suppress(OSError):
            times.append(touched.lstat().st_mtime)
    return time.time() - max(times)


def _size_bytes(path: Path) -> int:
    with contextlib.suppress(OSError):
        if not path.is_dir():
            return path.lstat().st_size
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).lstat().st_size
    return total
