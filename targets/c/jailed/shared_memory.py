"""Arrays that a kernel's process shares with the one that measures it, with guard pages around each.

An array ends at the end of a page (up to its alignment), so that most accesses beyond it fault at once. What
lies between the array and its page's edges is filled with a pattern and checked. Inputs are sealed: only
mappings that existed before can write to them, and the kernel's process gives those up.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

ALIGNMENT = 64
PAGE = mmap.PAGESIZE
CANARY = 0xA5
_SEAL_FUTURE_WRITE, _ADD_SEALS, _ALLOW_SEALING = 0x10, 1033, 2
_NONE, _READ, _WRITE = 0, 1, 2
_SHARED, _PRIVATE, _FIXED, _ANONYMOUS = 1, 2, 0x10, 0x20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)


class SharedArray:
    """`nbytes` of memory in a file of its own; `is_input` seals it against later writers."""

    def __init__(self, nbytes: int, *, is_input: bool) -> None:
        self.nbytes, self.is_input = nbytes, is_input
        self._size = -(-max(nbytes, 1) // PAGE) * PAGE
        self._start = self._size - -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.fd = os.memfd_create("array", _ALLOW_SEALING)
        os.ftruncate(self.fd, self._size)
        self._mapping = mmap.mmap(self.fd, self._size)
        self._mapping[:] = bytes([CANARY]) * self._size
        if is_input:
            fcntl.fcntl(self.fd, _ADD_SEALS, _SEAL_FUTURE_WRITE)

    @property
    def data(self) -> memoryview:
        """The array's bytes, for the process that measures."""
        return memoryview(self._mapping)[self._start : self._start + self.nbytes]

    def poison(self) -> None:
        """Fill it with bytes that read as NaN (floats) and -1 (integers)."""
        self.data[:] = b"\xff" * self.nbytes

    def is_intact(self) -> bool:
        """Whether nothing was written beside the array."""
        view = memoryview(self._mapping)
        edges = bytes(view[: self._start]) + bytes(view[self._start + self.nbytes :])
        return edges == bytes([CANARY]) * len(edges)

    def describe_file(self) -> list[str]:
        """Return descriptor, bytes of the file, the array's place in it, and 1 for an input, as words."""
        return [str(self.fd), str(self._size), str(self._start), str(int(self.is_input))]

    def release(self) -> None:
        """Unmap it, in the kernel's process: from now on only `map_guarded` gives access."""
        self._mapping.close()

    def map_guarded(self) -> int:
        """Map it between two inaccessible pages; return the address of the array."""
        edge = 16 * PAGE
        region = _libc.mmap(None, self._size + 2 * edge, _NONE, _PRIVATE | _ANONYMOUS, -1, 0)
        rights = _READ if self.is_input else _READ | _WRITE
        found = _libc.mmap(region + edge, self._size, rights, _SHARED | _FIXED, self.fd, 0)
        if found != region + edge:
            raise OSError(ctypes.get_errno(), "mmap of an array failed")
        os.close(self.fd)
        return int(found) + self._start
