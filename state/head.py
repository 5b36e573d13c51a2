"""The HEAD anchor: a small file beside the database that records the log's last acknowledged event.

SQLite cannot tell a log whose newest commits were cut off (a deleted -wal, a copy of the main file alone)
from one that never had them. HEAD can: an event is acknowledged only after HEAD names it. A log that ends
before HEAD has lost acknowledged events; a log that ends after it is normal.

HEAD holds two copies of the anchor in slots of one page each, which are overwritten in turn. So a write that
is torn leaves the copy before it, and a full disk cannot prevent one. The copy with the highest `seq` counts.

HEAD.second is a second witness, written whenever HEAD is synced: if HEAD is deleted together with the WAL,
a log that ends before the event that is named there has lost its tail; it may be a second behind.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from state.atomic_files import fsync_path
from state.crash import crash_point
from state.errors import HomeUnreadable, LogDamaged
from state.home_files import open_home_file, read_home_file

SLOT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Head:
    """A log's last event: its global `seq` (0: empty log), its stream and run_seq, its hash in hex."""

    seq: int
    stream: str
    run_seq: int
    hash: str


EMPTY_HEAD = Head(0, "", 0, "00" * 32)


def write_head(path: Path, head: Head) -> None:
    """Replace the anchor durably, and its second witness.

    The old witness goes first: it may name an event that the log of the new anchor does not have.
    """
    _second_path(path).unlink(missing_ok=True)
    _replace_file(path, head)
    _replace_file(_second_path(path), head)


def _second_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.second")


def _replace_file(path: Path, head: Head) -> None:
    """Write an anchor: temporary file, fsync, rename, fsync of the directory."""
    draft = path.with_name(f"{path.name}.tmp")
    crash_point("head.before_write")
    draft.unlink(missing_ok=True)  # a killed writer's, or a link that somebody put there
    descriptor = open_home_file(draft.parent, draft.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, for its mode
        file.write(_format_slot(head) * 2)
        file.flush()
        os.fsync(descriptor)
    crash_point("head.before_rename")
    draft.rename(path)
    fsync_path(path.parent)
    crash_point("head.after_write")


class HeadFile:
    """The anchor of an open log, with its second witness; only the log's owner writes them."""

    def __init__(self, path: Path) -> None:
        self._first = _AnchorFile(path)
        self._second = _AnchorFile(_second_path(path))

    @property
    def pinned(self) -> Path:
        """The folder of the anchor, whatever comes to be at its path."""
        return self._first.pinned

    def record(self, head: Head, *, sync: bool) -> None:
        """Write the anchor. It survives the death of this process, and with `sync` also a power cut."""
        self._first.record(head, sync=sync)
        if sync:
            self._second.record(head, sync=True)

    def close(self) -> None:
        """Close all files."""
        self._first.close()
        self._second.close()


class _AnchorFile:
    """One file of two slots."""

    def __init__(self, path: Path) -> None:
        self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        pinned = Path(f"/proc/self/fd/{self._folder}")  # another home may come to be at the same path
        self.pinned = pinned if pinned.exists() else path.parent
        self._path = self.pinned / path.name
        self._slot = _older_slot(path)  # the next to overwrite; None: the file must be replaced
        self._descriptor: int | None = None

    def close(self) -> None:
        self._close_file()
        os.close(self._folder)

    def record(self, head: Head, *, sync: bool) -> None:
        """Overwrite the older slot; make the file anew if there is none."""
        try:
            if self._slot is not None:
                self._overwrite_slot(self._slot, head, sync=sync)
                self._slot ^= 1
                return
        except (FileNotFoundError, HomeUnreadable):  # somebody deleted it, or put a link there
            pass
        self._close_file()
        _replace_file(self._path, head)
        self._slot = 0

    def _overwrite_slot(self, slot: int, head: Head, *, sync: bool) -> None:
        if sync:  # other writes follow the crash point `log.after_commit`
            crash_point("head.before_write")
        descriptor = self._open_file()
        os.pwrite(descriptor, _format_slot(head), slot * SLOT_BYTES)
        if sync:
            crash_point("head.before_sync")
            os.fsync(descriptor)
            crash_point("head.after_write")

    def _open_file(self) -> int:
        """Return the open file; it is opened anew if somebody deleted it, or put another in its place."""
        if self._descriptor is not None:
            if os.fstat(self._descriptor).st_nlink:
                return self._descriptor
            self._close_file()
        self._descriptor = open_home_file(self._path.parent, self._path.name, os.O_WRONLY)
        return self._descriptor

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _older_slot(path: Path) -> int | None:
    """Return the number of the slot that may be overwritten; None if HEAD does not have two slots yet."""
    try:
        data = _read_slots(path)
    except (OSError, HomeUnreadable):
        return None
    if len(data) != 2 * SLOT_BYTES:
        return None
    first, second = _parse_slot(data[:SLOT_BYTES]), _parse_slot(data[SLOT_BYTES:])
    return int(first is not None and (second is None or second.seq <= first.seq))


def _format_slot(head: Head) -> bytes:
    text = (  # what json.dumps gives, in a tenth of its time: a slot is written for each commit
        f'{{"seq": {head.seq}, "stream": "{head.stream}", "run_seq": {head.run_seq}, '
        f'"hash": "{head.hash}", "crc": {_checksum(head)}}}'
    )
    return text.encode().ljust(SLOT_BYTES - 1) + b"\n"


def _checksum(head: Head) -> int:
    return zlib.crc32(repr((head.seq, head.stream, head.run_seq, head.hash)).encode())


def read_head(path: Path) -> Head | None:
    """Return the anchor, or what its second witness says if that is later; None if there is neither.

    Raises:
        LogDamaged: the file is not an anchor.
        HomeUnreadable: no permission to read it, or it is a link.
    """
    data = _read_file(path)
    first = None if data is None else _parse_file(data)
    if data is not None and first is None:
        raise LogDamaged(f"{path.name} is not a HEAD anchor")
    second = read_second_head(path)
    if first is None or second is None:
        return first or second
    return max(first, second, key=lambda head: head.seq)


def read_second_head(path: Path) -> Head | None:
    """Return what the second witness of an anchor says; None if it is gone or damaged."""
    data = _read_file(_second_path(path))
    return None if data is None else _parse_file(data)


def _read_file(path: Path) -> bytes | None:
    try:
        return _read_slots(path)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise HomeUnreadable(f"{path}: no permission to read") from error
    except OSError:  # a directory, for example
        return b""


def _parse_file(data: bytes) -> Head | None:
    slots = (data[start : start + SLOT_BYTES] for start in range(0, len(data), SLOT_BYTES))
    found = [head for slot in slots if (head := _parse_slot(slot)) is not None]
    return max(found, key=lambda head: head.seq, default=None)


def _read_slots(path: Path) -> bytes:
    return read_home_file(path.parent, path.name, most=2 * SLOT_BYTES + 1)


def _parse_slot(slot: bytes) -> Head | None:
    """Return a slot's anchor; None if it is damaged. Older versions wrote one, without a checksum."""
    try:
        fields = json.loads(slot)
        crc = fields.pop("crc", None)
        head = Head(**fields)
        bytes.fromhex(head.hash)
        return head if head.seq >= 0 and crc in (None, _checksum(head)) else None
    except (ValueError, TypeError, AttributeError):
        return None
