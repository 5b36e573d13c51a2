"""The errors of problems, as one tree; each has a stable `code`.

SeedsError
|-- UnknownProblemError    unknown_problem     neither a known name nor a folder
|-- UnknownSizeError       unknown_size        the problem has no such size
|-- NoStartingKernelError  no_starting_kernel  no starting kernel in a target's language
|-- ExpressionError        bad_expression      not a valid size expression or array change
|-- ScaffoldError          not_created         a new problem cannot be written
`-- SpecError              invalid_problem     a problem's files are wrong; lists every fault
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def describe_unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return one line with the unknown name, the nearest known one, and all known ones."""
    names = sorted(known)
    return f"unknown {kind} {name!r}{suggest_nearest(name, names)} (known: {', '.join(names) or 'none'})"


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """Return a "did you mean" question for the nearest known name; empty if none is near."""
    close = get_close_matches(name, sorted(known), n=1)
    return f" - did you mean {close[0]!r}?" if close else ""


class SeedsError(Exception):
    """Base of this room's errors."""

    code = "seeds_error"


class _UnknownError(SeedsError):
    """A name that is not known."""

    kind = "name"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(describe_unknown(self.kind, name, known))


class UnknownProblemError(_UnknownError):
    """No problem of that name, and no folder at that path."""

    code = "unknown_problem"
    kind = "problem"


class UnknownSizeError(_UnknownError):
    """The problem has no size of that name."""

    code = "unknown_size"
    kind = "size"


class NoStartingKernelError(SeedsError):
    """The problem has no starting kernel in the language of a target."""

    code = "no_starting_kernel"

    def __init__(self, problem: str, file: str, there: Iterable[str]) -> None:
        others = f"it has {', '.join(there)}" if there else "write one, or name another with --kernel"
        super().__init__(f"problem {problem!r} has no {file} to start from ({others})")


class ExpressionError(SeedsError):
    """Text that is not an integer expression over known dimensions, or not a known change of an array."""

    code = "bad_expression"


class ScaffoldError(SeedsError):
    """A new problem whose name or place is not allowed."""

    code = "not_created"


class SpecError(SeedsError):
    """A problem with invalid files; `faults` holds every fault, one line each."""

    code = "invalid_problem"

    def __init__(self, problem: str, faults: Iterable[str]) -> None:
        self.problem = problem
        self.faults = tuple(faults)
        count = f"{len(self.faults)} fault{'s' if len(self.faults) != 1 else ''}"
        super().__init__("\n  - ".join([f"problem {problem!r} has {count}:", *self.faults]))
