"""The errors of this room: each has a stable code, and its text is one line for people.

DaemonError
 +- BadFile          a file in the inbox is not a command at all
 +- CommandRefused   a command that cannot be carried out; becomes CommandRejected
 |   +- UnknownRun   it names a run that the log does not have
 |   +- UnknownEvent it names an event that the run does not have
 |   +- UnknownExperience it names an experience that the home does not have
 +- NotAnswered      no answer to a command, or no end of a run, in the time given
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar, Self

from state.model import ErrorInfo

if TYPE_CHECKING:
    import asyncio


class DaemonError(Exception):
    """Base of the room's errors; `code` is stable and `hint` says what would help."""

    default_code: ClassVar[str] = "daemon"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.hint = hint

    @classmethod
    def for_unknown_name(cls, kind: str, name: str, known: Iterable[str], *, code: str) -> Self:
        """Return the error for a name that nothing of a kind has, with the nearest that something has."""
        close = get_close_matches(name, known, n=1)
        return cls(f"unknown {kind} {name!r}", code=code, hint=f"did you mean {close[0]}?" if close else None)

    @property
    def info(self) -> ErrorInfo:
        return ErrorInfo(code=self.code, message=str(self), hint=self.hint)


class EvaluatorPreparing(Exception):  # noqa: N818 - no error: what was asked for comes later
    """An evaluator is not ready yet; `done` is when it is, or cannot be made so."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        super().__init__("an evaluator is being prepared")
        self.done = done


class BadFile(DaemonError):  # noqa: N818 - named for what it is about
    default_code = "bad_file"


class CommandRefused(DaemonError):  # noqa: N818 - named for what happened to the command
    default_code = "refused"


class UnknownRun(CommandRefused):
    default_code = "unknown_run"

    @classmethod
    def with_nearest(cls, run: str, known: Iterable[str]) -> Self:
        """Return the error for `run`, naming the nearest of the runs that are there."""
        close = get_close_matches(run, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "agentctl status lists the runs"
        return cls(f"unknown run {run!r}", hint=hint)


class UnknownEvent(CommandRefused):
    default_code = "unknown_event"

    @classmethod
    def with_last_event(cls, run: str, run_seq: int, last: int) -> Self:
        """Return the error for an event number that the run does not have, naming its last one."""
        return cls(f"run {run} has no event {run_seq}", hint=f"its last is {run}@{last}")


class UnknownExperience(CommandRefused):
    default_code = "unknown_experience"

    @classmethod
    def for_id(cls, id_: str) -> Self:
        """Return the error for an id that no experience of the home has, or more than one begins with."""
        return cls(f"no experience {id_!r}", hint="agentctl memory list has their ids")


class NotAnswered(DaemonError):  # noqa: N818 - named for what did not happen
    default_code = "timeout"
