"""Resets plain numbers that the body of a loop rebinds.

The vendor traces a loop's body once, so a Python number that the body changes (`address += size`) has its
first value in every iteration. The simulator unrolls loops, so before each iteration it restores the numbers
of the function to the values at the first one.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

_PLAIN = frozenset({int, float, bool})


class LocalNumbers:
    """The plain numbers among a function's local variables when its loop begins.

    Loop variables and global variables are not included.
    """

    __slots__ = ("_before", "_code")

    def __init__(self, frame: FrameType) -> None:
        self._code = frame.f_code
        found = frame.f_locals if frame.f_code.co_flags & inspect.CO_OPTIMIZED else {}
        self._before = {name: value for name, value in found.items() if type(value) in _PLAIN}

    def restore(self, frame: FrameType) -> None:
        """Restore the variables that the body changed to their first values."""
        if not self._before or frame.f_code is not self._code:
            return
        found: dict[str, Any] = frame.f_locals
        changed = [
            name
            for name, value in self._before.items()
            if found.get(name) is not value and type(found.get(name)) in _PLAIN
        ]
        for name in changed:
            found[name] = self._before[name]
        if changed:
            _write_back(frame)


def _write_back(frame: FrameType) -> None:
    """Write changes back; before Python 3.13, `f_locals` of a function is a copy."""
    if sys.version_info < (3, 13):
        import ctypes

        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
