"""The errors of the simulator, one tree, each with a stable code that callers may switch on.

SimError
|- KernelError        the kernel is at fault: code, message, line of the kernel's file, hint
|  |- RuleError       a rule that the whole program breaks, or the program on data
|  `- LimitError      the kernel asked for more than the caller allows (instructions, tensors)
|- IRError            bytes that are not a valid program
|- TargetError        a target that is not in the tables, or a table that is not valid
|- InputError         arrays or arguments that do not fit the program
`- ScheduleError      a program that cannot be scheduled (it does not fit on the chip)
"""

from __future__ import annotations

from typing import Any


def escape_surrogates(text: str) -> str:
    """The text in characters that UTF-8 has: a kernel may use half a surrogate pair."""
    return text.encode(errors="backslashreplace").decode()


class SimError(Exception):
    """Base of everything the simulator raises on purpose; `code` is stable, the text is not."""

    code = "sim_error"


class KernelError(SimError):
    """The kernel breaks a rule of the language or of the hardware, or raised on its own.

    `line` is the 1-based line of the kernel's own file, 0 when it has none. `filename` is that file where the
    kernel runs in the process of a person, empty where whoever asked knows it.
    """

    filename = ""

    def __init__(self, code: str, message: str, line: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.line = line
        self.hint = hint

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        if self.filename:
            place = f"{self.filename}:{self.line}: " if self.line else f"{self.filename}: "
        advice = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.code}: {self.message}{advice}"


class RuleError(KernelError):
    """The program breaks a rule of the hardware, as a whole or on its data.

    `broken` has all rules that it breaks, this one first, where the whole program shows them.
    """

    broken: tuple[Any, ...] = ()


class LimitError(KernelError):
    """The kernel exceeds a limit set by the caller; bounded work, never a hang."""


class IRError(SimError):
    """The bytes are not a valid program of this version."""

    code = "invalid_ir"


class TargetError(SimError):
    """Unknown target, or a target table that does not hold what it must."""

    code = "unknown_target"


class InputError(SimError):
    """Input arrays or arguments do not fit the program."""

    code = "invalid_input"


class ScheduleError(SimError):
    """The program does not fit on the chip, so no schedule exists; `checks` says why."""

    code = "unschedulable"
