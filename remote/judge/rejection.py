"""The exceptions by which a stage ends a judgement: with a verdict, or with a failure that names it."""

from __future__ import annotations

from state.model import ErrorInfo, Verdict


class RejectedError(Exception):
    """A stage's verdict."""

    def __init__(self, verdict: Verdict, code: str, message: str, line: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.verdict = verdict
        self.error = ErrorInfo(code=code, message=message, line=line or None, hint=hint or None)


class StageFailedError(Exception):
    """A stage failed through no known fault of the kernel: no verdict, and the message names the stage."""

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(f"stage {stage}: {type(error).__name__}: {error}")


def escape_unprintable(text: str) -> str:
    """Return a kernel's text without the control characters that a terminal obeys."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
