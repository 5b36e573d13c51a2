"""Context managers for commands that may take long: progress on stderr, Ctrl-C, a deadline."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET_S = 2.0


@contextmanager
def _call_after(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` in another thread if the body takes longer than `seconds`."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def report_progress(text: str) -> Iterator[None]:
    """Print on stderr what is running once it has taken two seconds, and at the end how long it took."""
    begun = time.monotonic()
    said = threading.Event()

    def announce() -> None:
        said.set()
        print(f"nki-sim: {text} ...", file=sys.stderr, flush=True)

    with _call_after(QUIET_S, announce):
        yield
    if said.is_set():
        print(f"nki-sim: {text}: {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)


_PLAIN = ("SIGINT", "SIGPIPE")


@contextmanager
def use_default_signals() -> Iterator[None]:
    """Let Ctrl-C and a closed pipe end the process quietly, as in other programs.

    As exceptions they would look like exceptions of the kernel.
    """
    numbers = [getattr(signal, name) for name in _PLAIN if hasattr(signal, name)]
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def enforce_deadline(seconds: float | None, status: int, expired: Callable[[], object]) -> Iterator[None]:
    """Run the body in a child process; after `seconds` kill it, call `expired` and exit with a status.

    Only the child returns from here. The parent waits for it and exits as it did. A thread or a signal
    handler would not do: `sum(iter(int, 1))` and `7 ** 10**9` never let another line of Python run.
    """
    if seconds is None or not hasattr(os, "fork"):
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        try:
            _await_child(child, reader, seconds)
            expired()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    os.close(reader)
    _die_with_parent(parent)
    try:
        yield
    finally:
        os.write(writer, b"!")  # the report follows, which must not be cut off


def _await_child(child: int, reader: int, seconds: float) -> None:
    """Exit as the child does; if it neither ends nor writes within `seconds`, kill it and return."""
    if not select.select([reader], [], [], seconds)[0]:
        os.kill(child, signal.SIGSTOP)  # from here on it cannot begin to report
        if not select.select([reader], [], [], 0)[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        os.kill(child, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        if -code not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


_SET_PARENT_DEATH_SIGNAL = 1


def _die_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent ends, where it can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)
