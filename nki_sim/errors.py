"""The errors of the simulator: one tree, each with a stable code that callers may switch on.

SimError
|- KernelError        the kernel is at fault: code, message, line of the kernel's file, hint
|  |- RuleError       the program breaks a hardware rule, as a whole or on its data
|  `- LimitError      the kernel exceeds a limit of the caller (instructions, tensors)
|- IRError            the bytes are not a valid program
|- TargetError        the target is unknown, or its table is not valid
|- InputError         arrays or arguments do not fit the program
`- ScheduleError      the program cannot be scheduled (it does not fit on the chip)
"""

from __future__ import annotations

from typing import Any


def escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which a kernel may produce and UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()


class SimError(Exception):
    """Base of every error the simulator raises on purpose; `code` is stable, the text is not."""

    code = "sim_error"


class KernelError(SimError):
    """The kernel breaks a rule of the language or the hardware, or raises an exception of its own.

    `line` is the 1-based line of the kernel's own file, 0 if there is none. `filename` is that file when the
    kernel runs in the user's own process; it is empty when the caller already knows the file.
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

    `broken` lists all broken rules, this one first, if the whole program shows them.
    """

    broken: tuple[Any, ...] = ()


class LimitError(KernelError):
    """The kernel exceeds a limit set by the caller, so that work is bounded and never hangs."""


class IRError(SimError):
    """The bytes are not a valid program of this version."""

    code = "invalid_ir"


class TargetError(SimError):
    """The target is unknown, or its table lacks required entries."""

    code = "unknown_target"


class InputError(SimError):
    """Input arrays or arguments do not fit the program."""

    code = "invalid_input"


class ScheduleError(SimError):
    """The program does not fit on the chip, so no schedule exists; `checks` reports why."""

    code = "unschedulable"
