"""Events of the system stream: commands and their answers, and rebuilds of the log itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from state.events.base import Event
from state.model import Digest, ErrorInfo


class CommandReceived(Event):
    """A file from the inbox was accepted; `id` is the file's id, `payload` its whole content.

    `origin` is where the command was given: `agentctl`, `page` or `mcp`; None if the file does not say.
    """

    version = 2
    family = "command"
    type: Literal["CommandReceived"] = "CommandReceived"
    id: str
    verb: str
    payload: Digest
    origin: str | None = None


class CommandCompleted(Event):
    family = "command"
    type: Literal["CommandCompleted"] = "CommandCompleted"
    id: str
    result: JsonValue = None


class CommandRejected(Event):
    family = "command"
    type: Literal["CommandRejected"] = "CommandRejected"
    id: str
    error: ErrorInfo


class LogRewritten(Event):
    """The log's file was rebuilt while no process owned it, by `verb`; `runs` says what changed for each run.

    Events that are no longer in the log left a gap in its numbers; `taken_out` counts them.
    """

    family = "log"
    type: Literal["LogRewritten"] = "LogRewritten"
    verb: Literal["compact", "import", "repair", "restore"]
    detail: str
    runs: dict[str, str] = Field(default_factory=dict)
    taken_out: int = Field(default=0, ge=0)
