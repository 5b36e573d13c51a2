"""Sends a command to the inbox and waits for its answer in the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daemon.command_models import Command, Fork, SteeringCommand, Submit, parse_command, run_id
from daemon.errors import DaemonError, NotAnswered, UnknownRun
from daemon.home_paths import waiting_commands
from daemon.inbox import put_command
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
from state.home import HomeLayout
from state.lock import read_owner
from state.model import SYSTEM_STREAM, EffectKey, RunStatus
from state.reader import LogReader
from state.records import RecordedEvent

QUEUED_AFTER_SECONDS = 2.0
TIMEOUT_SECONDS = 60.0
LOOK_SECONDS = 0.05
PAGE = 10_000
"""More events than a run has between a proposal and the decision on it."""


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A command in the inbox; its answer will have a global seq above `after`."""

    id: str
    after: int


def send_command(home: Path, command: Command) -> SentCommand:
    """Put `command` into the inbox of `home`."""
    after = head_seq(home)
    return SentCommand(put_command(home, command), after)


def refuse_illegal_command(home: Path, command: SteeringCommand) -> None:
    """Refuse a command that the next owner of the home would refuse; a present owner decides by itself.

    Raises:
        UnknownRun: the log has no run of that name, and none is queued.
        CommandRefused, daemon.config.ConfigError: the run does not allow the command.
    """
    if is_owned(home) or command.run in {run for run, _ in queued_runs(home)}:
        return
    from daemon.commands import LIVE_STATUSES, steer_run

    with LogReader.open(home) as reader:
        if command.run not in reader.run_ids():
            raise UnknownRun.with_nearest(command.run, reader.run_ids())
        state = reader.run_state(command.run)
        # Waiting commands may change what a live run allows.
        if state.status not in LIVE_STATUSES or not waiting_commands(home):
            steer_run(command.run, state, command)


def queued_runs(home: Path) -> Iterator[tuple[str, SentCommand]]:
    """Yield the queued runs, newest first, each with its command."""
    after = head_seq(home)  # read first, so that an answer that arrives meanwhile is not missed
    for path in reversed(waiting_commands(home)):
        try:
            command = parse_command(path.read_bytes())
        except (OSError, DaemonError):
            continue  # the owner reports what is wrong with it, or has just taken it
        problem = _new_run_problem(home, command)
        if problem is not None:
            yield run_id(path.stem, problem), SentCommand(path.stem, after)


def _new_run_problem(home: Path, command: Command) -> str | None:
    """Return the problem of the run that a command creates; None if it creates none, or its parent is
    unknown.
    """
    if isinstance(command, Submit):
        return command.config.problem
    if not isinstance(command, Fork):
        return None
    if command.files is not None:
        import seeds

        with suppress(seeds.SeedsError):  # the owner reports it
            return seeds.build_problem(command.files).name
        return None
    with LogReader.open(home) as reader:
        return next((row["problem"] for row in reader.run_rows(command.run)), None)


def head_seq(home: Path) -> int:
    """Return the log's last global seq; 0 if there is no log or no home yet."""
    if not home.exists():
        return 0
    try:
        with LogReader.open(home) as reader:
            return reader.head.seq
    except NoLog:
        return 0


def is_owned(home: Path) -> bool:
    """Return whether a process owns `home`."""
    return read_owner(HomeLayout(home).lock) is not None


def find_answer(reader: LogReader, sent: SentCommand) -> CommandCompleted | None:
    """Return the answer to a command, None if there is none yet.

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


def wait_for_answer(
    home: Path, sent: SentCommand, *, seconds: float = TIMEOUT_SECONDS
) -> CommandCompleted | None:
    """Wait for the answer; return None if nobody owns the home, so that the command stays queued.

    `seconds` is how long an owner that has received the command may take to carry it out.

    Raises:
        DaemonError: the command was rejected.
        NotAnswered: the owner did not answer in time.
    """
    began = time.monotonic()
    while True:
        found = _read_answer(home, sent)
        waited = time.monotonic() - began
        if found is not None:
            return found
        if waited > QUEUED_AFTER_SECONDS and not is_owned(home):
            return None
        if waited > TIMEOUT_SECONDS and (waited > seconds or not _is_received(home, sent)):
            raise NotAnswered(f"no answer to command {sent.id} in {waited:.0f} s; it stays queued")
        time.sleep(LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class ProposalResult:
    """The result of a proposed kernel: its verdict, and the decision to keep it or not; None while
    unknown.
    """

    verdict: RecordedEvent | None
    decision: RecordedEvent | None

    @property
    def is_correct(self) -> bool:
        event = self.verdict.event if self.verdict else None
        return isinstance(event, EvaluationCompleted) and event.evaluation.is_correct


def wait_for_proposal_result(home: Path, run: str, candidate: str, after: int) -> ProposalResult:
    """Wait until `candidate` has a verdict, the run ended or paused, or nobody owns the home any more."""
    while True:
        owner_left = not is_owned(home)  # read first, so that the owner's last events are not missed
        with LogReader.open(home) as reader:
            state = reader.run_state(run)
            over = owner_left or state.has_ended or (state.status is RunStatus.PAUSED and not state.open)
            found = find_proposal_result(reader, run, candidate, after)
        if over or found.verdict is not None or found.decision is not None:
            return found
        time.sleep(LOOK_SECONDS)


def find_proposal_result(reader: LogReader, run: str, candidate: str, after: int) -> ProposalResult:
    """Return what the log has about `candidate` after a global seq."""
    types = ("EvaluationCompleted", "EvaluationFailed", "KernelDiscarded", "KernelKept")
    items = reader.read(stream=run, after=after, types=types, limit=PAGE)
    mine = [item for item in items if _candidate_of_event(item.event) == candidate]
    decided = [item for item in mine if isinstance(item.event, KernelKept | KernelDiscarded)]
    judged = [item for item in mine if item not in decided]
    return ProposalResult(judged[-1] if judged else None, decided[0] if decided else None)


def _candidate_of_event(event: Event) -> str | None:
    """Return the id of the candidate that a verdict or a decision is about."""
    match event:
        case KernelKept(candidate=one):
            return one.id
        case KernelDiscarded(candidate=name):
            return name
        case EffectEnded(key=key):
            return EffectKey.parse(key).candidate_id
        case _:
            return None


def _is_received(home: Path, sent: SentCommand) -> bool:
    with LogReader.open(home) as reader:
        return sent.id in reader.system_state().pending


def _read_answer(home: Path, sent: SentCommand) -> CommandCompleted | None:
    try:
        with LogReader.open(home) as reader:
            return find_answer(reader, sent)
    except NoLog:
        return None
