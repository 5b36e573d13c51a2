"""The errors of this room: each has a stable code, and its text is one line for people.

DaemonError
 +- BadFile          a file in the inbox is not a command at all
 +- CommandRefused   a command that cannot be carried out; becomes CommandRejected
 |   +- UnknownRun   it names a run that the log does not have
 +- NotAnswered      no answer to a command, or no end of a run, in the time given
"""

from __future__ import annotations

from typing import ClassVar

from state.model import ErrorInfo


class DaemonError(Exception):
    """Base of the room's errors; `code` is stable and `hint` says what would help."""

    default_code: ClassVar[str] = "daemon"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.hint = hint

    @property
    def info(self) -> ErrorInfo:
        return ErrorInfo(code=self.code, message=str(self), hint=self.hint)


class BadFile(DaemonError):  # noqa: N818 - named for what it is about
    default_code = "bad_file"


class CommandRefused(DaemonError):  # noqa: N818 - named for what happened to the command
    default_code = "refused"


class UnknownRun(CommandRefused):
    default_code = "unknown_run"


class NotAnswered(DaemonError):  # noqa: N818 - named for what did not happen
    default_code = "timeout"
