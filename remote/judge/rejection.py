"""How a stage ends a judgement: an exception that is the verdict."""

from __future__ import annotations

from nki_sim.errors import KernelError, LimitError
from state.model import ErrorInfo, Verdict


class RejectedError(Exception):
    """A stage's verdict."""

    def __init__(self, verdict: Verdict, code: str, message: str, line: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.verdict = verdict
        self.error = ErrorInfo(code=code, message=message, line=line or None, hint=hint or None)


def failed(verdict: Verdict, error: KernelError) -> RejectedError:
    """Return the kernel's error as this verdict, or as a timeout where it ran into a limit on its work."""
    endless = isinstance(error, LimitError) and error.code != "limit_memory"
    found = Verdict.TIMEOUT if endless else verdict
    return RejectedError(found, error.code, _shown(error.message), error.line, _shown(error.hint))


def _shown(text: str) -> str:
    """What a kernel says, without characters that a terminal obeys."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
