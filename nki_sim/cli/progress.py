"""Context managers for commands that may take long: progress on stderr, Ctrl-C, a deadline."""

from __future__ import annotations

import os
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
    """After `seconds`, call `expired` and end the process with a status; a kernel cannot catch it."""
    if seconds is None:
        yield
        return

    # The deadline and the end of the command race for this lock; the winner keeps it for good and reports.
    speaking = threading.Lock()

    def end() -> None:
        speaking.acquire()
        try:
            expired()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)

    try:
        with _call_after(seconds, end):
            yield
    finally:
        speaking.acquire()
