"""Hardware counters of a kernel's process: opened here, outside of the jail, and read in it.

The jail denies `perf_event_open`. So the process that measures there sends a pidfd of the kernel's process
through a socket that it inherited, and gets the descriptors of disabled counters back. They count what the
process and its later threads do in user space. Many machines refuse: then profiles lack these counters, and
`agentctl doctor` says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import platform
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from targets.base import DeviceCheck

_HARDWARE = 0
EVENTS: Mapping[str, tuple[int, int]] = {
    "cycles": (_HARDWARE, 0),
    "instructions": (_HARDWARE, 1),
    "cache_misses": (_HARDWARE, 3),
}
"""Type and number of each counter, as perf_event_open(2) has them."""

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
MOST_PARANOID = 2
"""The highest value with which users may count what their own processes do in user space."""

_CALL_NUMBERS = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTE_BYTES = 64  # the first version of perf_event_attr
_WITH_TIMES = 1 | 2  # a read gives value, time enabled and time running
_DISABLED, _INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_HIDDEN = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP})
_DENIED = frozenset({errno.EACCES, errno.EPERM})

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class CounterRefusal:
    """Why this machine counts nothing, and what to do about it."""

    reason: str
    remedy: str


def open_counter(pid: int, kind: tuple[int, int]) -> int:
    """Return the descriptor of a disabled counter of a process and its later threads.

    Raises:
        OSError: the system refuses it.
    """
    number = _CALL_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    flags = _DISABLED | _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    told = struct.pack("=IIQQQQQ", kind[0], _ATTRIBUTE_BYTES, kind[1], 0, 0, _WITH_TIMES, flags)
    return _call_system(number, told.ljust(_ATTRIBUTE_BYTES, b"\0"), pid)


def _call_system(number: int, attributes: bytes, pid: int) -> int:
    """Call perf_event_open for a process on any core.

    Raises:
        OSError: the system refuses it.
    """
    found: int = _libc.syscall(
        ctypes.c_long(number),
        ctypes.create_string_buffer(attributes, len(attributes)),
        ctypes.c_int(pid),
        ctypes.c_int(-1),
        ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found


def open_counters(pid: int) -> dict[str, int]:
    """Return the descriptors of those counters of a process that this machine has and allows.

    Raises:
        OSError: it has or allows none.
    """
    found: dict[str, int] = {}
    refused: OSError | None = None
    for name, kind in EVENTS.items():
        try:
            found[name] = open_counter(pid, kind)
        except OSError as error:
            refused = refused or error
    if not found and refused is not None:
        raise refused
    return found


def find_refusal() -> CounterRefusal | None:
    """Return why this process may not count what its own processes do; None if it may."""
    try:
        for fd in open_counters(os.getpid()).values():
            os.close(fd)
    except OSError as error:
        return _explain_refusal(error.errno or 0, _read_paranoid())
    return None


def _read_paranoid() -> int | None:
    try:
        return int(PARANOID.read_text())
    except (OSError, ValueError):
        return None


def _explain_refusal(code: int, paranoid: int | None) -> CounterRefusal:
    if code in _HIDDEN:
        return CounterRefusal(
            "this machine shows no hardware counters",
            "a virtual machine needs a virtual PMU (QEMU: -cpu host,pmu=on); profiles go without",
        )
    if code in _DENIED and paranoid is not None and paranoid > MOST_PARANOID:
        return CounterRefusal(
            f"kernel.perf_event_paranoid is {paranoid}",
            f"sysctl kernel.perf_event_paranoid={MOST_PARANOID}, and in /etc/sysctl.d to keep it",
        )
    if code in _DENIED:
        return CounterRefusal(
            "perf_event_open is denied",
            "if this is a container: allow perf_event_open in its seccomp profile, or add CAP_PERFMON",
        )
    return CounterRefusal(
        f"perf_event_open failed: {os.strerror(code)}", "profiles go without hardware counters"
    )


def check_counters() -> list[DeviceCheck]:
    """Return for `agentctl doctor` whether hardware counters are allowed, and how to allow them."""
    refused = find_refusal()
    if refused is None:
        return [DeviceCheck("counters", f"profiles have {', '.join(EVENTS)}")]
    return [DeviceCheck("counters", f"none: {refused.reason}", refused.remedy)]


@contextmanager
def lend_counters() -> Iterator[int | None]:
    """Open counters for whoever asks through the socket whose descriptor this yields; None where refused.

    A running event loop answers.
    """
    if find_refusal() is not None:
        yield None
        return
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        here.setblocking(False)
        loop.add_reader(here, _answer_request, here)
        try:
            yield there.fileno()
        finally:
            loop.remove_reader(here)


def _answer_request(here: socket.socket) -> None:
    """Read a pidfd, and answer with the names and descriptors of its process's counters."""
    with contextlib.suppress(BlockingIOError, ConnectionError):
        _, processes, _, _ = socket.recv_fds(here, 1, 1)
        counters: dict[str, int] = {}
        try:
            with contextlib.suppress(OSError):
                counters = open_counters(_find_pid(processes[0]))
            socket.send_fds(here, [json.dumps(list(counters)).encode()], list(counters.values()))
        finally:
            for fd in (*processes, *counters.values()):
                os.close(fd)


def _find_pid(pidfd: int) -> int:
    """Return a process's number on this side of the jail.

    Raises:
        OSError: it has ended.
    """
    found = re.search(r"^Pid:\s*(\d+)$", Path(f"/proc/self/fdinfo/{pidfd}").read_text(), re.MULTILINE)
    if found is None or int(found[1]) == 0:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return int(found[1])
