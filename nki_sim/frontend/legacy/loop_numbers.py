"""Numbers that the body of a loop rebinds.

The vendor traces a loop's body once, so a Python number that the body changes (`address += size`) has, in
every iteration, the value of the first. Loops are unrolled here: each iteration therefore finds the numbers
of its function as the first one found them.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

_PLAIN = frozenset({int, float, bool})


class LocalNumbers:
    """The plain numbers among the local variables of a function when its loop begins.

    Loop variables are none of them, nor are global variables.
    """

    __slots__ = ("_before", "_code")

    def __init__(self, frame: FrameType) -> None:
        self._code = frame.f_code
        found = frame.f_locals if frame.f_code.co_flags & inspect.CO_OPTIMIZED else {}
        self._before = {name: value for name, value in found.items() if type(value) in _PLAIN}

    def restore(self, frame: FrameType) -> None:
        """Give the variables their first values again where the body gave them others."""
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
    """Before Python 3.13, `f_locals` of a function is a copy that has to be written back."""
    if sys.version_info < (3, 13):
        import ctypes

        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
