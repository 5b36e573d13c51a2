"""Counters of a kernel's process, which the program outside of the jail opens and this one reads."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median

_ENABLE, _DISABLE = 0x2400, 0x2401
_MOST_COUNTERS, _NAMES_BYTES = 16, 1 << 10
_READING = struct.Struct("=QQQ")
"""What a read gives: the count, and the ns in which the counter was enabled and in which it ran."""


class ProcessCounters:
    """Counts what a process does in some of its calls; `files` are the counters by name."""

    def __init__(self, files: Mapping[str, int]) -> None:
        self._files = files
        self._counts: dict[str, list[float]] = {name: [] for name in files}

    @property
    def are_open(self) -> bool:
        """Whether there is a counter."""
        return bool(self._files)

    @contextmanager
    def count_call(self) -> Iterator[None]:
        """Count what the process does meanwhile."""
        before = self._read_all()
        for fd in self._files.values():
            fcntl.ioctl(fd, _ENABLE, 0)
        yield
        for fd in self._files.values():
            fcntl.ioctl(fd, _DISABLE, 0)
        for name, (count, enabled, ran) in self._read_all().items():
            count_before, enabled_before, ran_before = before[name]
            if ran > ran_before:  # counters take turns where the CPU has too few
                share = (ran - ran_before) / (enabled - enabled_before)
                self._counts[name].append((count - count_before) / share)

    def _read_all(self) -> dict[str, tuple[int, ...]]:
        return {name: _READING.unpack(os.read(fd, _READING.size)) for name, fd in self._files.items()}

    def medians(self) -> dict[str, float]:
        """Return the median count of a call, for each counter that ran."""
        return {name: median(counts) for name, counts in self._counts.items() if counts}


def request_counters(server: int, pid: int) -> ProcessCounters:
    """Ask for the counters of a child of this process; the kernel's process must be loaded and not called."""
    process = os.pidfd_open(pid)
    asked = socket.socket(fileno=os.dup(server))
    try:
        socket.send_fds(asked, [b"?"], [process])
        names, files, _, _ = socket.recv_fds(asked, _NAMES_BYTES, _MOST_COUNTERS)
    finally:
        os.close(process)
        asked.close()
    return ProcessCounters(dict(zip(json.loads(names), files, strict=True)))
