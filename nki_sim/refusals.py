"""Notes what is refused of a kernel that is judged, which may catch the error and go on.

A device may not refuse the same: a kernel that learns where it runs may be another kernel there. So the first
refusal counts, whether the kernel's file is being loaded or the kernel runs. What the front end asks for
itself is not the kernel's and is not noted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn, Self

from nki_sim.errors import KernelError

_PACKAGE = f"{Path(__file__).resolve().parent}/"
_HINT = "use the names that the documents list"
_notes: list[noting_refusals] = []


class noting_refusals:  # noqa: N801  a context manager reads as a verb
    """Notes the first refusal of a kernel's file meanwhile, in `first`."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.first: KernelError | None = None

    def __enter__(self) -> Self:
        _notes.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _notes.pop()

    def raise_first(self) -> None:
        """Refuse the kernel if something was refused.

        Raises:
            KernelError: the first refusal, at its line.
        """
        if self.first is not None:
            raise self.first


def note_refusal(code: str, message: str, hint: str = "") -> None:
    """Note an error of the kernel, if it is the kernel that runs."""
    if _notes and _notes[-1].first is None:
        frame = _find_frame(sys._getframe(1), _notes[-1].filename)  # noqa: SLF001
        if frame is not None:
            _notes[-1].first = KernelError(code, message, frame.f_lineno, hint)


def note_look(code: str, message: str, hint: str = "") -> None:
    """Note that the kernel looks at what no document defines, unless the front end calls the caller."""
    if _notes and _find_frame(sys._getframe(2), _notes[-1].filename, unless=_PACKAGE) is not None:  # noqa: SLF001
        note_refusal(code, message, hint)


def note_caught_error() -> None:
    """Note the error that the kernel is about to catch, if it says what the simulator lacks.

    Values with `DocumentedNames` note that themselves; functions and classes cannot.
    """
    error = sys.exception()
    if isinstance(error, AttributeError) and _is_of_simulator(error.obj):
        note_refusal("unknown_name", str(error), _HINT)


def check_own_name(owner: Any, name: str) -> Any:
    """Return the owner of a private name that a kernel asks for, if the name is not the front end's.

    Raises:
        AbsentNameError: it is; for kernels it is not there.
    """
    kind = owner if isinstance(owner, type) else type(owner)
    definer = next((base for base in kind.__mro__ if name in vars(base)), kind)
    if _is_of_simulator(owner) or _is_of_simulator(definer) or isinstance(owner, ModuleType):
        error = _absent_name(kind, name)
        note_refusal(error.code, error.message, error.hint)
        raise AbsentNameError(error)
    return owner


class AbsentNameError(AttributeError):
    """A value lacks the requested name; inside a kernel this becomes the error `refusal`."""

    def __init__(self, refusal: KernelError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class DocumentedNames:
    """A value that notes when a kernel asks it for a name that it lacks."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        error = _absent_name(type(self), name)
        note_look(error.code, error.message, error.hint)
        raise AbsentNameError(error)


def _absent_name(kind: type, name: str) -> KernelError:
    return KernelError("unknown_name", f"{kind.__name__} has no `{name}`", hint=_HINT)


def _is_of_simulator(value: object) -> bool:
    homes = (type(value).__module__, getattr(value, "__module__", None))
    return any(str(home).partition(".")[0] == "nki_sim" for home in homes)


def _find_frame(frame: FrameType | None, filename: str, *, unless: str | None = None) -> FrameType | None:
    """Return the first frame of the file from this one outwards; None if one below `unless` comes first.

    Frames between are Python's own, such as those that write the text of a dataclass.
    """
    while frame is not None:
        found = frame.f_code.co_filename
        if found == filename:
            return frame
        if unless is not None and found.startswith(unless):
            return None
        frame = frame.f_back
    return None
