"""The folders of a worker, and how files appear in them.

    <workdir>/worker/<sha256>.pyz    this program, one for each version in use
    <workdir>/store/<sha256>         what homes sent: content under its digest
    <workdir>/jobs/<key>/            one job: spec.json, inputs/, leases/<client>, lock, attempts, reserve,
                                     result.json when it is over, and work/, the only part a step sees
    <workdir>/trash/                 what is being removed
    <leases>/core-N, cpu-N           who holds a device core or a CPU: `leases.py`

All users of the machine share one `<leases>` folder, because they share its cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import uuid
from pathlib import Path
from typing import Any

LEASES_VARIABLE = "NKI_KERNEL_AGENT_LEASES"
_LEASES = "/tmp/nki-kernel-agent-leases"  # noqa: S108  world-writable by intent, and opened with care
_FOLDERS = ("worker", "store", "jobs", "trash")


class Workdir:
    """The folders of one workdir, created if they are missing."""

    def __init__(self, workdir: Path) -> None:
        self.root = workdir.expanduser().absolute()
        for name in _FOLDERS:
            (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.store = self.root / "store"
        self.jobs = self.root / "jobs"
        self.trash = self.root / "trash"

    def move_to_trash(self, path: Path) -> None:
        """Remove a file or folder: out of its place at once, from the disk as soon as possible."""
        away = self.trash / uuid.uuid4().hex
        try:
            path.rename(away)
        except FileNotFoundError:
            return
        remove_path(away)


def open_leases_folder() -> Path:
    """Return the folder of leases, created if it is missing.

    Raises:
        PermissionError: it is a link, or belongs to a user who may not create it.
    """
    folder = Path(os.environ.get(LEASES_VARIABLE) or _LEASES)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
        folder.chmod(0o1777)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise PermissionError(f"{folder} must be a folder; remove it")
    return folder


def remove_path(path: Path) -> None:
    """Remove a file or folder; make what a step left unreadable readable first."""
    if path.is_dir() and not path.is_symlink():
        for folder, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                Path(folder).chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write a file that appears as a whole or not at all, even if the power fails."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def read_json(path: Path) -> Any:
    """Return what `write_json` wrote; None if the file is missing or incomplete."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
