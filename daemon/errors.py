"""The errors of this package. Each has a stable code and a one-line message for people.

DaemonError
+- BadFile          a file in the inbox is not a command at all
+- CommandRefused   a command cannot be carried out; it is logged as CommandRejected
|   +- UnknownRun   it names a run that is not in the log
|   +- UnknownEvent it names an event that the run does not have
|   +- UnknownExperience it names an experience that the home does not have
+- NotAnswered      a command was not answered, or a run did not end, in the given time
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar, Self

from state.model import ErrorInfo

if TYPE_CHECKING:
    import asyncio


class DaemonError(Exception):
    """Base of this package's errors; `code` is stable, and `hint` says what you can do."""

    default_code: ClassVar[str] = "daemon"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.hint = hint

    @classmethod
    def for_unknown_name(cls, kind: str, name: str, known: Iterable[str], *, code: str) -> Self:
        """Return the error for an unknown name; its hint is the nearest known name."""
        close = get_close_matches(name, known, n=1)
        return cls(f"unknown {kind} {name!r}", code=code, hint=f"did you mean {close[0]}?" if close else None)

    @property
    def info(self) -> ErrorInfo:
        return ErrorInfo(code=self.code, message=str(self), hint=self.hint)


class EvaluatorPreparing(Exception):  # noqa: N818 - not a failure: ask again when `done` is set
    """An evaluator is not ready yet. `done` resolves when it is ready, or when its preparation failed."""

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
        """Return the error for `run`; its hint is the nearest known run."""
        close = get_close_matches(run, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "agentctl status lists the runs"
        return cls(f"unknown run {run!r}", hint=hint)


class UnknownEvent(CommandRefused):
    default_code = "unknown_event"

    @classmethod
    def with_last_event(cls, run: str, run_seq: int, last: int) -> Self:
        """Return the error for an event number that the run does not have; its hint is the run's last
        event.
        """
        return cls(f"run {run} has no event {run_seq}", hint=f"its last is {run}@{last}")


class UnknownExperience(CommandRefused):
    default_code = "unknown_experience"

    @classmethod
    def for_id(cls, id_: str) -> Self:
        """Return the error for an id that matches no experience of the home, or is a prefix of several."""
        return cls(f"no experience {id_!r}", hint="agentctl memory list has their ids")


class NotAnswered(DaemonError):  # noqa: N818 - named for what did not happen
    default_code = "timeout"
