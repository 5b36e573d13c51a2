"""Whatever comes out of kernel code becomes a `KernelError` with the line of the kernel's own file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from nki_sim.errors import InputError, IRError, KernelError, LimitError, TargetError, printable

_MINE = frozenset({InputError, IRError, KernelError, LimitError, TargetError})
"""Errors to pass on. What a kernel derives from them may hold anything: it is an error like any other."""

_PACKAGE = str(Path(__file__).resolve().parent.parent)


@dataclass(slots=True)
class Place:
    """The kernel's file, and the line where it begins: that of errors in what it takes and returns.

    An `attended` kernel runs in the process of a person, whose interrupt is not the kernel's doing.
    """

    filename: str
    line: int = 0
    attended: bool = False


@contextmanager
def kernel_faults(place: Place) -> Iterator[None]:
    """Map what kernel code raises; an error of another file of the kernel names its place as well."""
    try:
        yield
    except KeyboardInterrupt as error:
        if place.attended:
            raise
        raise _fault(error, place) from None
    except BaseException as error:  # noqa: BLE001  kernel code may raise anything, and all of it is its fault
        raise _fault(error, place) from None


def _fault(error: BaseException, place: Place) -> BaseException:
    """What to raise in the place of the error being handled; nothing of it is trusted to be what it seems."""
    line, other = _where(sys.exc_info()[2], place.filename)
    if type(error) in {KernelError, LimitError}:
        made: type[KernelError] = LimitError if type(error) is LimitError else KernelError
        fields = {name: getattr(error, name, "") for name in ("code", "message", "hint")}
        code, message, hint = (_text(value) for value in fields.values())
        given = getattr(error, "line", 0)
        line = given if type(given) is int and 0 < given < _MAX_LINE else line or place.line
        return made(code, message + other, line, hint)
    if type(error) in _MINE:
        return type(error)(_text(error))
    # Past the name that a metaclass may give it.
    name = type.__dict__["__name__"].__get__(type(error))
    if isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
        return KernelError("kernel_exit", f"the kernel raised {name}{other}", line)
    return KernelError("kernel_exception", f"{name}: {_text(error)}{other}", line)


_MAX_LINE = 1 << 31
_MAX_TEXT = 2000


def _text(value: Any) -> str:
    """What a value says of itself, if it can."""
    try:
        # Of a class derived from `str`, the characters that it really has.
        return printable(str.__getitem__(str(value), slice(0, _MAX_TEXT)))
    except BaseException:  # noqa: BLE001  the kernel's own `__str__` may raise anything
        return "(it cannot be put into words)"


def _where(traceback: TracebackType | None, filename: str) -> tuple[int, str]:
    """The innermost line of the kernel's file, and the place of another file that was reached from there."""
    line, other = 0, ""
    while traceback is not None:
        found = traceback.tb_frame.f_code.co_filename
        if found == filename:
            line, other = traceback.tb_lineno, ""
        elif line and not found.startswith((_PACKAGE, "<")):
            other = f" [{found}:{traceback.tb_lineno}]"
        traceback = traceback.tb_next
    return line, other
