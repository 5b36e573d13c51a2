"""The HEAD anchor: a small file beside the database that records the log's last event.

SQLite cannot tell a log whose newest commits were cut off (a deleted -wal, a copy of the main file alone)
from one that never had them. HEAD can: it is written after a commit, never before. A log that ends before
HEAD has lost acknowledged events; a log that ends after it is normal.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from state.atomic_files import fsync_path
from state.crash import crash_point
from state.errors import HomeUnreadable, LogDamaged


@dataclass(frozen=True, slots=True)
class Head:
    """A log's last event: its global `seq` (0: empty log), its stream and run_seq, its hash in hex."""

    seq: int
    stream: str
    run_seq: int
    hash: str


EMPTY_HEAD = Head(0, "", 0, "00" * 32)


def write_head(path: Path, head: Head) -> None:
    """Replace the anchor durably: temporary file, fsync, rename, fsync of the directory."""
    draft = path.with_suffix(".tmp")
    crash_point("head.before_write")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, for its mode
        file.write(json.dumps(asdict(head)).encode() + b"\n")
        file.flush()
        os.fsync(descriptor)
    crash_point("head.before_rename")
    draft.rename(path)
    fsync_path(path.parent)
    crash_point("head.after_write")


def read_head(path: Path) -> Head | None:
    """Return the anchor, or None if there is none.

    Raises:
        LogDamaged: the file is not an anchor.
        HomeUnreadable: no permission to read it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise HomeUnreadable(f"{path}: no permission to read") from error
    except (OSError, UnicodeDecodeError):  # a directory, for example
        return _raise_damaged(path)
    try:
        head = Head(**json.loads(text))
        bytes.fromhex(head.hash)
        return head if head.seq >= 0 else _raise_damaged(path)
    except (ValueError, TypeError):
        return _raise_damaged(path)


def _raise_damaged(path: Path) -> Head:
    raise LogDamaged(f"{path.name} is not a HEAD anchor")
