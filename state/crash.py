"""Named crash points: places in production code where a test can have the process killed.

`NKI_AGENT_CRASH_AT=name:n` kills the process with SIGKILL at the n-th hit of the point `name`;
`NKI_AGENT_CRASH_AT=n` at the n-th hit of any point. Unset, a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

ENVIRONMENT = "NKI_AGENT_CRASH_AT"


@dataclass(slots=True)
class _Fuse:
    name: str | None
    left: int

    def burn(self, name: str) -> None:
        if self.name not in (None, name):
            return
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def parse_fuse(text: str | None) -> _Fuse | None:
    """Read the environment's `name:n` or `n`; None when unset or empty.

    Raises:
        ValueError: `text` is neither form, or n is not a positive number.
    """
    if not text:
        return None
    name, _, count = text.rpartition(":")
    if not count.isdecimal() or int(count) == 0:
        raise ValueError(f"{ENVIRONMENT}={text!r}: expected NAME:N or N, with N from 1")
    return _Fuse(name or None, int(count))


_fuse = parse_fuse(os.environ.get(ENVIRONMENT))


def crash_point(name: str) -> None:
    """Die here if the environment says so; otherwise do nothing."""
    if _fuse is not None:
        _fuse.burn(name)
