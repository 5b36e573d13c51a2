"""Turns any exception of kernel code into a `KernelError` with the line of the kernel's own file.

If the user runs the kernel directly, the error also names that file and its traceback ends there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from nki_sim.errors import (
    InputError,
    IRError,
    KernelError,
    LimitError,
    RuleError,
    TargetError,
    escape_surrogates,
)
from nki_sim.refusals import AbsentNameError

_KINDS: dict[type, type[KernelError]] = {kind: kind for kind in (KernelError, RuleError, LimitError)}
_MINE = frozenset({InputError, IRError, TargetError})
"""Errors to pass on, but not subclasses of them: a kernel may define those with any contents."""

_PACKAGE = str(Path(__file__).resolve().parent.parent)


@dataclass(slots=True)
class KernelOrigin:
    """The kernel's file and first line, which errors in its arguments and results refer to.

    An `attended` kernel runs in the user's process. If the user interrupts it, quits the debugger or ends a
    test, that is not an error of the kernel.
    """

    filename: str
    line: int = 0
    attended: bool = False


@contextmanager
def map_kernel_errors(place: KernelOrigin) -> Iterator[None]:
    """Map what kernel code raises; errors in another file of the kernel name that place as well."""
    try:
        yield
    except BaseException as error:  # kernel code may raise anything, and all of it is the kernel's fault
        if place.attended and _is_stop(error):
            raise
        if place.attended and _is_quit(error):
            raise KeyboardInterrupt("the debugger was quit") from None
        raise _kernel_error(error, place).with_traceback(error.__traceback__) from None


def _is_stop(error: BaseException) -> bool:
    """Whether the user ended the run: at the keyboard, or by a test that skips, fails or exits."""
    pytest = sys.modules.get("_pytest.outcomes")
    ends = (pytest.OutcomeException, pytest.Exit) if pytest else ()
    return isinstance(error, (KeyboardInterrupt, *ends))


def _is_quit(error: BaseException) -> bool:
    from bdb import BdbQuit

    return isinstance(error, BdbQuit)


def _kernel_error(error: BaseException, place: KernelOrigin) -> BaseException:
    """Return what to raise instead of the current error; the error itself is not trusted in any way."""
    line, other = _locate_error(sys.exc_info()[2], place.filename)
    if type(error) is AbsentNameError:
        error = getattr(error, "refusal", error)
    made = _KINDS.get(type(error))
    if made is not None:
        fields = {name: getattr(error, name, "") for name in ("code", "message", "hint")}
        code, message, hint = (_safe_text(value) for value in fields.values())
        given = getattr(error, "line", 0)
        line = given if type(given) is int and 0 < given < _MAX_LINE else line or place.line
        return made(code, message + other, line, hint)
    if type(error) in _MINE:
        return type(error)(_safe_text(error))
    # Bypass a name that a metaclass may define.
    name = type.__dict__["__name__"].__get__(type(error))
    if isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
        return KernelError("kernel_exit", f"the kernel raised {name}{other}", line)
    return KernelError("kernel_exception", f"{name}: {_safe_text(error)}{other}", line)


_MAX_LINE = 1 << 31
_MAX_TEXT = 2000
_ROOTS = {
    sys.base_prefix,
    sys.prefix,
    str(Path(_PACKAGE).parent),
    *(p for p in sys.path if p[-9:] == "-packages"),
}
_FOLDERS = re.compile(
    rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(_ROOTS, key=len, reverse=True)))})/(?:[^\s'\"()<>:]*/)?"
)
"""Folders of this installation, as import errors and descriptions of modules show them."""


def _safe_text(value: Any) -> str:
    """Return a value's text, if it can be converted."""
    try:
        # For a class derived from `str`, use the characters it really has.
        return _FOLDERS.sub("", escape_surrogates(str.__getitem__(str(value), slice(0, _MAX_TEXT))))
    except BaseException:  # noqa: BLE001  the kernel's own `__str__` may raise anything
        return "(it cannot be put into words)"


def _locate_error(traceback: TracebackType | None, filename: str) -> tuple[int, str]:
    """The innermost line of the kernel's file, and the place in another file that was reached from there."""
    line, other = 0, ""
    while traceback is not None:
        found = traceback.tb_frame.f_code.co_filename
        if found == filename:
            line, other = traceback.tb_lineno, ""
        elif line and not found.startswith((_PACKAGE, "<")):
            # Use the module's name, so that paths on this machine do not leak.
            module = _safe_text(traceback.tb_frame.f_globals.get("__name__"))
            other = f" [{module}, line {traceback.tb_lineno}]"
        traceback = traceback.tb_next
    return line, other


class locate_errors:  # noqa: N801  a context manager reads as a verb
    """Makes a kernel's errors point at its file: their text names it, and their traceback ends in it.

    Frames inside the simulator are removed below the caller's. An error without a frame in the kernel, such
    as a rule that the whole program breaks, gets one at its line.
    """

    def __init__(self, code: CodeType | None) -> None:
        self._code = code

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, KernelError) and self._code is not None and not error.filename:
            error.filename = self._code.co_filename
            error.line = error.line or self._code.co_firstlineno
            # When raised again, it keeps the traceback that it has then.
            error.__traceback__ = _kernel_traceback(error, self._code)


def _kernel_traceback(error: KernelError, code: CodeType) -> TracebackType | None:
    """The frames of the kernel's files, from the entry of the kernel to the line of the error."""
    frames: list[tuple[FrameType, int, int]] = []
    entry = error.__traceback__
    while entry is not None:
        found = entry.tb_frame.f_code.co_filename
        if found == code.co_filename or (frames and not found.startswith((_PACKAGE, "<"))):
            frames.append((entry.tb_frame, entry.tb_lasti, entry.tb_lineno))
        entry = entry.tb_next
    lines = [number for frame, _, number in frames if frame.f_code.co_filename == code.co_filename]
    if not lines or lines[-1] != error.line:
        frames = [(_source_frame(code, error.line), -1, error.line)]
    made: TracebackType | None = None
    for frame, instruction, number in reversed(frames):
        made = TracebackType(made, frame, instruction, number)
    return made


def _source_frame(code: CodeType, line: int) -> FrameType:
    """Make a frame that shows a line of the kernel's file."""
    source = compile("frame()", code.co_filename, "eval").replace(co_name=code.co_name, co_firstlineno=line)
    frame: FrameType = eval(source, {"frame": lambda: sys._getframe(1)})  # noqa: S307  text of our own
    return frame
