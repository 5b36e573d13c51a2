"""Events of the system stream: commands and their answers, and the log's own rewrites."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from state.events.base import Event
from state.model import Digest, ErrorInfo


class CommandReceived(Event):
    """A file from the inbox was taken in; `id` is the file's id, `payload` its whole content.

    `origin` is where it was given: `agentctl` or `page`; None where the file says nothing of it.
    """

    version = 2
    type: Literal["CommandReceived"] = "CommandReceived"
    id: str
    verb: str
    payload: Digest
    origin: str | None = None


class CommandCompleted(Event):
    type: Literal["CommandCompleted"] = "CommandCompleted"
    id: str
    result: JsonValue = None


class CommandRejected(Event):
    type: Literal["CommandRejected"] = "CommandRejected"
    id: str
    error: ErrorInfo


class LogRewritten(Event):
    """The log's file was made anew, its owner stopped: `verb` says by what, `runs` what it meant for each.

    Events that are in the log no longer left a gap in its numbers; `taken_out` is how many.
    """

    type: Literal["LogRewritten"] = "LogRewritten"
    verb: Literal["compact", "import", "repair", "restore"]
    detail: str
    runs: dict[str, str] = Field(default_factory=dict)
    taken_out: int = Field(default=0, ge=0)
