"""Named crash points: places in production code where a test can have the process killed, or hang.

`NKI_AGENT_CRASH_AT=name:n` kills the process with SIGKILL at the n-th hit of the point `name`,
`NKI_AGENT_CRASH_AT=n` at the n-th hit of any point. `NKI_AGENT_HANG_AT` makes the thread hang for ever
instead. If neither is set, a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

ENVIRONMENT = "NKI_AGENT_CRASH_AT"
HANG_ENVIRONMENT = "NKI_AGENT_HANG_AT"


def _kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    while True:
        time.sleep(3600)


@dataclass(slots=True)
class _CrashTrigger:
    name: str | None
    left: int
    blow: Callable[[], None] = _kill_process

    def count_hit(self, name: str) -> None:
        if self.name not in (None, name):
            return
        self.left -= 1
        if self.left == 0:
            self.blow()


def parse_trigger(
    text: str | None, *, variable: str = ENVIRONMENT, blow: Callable[[], None] = _kill_process
) -> _CrashTrigger | None:
    """Parse the environment's `name:n` or `n`; return None if it is unset or empty.

    Raises:
        ValueError: `text` has neither form, or n is not a positive number.
    """
    if not text:
        return None
    name, _, count = text.rpartition(":")
    if not count.isdecimal() or int(count) == 0:
        raise ValueError(f"{variable}={text!r}: expected NAME:N or N, with N from 1")
    return _CrashTrigger(name or None, int(count), blow)


_trigger = parse_trigger(os.environ.get(ENVIRONMENT)) or parse_trigger(
    os.environ.get(HANG_ENVIRONMENT), variable=HANG_ENVIRONMENT, blow=_hang
)


def crash_point(name: str) -> None:
    """Die or hang here if the environment says so; otherwise do nothing."""
    if _trigger is not None:
        _trigger.count_hit(name)
