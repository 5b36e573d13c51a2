"""A disk that fails on demand: an SQLite VFS, put around the usual one, that errs at a chosen operation.

It is made with ctypes from the very SQLite that Python's `sqlite3` uses, so that what is tested is what runs:
every database that is opened while it is in place goes through it. Operations are counted; at the n-th
of a kind the disk does what a `Fault` says. It also knows what a file held when it was last synced, so that
a power cut can be had at any operation: what was not synced is gone, or partly there.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

SQLITE_OK = 0
SQLITE_FULL = 13
IOERR_READ = 266
IOERR_SHORT_READ = 522
IOERR_WRITE = 778
IOERR_FSYNC = 1034
IOERR_TRUNCATE = 1546

WAL_OR_MAIN = 0x00080000 | 0x00000100  # SQLITE_OPEN_WAL, SQLITE_OPEN_MAIN_DB


class _File(ctypes.Structure):
    """`sqlite3_file`: its methods come first."""


_FILE = ctypes.POINTER(_File)
_READ = ctypes.CFUNCTYPE(ctypes.c_int, _FILE, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _FILE, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _FILE, ctypes.c_int)
_CLOSE = ctypes.CFUNCTYPE(ctypes.c_int, _FILE)


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods`; what is not replaced is copied as pointers."""

    _fields_ = [
        ("iVersion", ctypes.c_int),
        ("xClose", _CLOSE),
        ("xRead", _READ),
        ("xWrite", _READ),
        ("xTruncate", _TRUNCATE),
        ("xSync", _SYNC),
        ("rest", ctypes.c_void_p * 13),
    ]


_File._fields_ = [("methods", ctypes.POINTER(_Methods))]

_OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, _FILE, ctypes.c_int, ctypes.POINTER(ctypes.c_int)
)


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`, up to what is used; the rest is copied as pointers."""

    _fields_ = [
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        ("pNext", ctypes.c_void_p),
        ("zName", ctypes.c_char_p),
        ("pAppData", ctypes.c_void_p),
        ("xOpen", _OPEN),
        ("rest", ctypes.c_void_p * 15),
    ]


@dataclass(slots=True)
class Fault:
    """What goes wrong: the `nth` operation of a kind (write, sync, truncate, read) answers `code`.

    `part` of a write reaches the file all the same (torn). `lasting`: so do all later ones. `drops`: what a
    failed sync was to bring to the disk is gone, as Linux has it. `cut`: the power goes, at whatever
    operation is the nth; nothing after it reaches the disk.
    """

    kind: str
    nth: int
    code: int = IOERR_WRITE
    part: float = 0.0
    lasting: bool = False
    drops: bool = False
    cut: bool = False


@dataclass(slots=True)
class _Known:
    """One file: its path, what it held when last synced, and the writes since."""

    path: Path
    inode: int
    synced: bytes
    since: list[tuple[int, bytes]] = field(default_factory=list)


class FailingDisk:
    """Counts operations and lets a fault happen; a context in which SQLite uses it."""

    def __init__(self, fault: Fault | None = None, at_cut: Callable[[], None] = lambda: None) -> None:
        self.fault = fault
        self._at_cut = at_cut
        self.counts = dict.fromkeys(("write", "sync", "truncate", "read", "any"), 0)
        self.dead = False
        self._files: dict[int, _Known] = {}
        self._kept: list[Any] = []
        self._known: dict[Path, _Known] = {}

    @property
    def has_happened(self) -> bool:
        return self.fault is not None and self.counts[self.fault.kind] >= self.fault.nth

    def __enter__(self) -> Self:
        self._library = library()
        find = self._library.sqlite3_vfs_find
        find.restype = ctypes.POINTER(_Vfs)
        self._usual = find(None)
        own = _Vfs()
        ctypes.memmove(ctypes.byref(own), self._usual, ctypes.sizeof(_Vfs))
        own.zName = b"failing"
        own.xOpen = _OPEN(self._open)
        self._own = own
        self._library.sqlite3_vfs_register(ctypes.byref(own), 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._library.sqlite3_vfs_register(self._usual, 1)
        self._library.sqlite3_vfs_unregister(ctypes.byref(self._own))

    # --- SQLite's calls ---

    def _open(self, _: int, name: int | None, file: Any, flags: int, out: Any) -> int:
        code = self._usual.contents.xOpen(ctypes.addressof(self._usual.contents), name, file, flags, out)
        if code == SQLITE_OK and name and flags & WAL_OR_MAIN:
            self._wrap(file, Path(ctypes.string_at(name).decode()))
        return int(code)

    def _wrap(self, file: Any, path: Path) -> None:
        usual = file.contents.methods.contents
        own = _Methods()
        ctypes.memmove(ctypes.byref(own), ctypes.byref(usual), ctypes.sizeof(_Methods))
        own.xWrite = _READ(self._wrap_method("write", usual.xWrite, self._write))
        own.xRead = _READ(self._wrap_method("read", usual.xRead, None))
        own.xTruncate = _TRUNCATE(self._wrap_method("truncate", usual.xTruncate, self._truncate))
        own.xSync = _SYNC(self._wrap_method("sync", usual.xSync, self._sync))
        self._kept.append((usual, own))
        file.contents.methods = ctypes.pointer(own)
        inode = path.stat().st_ino
        known = self._known.get(path)
        if known is None or known.inode != inode:  # else another connection has it open too
            known = self._known[path] = _Known(path, inode, path.read_bytes())
        self._files[ctypes.addressof(file.contents)] = known

    def _wrap_method(self, kind: str, usual: Any, done: Callable[..., None] | None) -> Callable[..., int]:
        """Return a method that counts, errs when it is time, and else does what the usual one does."""

        def method(file: Any, *arguments: Any) -> int:
            if kind != "read":
                self.counts["any"] += 1
            self.counts[kind] += 1
            if self.dead:
                return IOERR_WRITE
            fault = self.fault
            if fault is not None and self._is_time(fault, kind):
                return self._fail(fault, usual, file, arguments)
            code = int(usual(file, *arguments))
            if code == SQLITE_OK and done is not None:
                done(self._files[ctypes.addressof(file.contents)], *arguments)
            return code

        return method

    def _is_time(self, fault: Fault, kind: str) -> bool:
        if fault.kind != kind and not (fault.kind == "any" and kind != "read"):
            return False
        count = self.counts[fault.kind]
        return count == fault.nth or (fault.lasting and count > fault.nth)

    def _fail(self, fault: Fault, usual: Any, file: Any, arguments: tuple[Any, ...]) -> int:
        if fault.cut:
            self.dead = True
            self._at_cut()
            return IOERR_WRITE
        if fault.drops:
            _back_to(self._files[ctypes.addressof(file.contents)])
        if fault.part and len(arguments) == 3:
            buffer, amount, offset = arguments
            usual(file, buffer, int(amount * fault.part), offset)
        return fault.code

    # --- what is on the disk ---

    def _write(self, known: _Known, buffer: int, amount: int, offset: int) -> None:
        known.since.append((offset, ctypes.string_at(buffer, amount)))

    def _truncate(self, known: _Known, size: int) -> None:
        known.since.append((size, b""))

    def _sync(self, known: _Known, _: int) -> None:
        known.synced = known.path.read_bytes()
        known.since.clear()

    def lose_unsynced(self, draw: random.Random | None = None) -> None:
        """Leave of every file what a power cut leaves: what was synced, and of later writes none, or any."""
        for known in self._known.values():
            if not known.path.exists():
                continue
            content = bytearray(known.synced)
            for offset, data in known.since:
                if draw is not None and draw.random() < 0.5:
                    _apply(content, offset, data, draw)
            known.path.write_bytes(bytes(content))


def _back_to(known: _Known) -> None:
    """Let a file, which SQLite has open, be what it was when it was last synced."""
    with known.path.open("r+b") as file:
        file.write(known.synced)
        file.truncate()
    known.since.clear()


def _apply(content: bytearray, offset: int, data: bytes, draw: random.Random) -> None:
    """Write some sectors of `data`; without data, cut the content at `offset`."""
    if not data:
        del content[offset:]
        return
    content.extend(bytes(max(0, offset + len(data) - len(content))))
    for start in range(0, len(data), 512):
        if draw.random() < 0.7:
            content[offset + start : offset + start + 512] = data[start : start + 512]


def library() -> Any:
    """Return the SQLite that Python's own module is linked to.

    Raises:
        OSError: it is linked statically, or is not to be found.
    """
    import _sqlite3

    names = [str(getattr(_sqlite3, "__file__", "")), ctypes.util.find_library("sqlite3") or ""]
    for name in filter(None, names):
        with contextlib.suppress(OSError):
            found = ctypes.CDLL(name)
            if hasattr(found, "sqlite3_vfs_find"):
                return found
    raise OSError("Python's sqlite3 has no SQLite library of its own that can be reached")


@contextlib.contextmanager
def failing_disk(fault: Fault | None, at_cut: Callable[[], None] = lambda: None) -> Iterator[FailingDisk]:
    """Let SQLite use a failing disk for the block; connections that were opened before do not notice."""
    with FailingDisk(fault, at_cut) as disk:
        yield disk
