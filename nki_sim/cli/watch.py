"""What surrounds a command that may take long: progress on stderr, Ctrl-C, a deadline."""

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
def _after(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Calls `action` in a thread of its own if what is inside takes longer."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def stage(text: str) -> Iterator[None]:
    """Says on stderr what is going on once it has taken two seconds, and how long it took in the end."""
    begun = time.monotonic()
    said = threading.Event()

    def announce() -> None:
        said.set()
        print(f"nki-sim: {text} ...", file=sys.stderr, flush=True)

    with _after(QUIET_S, announce):
        yield
    if said.is_set():
        print(f"nki-sim: {text}: {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the process; as an exception it would be taken for one of the kernel's."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def deadline(seconds: float | None, expired: Callable[[], int]) -> Iterator[None]:
    """Ends the process with what `expired` returns when the time is over; a kernel cannot catch it."""
    if seconds is None:
        yield
        return

    def end() -> None:
        status = expired()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    with _after(seconds, end):
        yield
