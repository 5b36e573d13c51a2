"""The exception by which a stage ends a judgement; it carries the verdict."""

from __future__ import annotations

from state.model import ErrorInfo, Verdict


class RejectedError(Exception):
    """A stage's verdict."""

    def __init__(self, verdict: Verdict, code: str, message: str, line: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.verdict = verdict
        self.error = ErrorInfo(code=code, message=message, line=line or None, hint=hint or None)


def escape_unprintable(text: str) -> str:
    """Return a kernel's text without the control characters that a terminal obeys."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
