"""Dropping a command and waiting for its answer, which is in the log."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from daemon.errors import DaemonError, NotAnswered
from daemon.inbox import drop, waiting
from daemon.verbs import Command, Submit, parse, run_id
from state.errors import NoLog, StreamUnknown
from state.events import CommandCompleted, CommandRejected
from state.home import Layout
from state.lock import owner
from state.model import SYSTEM_STREAM
from state.reader import LogReader

QUEUED_AFTER_SECONDS = 2.0
TIMEOUT_SECONDS = 60.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Sent:
    """A command in the inbox; its answer will have a global seq above `after`."""

    id: str
    after: int


def send(home: Path, command: Command) -> Sent:
    """Drop `command` into the inbox of `home`."""
    after = head_seq(home)
    return Sent(drop(home, command), after)


def queued_run(home: Path) -> tuple[str, Sent] | None:
    """Return the newest run that was submitted and waits for an owner to take it up, with its command."""
    after = head_seq(home)  # before looking: an answer that comes meanwhile is not missed
    for path in reversed(waiting(home)):
        try:
            command = parse(path.read_bytes())
        except (OSError, DaemonError):
            continue  # the owner says what is wrong with it, or has just taken it
        if isinstance(command, Submit):
            return run_id(path.stem, command.config.problem), Sent(path.stem, after)
    return None


def head_seq(home: Path) -> int:
    """Return the log's last global seq, 0 when there is no log yet, or not even a home."""
    if not home.exists():
        return 0
    try:
        with LogReader.open(home) as reader:
            return reader.head().seq
    except NoLog:
        return 0


def owned(home: Path) -> bool:
    """Return whether a process owns `home`."""
    return owner(Layout(home).lock) is not None


def answer_to(reader: LogReader, sent: Sent) -> CommandCompleted | None:
    """Return the answer to a command, None while there is none.

    Raises:
        DaemonError: the command was rejected; the error has the rejection's code.
    """
    try:
        found = reader.read(
            stream=SYSTEM_STREAM, after=sent.after, types=("CommandCompleted", "CommandRejected")
        )
    except StreamUnknown:
        return None
    for item in found:
        if isinstance(item.event, CommandRejected) and item.event.id == sent.id:
            error = item.event.error
            raise DaemonError(error.message, code=error.code, hint=error.hint)
        if isinstance(item.event, CommandCompleted) and item.event.id == sent.id:
            return item.event
    return None


def wait_for_answer(home: Path, sent: Sent) -> CommandCompleted | None:
    """Wait for the answer; None when nobody owns the home, so that the command is queued.

    Raises:
        DaemonError: the command was rejected.
        NotAnswered: the owner did not answer in time.
    """
    began = time.monotonic()
    while True:
        found = _look(home, sent)
        waited = time.monotonic() - began
        if found is not None:
            return found
        if waited > QUEUED_AFTER_SECONDS and not owned(home):
            return None
        if waited > TIMEOUT_SECONDS:
            raise NotAnswered(f"no answer to command {sent.id} in {TIMEOUT_SECONDS:g} s; it stays queued")
        time.sleep(LOOK_SECONDS)


def _look(home: Path, sent: Sent) -> CommandCompleted | None:
    try:
        with LogReader.open(home) as reader:
            return answer_to(reader, sent)
    except NoLog:
        return None
