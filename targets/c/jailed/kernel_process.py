"""One kernel in a process of its own, and how the measuring process calls it and tells its time.

The two share the kernel's arrays and a page of flags; bytes in a pipe wake the kernel's process.

A kernel of one thread is timed by the CPU clock of its process, into which the machine's other load does not
enter. The system brings that clock up to date when a process yields or sleeps, so the process yields after
each call, and the clock is read when it had the time to go to sleep. Nothing escapes it: what the process
does between two calls counts for the second one. It includes waking up, some ten microseconds.

A kernel of several threads is timed by the wall clock: its process says when it is awake, and only the time
between the start signal and its flag counts. It must be idle afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from targets.c.jailed.shared_memory import SharedArray
from targets.c.jailed.system_calls import install_kernel_filter

_READY, _GO, _DONE = 0, 16, 32
"""Positions of the flags among the 32-bit words of their page: one cache line each."""

_CALL, _CALL_ON_SIGNAL = b"c", b"w"

_PARENT_DEATH_SIGNAL = 1
_CHECK_EVERY = 1 << 12
_STACK_BYTES = 64 << 20
_SETTLE_S = 0.002
_FALL_ASLEEP_S = 0.0001
ScalarArgument = tuple[int, float | int]
"""Position among all arguments, and value."""


class KernelEndedError(Exception):
    """The kernel's process ended, or did not answer in time: `code` and text for the verdict."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class CallTimes:
    """One call: its time in ns, and the CPU time that the process used right after it."""

    ns: int
    after_ns: int


class KernelProcess:
    """Starts the process; `arrays` are inputs and outputs in the order of the kernel's arguments."""

    def __init__(
        self,
        library: Path,
        arrays: Sequence[SharedArray],
        scalars: Sequence[ScalarArgument],
        *,
        cores: frozenset[int],
        threads: int,
        foreign: Sequence[SharedArray] = (),
    ) -> None:
        self._flags_file = mmap.mmap(-1, mmap.PAGESIZE)
        self._flags = memoryview(self._flags_file).cast("I")
        reader, self._writer = os.pipe()
        self.threads, self._calls, self.arrays = threads, 0, arrays
        self._alone = len(os.sched_getaffinity(0)) == 1
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            self._become_kernel(library, scalars, reader, cores=cores, foreign=foreign)
        os.close(reader)
        self._clock = find_cpu_clock(self.pid)
        self._used_ns = 0

    def call(self, deadline_s: float) -> CallTimes:
        """Run the kernel once.

        Raises:
            KernelEndedError: it crashed, exited or took longer than the deadline.
        """
        self._calls += 1
        limit = time.monotonic() + deadline_s
        return self._call_on_signal(limit) if self.threads > 1 else self._call_byfind_cpu_clock(limit)

    def _call_byfind_cpu_clock(self, limit: float) -> CallTimes:
        before = self._used_ns
        self._send(_CALL)
        self._wait_for(_DONE, limit)
        time.sleep(_FALL_ASLEEP_S)
        self._used_ns = time.clock_gettime_ns(self._clock)
        return CallTimes(self._used_ns - before, 0)

    def _call_on_signal(self, limit: float) -> CallTimes:
        self._send(_CALL_ON_SIGNAL)
        self._wait_for(_READY, limit)
        started = time.perf_counter_ns()
        self._flags[_GO] = self._calls
        self._wait_for(_DONE, limit)
        ended = time.perf_counter_ns()
        time.sleep(_SETTLE_S)
        before = time.clock_gettime_ns(self._clock)
        time.sleep(_SETTLE_S)
        return CallTimes(ended - started, time.clock_gettime_ns(self._clock) - before)

    def _send(self, command: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer, command)

    def close(self) -> None:
        """End the process by closing its pipe; whatever ignores that is killed with the jail."""
        os.close(self._writer)
        limit = time.monotonic() + 1
        while time.monotonic() < limit and os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            time.sleep(0.001)

    def _wait_for(self, place: int, limit: float) -> None:
        flags, number, turns = self._flags, self._calls, 0
        while flags[place] != number:
            turns += 1
            if self._alone:
                os.sched_yield()
            if turns % _CHECK_EVERY == 0:
                self._require_alive(limit)

    def _require_alive(self, limit: float) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            raise describe_end(status)
        if time.monotonic() > limit:
            raise KernelEndedError("deadline", "a call did not return in time")

    def _become_kernel(
        self,
        library: Path,
        scalars: Sequence[ScalarArgument],
        commands: int,
        *,
        cores: frozenset[int],
        foreign: Sequence[SharedArray],
    ) -> NoReturn:
        """Give up what the kernel must not have, load it, and serve calls."""
        try:
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            for one in (*self.arrays, *foreign):
                one.release()
            with contextlib.suppress(OSError):  # a cpuset of the machine may forbid it
                os.sched_setaffinity(0, cores)
            os.environ["OMP_NUM_THREADS"] = str(self.threads)
            os.environ["OMP_WAIT_POLICY"] = "passive"
            addresses = [ctypes.c_void_p(one.map_guarded()) for one in self.arrays]
            _close_files(keep=commands)
            resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, _STACK_BYTES))
            if not install_kernel_filter(threads=self.threads > 1):
                os._exit(97)
            kernel = ctypes.CDLL(str(library)).kernel
            kernel.restype = None
            arguments: list[object] = list(addresses)
            for place, value in scalars:
                converted = ctypes.c_int(value) if isinstance(value, int) else ctypes.c_double(value)
                arguments.insert(place, converted)
            self._serve(kernel, arguments, commands)
        except BaseException:  # noqa: BLE001  the status tells; nothing of this may reach the caller's code
            os._exit(98)
        os._exit(0)

    def _serve(self, kernel: Callable[..., None], arguments: Sequence[object], commands: int) -> None:
        flags, number = self._flags, 0
        while command := os.read(commands, 1):
            number += 1
            if command == _CALL_ON_SIGNAL:
                flags[_READY] = number
                while flags[_GO] != number:
                    if self._alone:
                        os.sched_yield()
            kernel(*arguments)
            os.sched_yield()
            flags[_DONE] = number


def _close_files(*, keep: int) -> None:
    """Close every file of the process but one; the answer's pipe must not be open in the kernel's process."""
    os.closerange(0, keep)
    os.closerange(keep + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def find_cpu_clock(pid: int) -> int:
    """Return the clock of a process's CPU time, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | 2


def describe_end(status: int) -> KernelEndedError:
    """Return how a kernel's process ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return KernelEndedError("cpu_limit", "the kernel used up its CPU time")
        if number in (signal.SIGSEGV, signal.SIGBUS):
            text = "it read or wrote outside its arrays, or wrote to an input"
            return KernelEndedError(
                "segmentation_fault", f"the kernel crashed ({signal.Signals(number).name}): {text}"
            )
        return KernelEndedError("crashed", f"the kernel crashed ({signal.Signals(number).name})")
    code = os.WEXITSTATUS(status)
    if code == 98:
        return KernelEndedError(
            "not_loaded", "the compiled kernel could not be loaded: does it call functions that it lacks?"
        )
    if code == 97:
        return KernelEndedError("no_filter", "the system-call filter could not be installed")
    return KernelEndedError("exited", f"the kernel ended its process with status {code}")
