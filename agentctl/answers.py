"""Dropping a command and waiting for its answer, which is in the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daemon.errors import DaemonError, NotAnswered, UnknownRun
from daemon.inbox import drop
from daemon.places import waiting
from daemon.verbs import Command, Fork, Steering, Submit, parse, run_id
from state.errors import NoLog, StreamUnknown
from state.events import (
    CommandCompleted,
    CommandRejected,
    EffectEnded,
    EvaluationCompleted,
    Event,
    KernelDiscarded,
    KernelKept,
)
from state.home import Layout
from state.lock import owner
from state.model import SYSTEM_STREAM, EffectKey, RunStatus
from state.reader import LogReader
from state.records import Recorded

QUEUED_AFTER_SECONDS = 2.0
TIMEOUT_SECONDS = 60.0
LOOK_SECONDS = 0.05
PAGE = 10_000
"""More events than a run has between a proposal and the decision on it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A command in the inbox; its answer will have a global seq above `after`."""

    id: str
    after: int


def send(home: Path, command: Command) -> Sent:
    """Drop `command` into the inbox of `home`."""
    after = head_seq(home)
    return Sent(drop(home, command), after)


def refuse_early(home: Path, command: Steering) -> None:
    """Refuse what the next owner of the home would refuse; while there is one, it is the one to say.

    Raises:
        UnknownRun: no run of that name is in the log, or waits to be taken up.
        CommandRefused, daemon.config.ConfigError: the run does not allow the command.
    """
    if owned(home) or command.run in {run for run, _ in queued_runs(home)}:
        return
    from daemon.commands import LIVE, steer

    with LogReader.open(home) as reader:
        if command.run not in reader.run_ids():
            raise UnknownRun.among(command.run, reader.run_ids())
        state = reader.state(command.run)
        if state.status not in LIVE or not waiting(home):  # what waits may change what a live run allows
            steer(command.run, state, command)


def queued_runs(home: Path) -> Iterator[tuple[str, Sent]]:
    """Yield the runs that wait for an owner to take them up, newest first, each with its command."""
    after = head_seq(home)  # before looking: an answer that comes meanwhile is not missed
    for path in reversed(waiting(home)):
        try:
            command = parse(path.read_bytes())
        except (OSError, DaemonError):
            continue  # the owner says what is wrong with it, or has just taken it
        problem = _problem(home, command)
        if problem is not None:
            yield run_id(path.stem, problem), Sent(path.stem, after)


def _problem(home: Path, command: Command) -> str | None:
    """Return the problem of the run that a command makes; None if it makes none, or one of a run unknown."""
    if isinstance(command, Submit):
        return command.config.problem
    if not isinstance(command, Fork):
        return None
    if command.files is not None:
        import seeds

        with suppress(seeds.SeedsError):  # its owner will say so
            return seeds.from_files(command.files).name
        return None
    with LogReader.open(home) as reader:
        return next((row["problem"] for row in reader.listed(command.run)), None)


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


@dataclass(frozen=True, slots=True)
class Fate:
    """What has become of a proposed kernel: its verdict, and whether it was kept; None while unknown."""

    verdict: Recorded | None
    decision: Recorded | None

    @property
    def correct(self) -> bool:
        event = self.verdict.event if self.verdict else None
        return isinstance(event, EvaluationCompleted) and event.evaluation.correct


def wait_for_fate(home: Path, run: str, candidate: str, after: int) -> Fate:
    """Wait until the run decided on `candidate`, ended or rests, or nobody owns the home any more."""
    while True:
        owner_left = not owned(home)  # before looking: what it did last is not missed
        with LogReader.open(home) as reader:
            state = reader.state(run)
            over = owner_left or state.ended or (state.status is RunStatus.PAUSED and not state.open)
            found = fate_of(reader, run, candidate, after)
        if over or found.decision is not None:
            return found
        time.sleep(LOOK_SECONDS)


def fate_of(reader: LogReader, run: str, candidate: str, after: int) -> Fate:
    """Return what the log says of `candidate` after a global seq."""
    types = ("EvaluationCompleted", "EvaluationFailed", "KernelDiscarded", "KernelKept")
    items = reader.read(stream=run, after=after, types=types, limit=PAGE)
    mine = [item for item in items if _about(item.event) == candidate]
    decided = [item for item in mine if isinstance(item.event, KernelKept | KernelDiscarded)]
    judged = [item for item in mine if item not in decided]
    return Fate(judged[-1] if judged else None, decided[0] if decided else None)


def _about(event: Event) -> str | None:
    """Return the id of the candidate that a verdict or a decision is about."""
    match event:
        case KernelKept(candidate=one):
            return one.id
        case KernelDiscarded(candidate=name):
            return name
        case EffectEnded(key=key):
            return EffectKey.parse(key).candidate
        case _:
            return None


def _look(home: Path, sent: Sent) -> CommandCompleted | None:
    try:
        with LogReader.open(home) as reader:
            return answer_to(reader, sent)
    except NoLog:
        return None
