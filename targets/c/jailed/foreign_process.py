"""One kernel of another machine, in a process of its own that a runner, such as an emulator, starts.

It is used as `KernelProcess` is. A byte in a pipe starts a call, and one comes back when it has returned.
What a call took is what the runner's plugin counted meanwhile, or else the CPU time of the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from targets.c.jailed.kernel_process import (
    CallTimes,
    KernelEndedError,
    describe_end,
    find_cpu_clock,
)
from targets.c.jailed.shared_memory import SharedArray
from targets.c.jailed.system_calls import install_kernel_filter

_PARENT_DEATH_SIGNAL = 1
_COMMAND = b"c"
_CRASHED = 128
"""What `call_kernel.c` adds to the number of the signal that ended a kernel."""


class ForeignProcess:
    """Starts the process: `command` is the runner with the program that loads `library` and calls it.

    `counter` is the word in the command for the descriptor of the page with the count; None if the runner
    counts nothing.
    """

    def __init__(
        self,
        command: Sequence[str],
        library: Path,
        arrays: Sequence[SharedArray],
        *,
        cores: frozenset[int],
        counter: str | None,
        foreign: Sequence[SharedArray] = (),
    ) -> None:
        self.arrays = arrays
        commands, self._writer = os.pipe()
        self._reader, replies = os.pipe()
        page = os.memfd_create("count")
        os.ftruncate(page, mmap.PAGESIZE)
        self._count = memoryview(mmap.mmap(page, mmap.PAGESIZE)).cast("Q") if counter else None
        told = [part.replace(counter, str(page)) if counter else part for part in command]
        told += [str(library), str(commands), str(replies)]
        for one in arrays:
            told += one.describe_file()
        self.pid = os.fork()
        if self.pid == 0:
            inherited = {commands, replies, page, *(one.fd for one in arrays)}
            _become_program(told, inherited, cores=cores, hidden=[*arrays, *foreign])
        for fd in (commands, replies, page):
            os.close(fd)
        self._clock = find_cpu_clock(self.pid)

    def call(self, deadline_s: float) -> CallTimes:
        """Run the kernel once; `ns` is the count if instructions are counted.

        Raises:
            KernelEndedError: it crashed, exited or took longer than the deadline.
        """
        before = self._read_meter()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer, _COMMAND)
        ready, _, _ = select.select([self._reader], [], [], deadline_s)
        if not ready:
            raise KernelEndedError("deadline", "a call did not return in time")
        if not os.read(self._reader, 1):
            _, status = os.waitpid(self.pid, 0)
            raise describe_end(_find_signal(status))
        return CallTimes(self._read_meter() - before, 0)

    def _read_meter(self) -> int:
        return self._count[0] if self._count is not None else time.clock_gettime_ns(self._clock)

    def close(self) -> None:
        """End the process by closing its pipe; whatever ignores that is killed with the jail."""
        os.close(self._writer)


def _find_signal(status: int) -> int:
    """The status of a process that a signal ended, where a crash was told by an exit status."""
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
    return code - _CRASHED if code > _CRASHED else status


def _become_program(
    command: Sequence[str], inherited: set[int], *, cores: frozenset[int], hidden: Sequence[SharedArray]
) -> NoReturn:
    """Give up what the kernel must not have, and start the runner."""
    try:
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        for one in hidden:
            one.release()
        with contextlib.suppress(OSError):  # a cpuset of the machine may forbid it
            os.sched_setaffinity(0, cores)
        for fd in range(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, fd in inherited)
        if not install_kernel_filter(threads=True):  # emulators have threads of their own
            os._exit(97)
        os.execv(command[0], list(command))  # noqa: S606  no shell is wanted
    except BaseException:  # noqa: BLE001  the status tells; nothing of this may reach the caller's code
        os._exit(98)
