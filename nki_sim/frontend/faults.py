"""Whatever comes out of kernel code becomes a `KernelError` with the line of the kernel's own file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from nki_sim.errors import KernelError, SimError

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
    except KernelError as error:
        line, other = _where(error.__traceback__, place.filename)
        line = error.line or line or place.line
        raise type(error)(error.code, error.message + other, line, error.hint) from None
    except SimError:
        raise
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        if place.attended and isinstance(error, KeyboardInterrupt):
            raise
        line, other = _where(error.__traceback__, place.filename)
        raise KernelError("kernel_exit", f"the kernel raised {type(error).__name__}{other}", line) from None
    except BaseException as error:  # noqa: BLE001  kernel code may raise anything, and all of it is its fault
        line, other = _where(error.__traceback__, place.filename)
        message = f"{type(error).__name__}: {error}"[:2000] + other
        raise KernelError("kernel_exception", message, line) from None


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
