"""Carries out commands: how each becomes events, and how it gets its answer.

A command is first taken in (CommandReceived, its file's id being the idempotency key); then the run
events it causes and its answer (CommandCompleted or CommandRejected) are appended in one transaction. A
file seen again after a crash either has its answer, and nothing happens, or still waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import assert_never

import structlog
from pydantic import JsonValue

import remote
import seeds
from agent_core.proposers import ProposerError
from daemon import wording
from daemon.amend import JUDGED_BY, amended, changes, run_keys
from daemon.calls.till import all_lost, settled
from daemon.config import ConfigError
from daemon.errors import BadFile, CommandRefused, Preparing, UnknownEvent, UnknownRun
from daemon.forking import Cut, first_events
from daemon.names import unknown
from daemon.rewrites import handed_in
from daemon.verbs import (
    Approve,
    Cancel,
    Command,
    Forget,
    Fork,
    Learn,
    Pause,
    Propose,
    Resume,
    Set,
    Steering,
    Submit,
    origin_of,
    parse,
    run_id,
    verb_of,
)
from daemon.workers import Workers
from seeds.folder import KERNEL
from state.errors import DuplicateOutcome, EventRefused, StaleAppend, StateError, StreamUnknown
from state.events import (
    CommandCompleted,
    CommandReceived,
    CommandRejected,
    ConfigChanged,
    Event,
    KernelProposed,
    RunCancelled,
    RunCreated,
    RunForked,
    RunPaused,
    RunResumed,
)
from state.fold import RunState
from state.log import EventLog
from state.model import (
    PERSON,
    PERSON_SLOT,
    SYSTEM_STREAM,
    EffectKey,
    ErrorInfo,
    PauseCause,
    Role,
    RunConfig,
    RunStatus,
    digest_of,
)
from state.records import NewEvent

log: structlog.stdlib.BoundLogger = structlog.get_logger("commands")

Touched = Callable[[Command, str], None]
"""Called with a command and the run it concerned, once the log has the answer."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What a command comes to in one run: events, the blobs they name, and what its answer says besides.

    `parent` is what happens to the run that a fork continues, `beside` what else is stored with it.
    """

    events: tuple[Event, ...] = ()
    blobs: tuple[bytes, ...] = ()
    result: Mapping[str, JsonValue] = field(default_factory=dict)
    parent: tuple[Event, ...] = ()
    beside: tuple[NewEvent, ...] = ()


class Commands:
    """Takes commands into the log and answers them."""

    def __init__(
        self,
        log: EventLog,
        workers: Workers,
        *,
        touched: Touched,
        check: Callable[[RunConfig], list[str]] = lambda _: [],
    ) -> None:
        """`check` says what else is wrong with the configuration of a run that is to start."""
        self._log = log
        self._check = check
        self._workers = workers
        self._touched = touched
        self.turn = asyncio.Lock()
        """Held while settings are read, changed and stored; whoever else changes settings takes it too."""

    async def handle(self, id_: str, data: bytes) -> None:
        """Take in, carry out and answer the command `data`, whose file has the id `id_`.

        Raises:
            BadFile: `data` is no command, or the id belongs to another one.
            Preparing: it was taken in, and is carried out when it is handed in again, once that is done.
            state.errors.AppendError: the log could not store it; nothing was half-applied.
        """
        verb = verb_of(data)
        received = CommandReceived(id=id_, verb=verb, payload=digest_of(data), origin=origin_of(data))
        try:
            await self._log.append([NewEvent(SYSTEM_STREAM, received)], blobs=[data])
        except DuplicateOutcome as error:
            raise BadFile(f"the id {id_} belongs to another command") from error
        while id_ in self._log.system().pending:
            with suppress(StaleAppend):  # the run moved on between look and append: look again
                async with self.turn:
                    await self._answer(id_, data)

    async def _answer(self, id_: str, data: bytes) -> None:
        try:
            command = parse(data)
            run = await self._carry_out(id_, command)
        except (CommandRefused, ConfigError, EventRefused, DuplicateOutcome) as error:
            hint = error.hint if isinstance(error, CommandRefused) else None
            info = ErrorInfo(code=error.code, message=str(error), hint=hint)
            await self._log.append([NewEvent(SYSTEM_STREAM, CommandRejected(id=id_, error=info))])
            log.info("command_rejected", command=id_, code=info.code, error=info.message)
        except (StateError, Preparing):
            raise
        except Exception as error:  # no command may stop the runs, now and at each start to come
            log.exception("command_failed", command=id_)
            what = f"{type(error).__name__} in the daemon; see its log"
            info = ErrorInfo(code="internal_error", message=what)
            await self._log.append([NewEvent(SYSTEM_STREAM, CommandRejected(id=id_, error=info))])
        else:
            log.info("command_completed", verb=command.verb, run=run)
            if run:
                self._touched(command, run)

    async def _carry_out(self, id_: str, command: Command) -> str:
        """Append what `command` causes together with its answer; return the run, "" if it concerns none."""
        expect: dict[str, int] = {}  # a run that is there already refuses a second first event
        caused: list[NewEvent] = []
        if isinstance(command, Submit):
            created = create(command, self._workers)
            self._require_askable(created.config)
            run, carried = run_id(id_, created.problem.name), self._submitted(command, created)
        elif isinstance(command, Fork):
            state, last = self._look(command.run)
            run, carried = self._fork(id_, command, state, last=last)
            self._require_askable(*_settings_of(carried), before=state.config)
            caused = [NewEvent(command.run, event) for event in carried.parent]
            expect = {command.run: last} if caused else {}
        elif isinstance(command, Learn | Forget):
            event, blobs, said = handed_in(command, self._log.system())
            beside = (NewEvent(SYSTEM_STREAM, event),) if event is not None else ()
            run, carried = "", Carried(blobs=blobs, result=said, beside=beside)
        else:
            run = command.run
            state, expect[run] = self._look(run)
            carried = steer(run, state, command)
            self._require_askable(*_settings_of(carried), before=state.config)
        caused += [*(NewEvent(run, event) for event in carried.events), *carried.beside]
        named: dict[str, JsonValue] = {"run": run} if run else {}
        answer = CommandCompleted(id=id_, result={**named, **carried.result})
        await self._log.append([*caused, NewEvent(SYSTEM_STREAM, answer)], blobs=carried.blobs, expect=expect)
        return run

    def _require_askable(self, *after: RunConfig, before: RunConfig | None = None) -> None:
        """Make sure that models can be asked under new settings, as far as they could under those before.

        Raises:
            ConfigError: they cannot, and why.
        """
        known = self._check(before) if before is not None and after else []
        wrong = [fault for config in after for fault in self._check(config) if fault not in known]
        if wrong:
            raise ConfigError(dict.fromkeys(wrong))

    def _fork(self, id_: str, command: Fork, parent: RunState, *, last: int) -> tuple[str, Carried]:
        """Return a fork's id, and how it begins."""
        cut = self._cut(command, last)
        prompts = wording.in_force(self._log)
        events = first_events(command, cut, self._log, self._workers, prompts=prompts)
        rebase = events[0].rebase if isinstance(events[0], RunForked) else None
        problem = rebase.problem if rebase else cut.state.problem
        run = run_id(id_, problem.name)
        rewound = RunPaused(reason=f"rewound to event {cut.run_seq}: {run} goes on in its place")
        return run, Carried(
            events,
            (*(command.files.values() if command.files else ()), *self._told(events)),
            {
                "parent": cut.run,
                "seq": cut.run_seq,
                "abandoned": len(cut.state.open),
                "rejudged": rebase is not None,
            },
            parent=(rewound,) if command.rewind and parent.status is RunStatus.RUNNING else (),
        )

    def _submitted(self, command: Submit, created: RunCreated) -> Carried:
        prompts = wording.in_force(self._log)
        blobs = (*command.files.values(), _kernel(command), *wording.missing(self._log, prompts))
        return Carried((created.model_copy(update={"prompts": prompts}),), blobs)

    def _told(self, events: Iterable[Event]) -> Iterator[bytes]:
        """Yield the prompts that a fork's first events name and the log does not have."""
        for event in events:
            if isinstance(event, ConfigChanged) and event.prompts:
                yield from wording.missing(self._log, event.prompts)

    def _cut(self, command: Fork, last: int) -> Cut:
        at = last if command.seq is None else command.seq
        if at > last:
            raise UnknownEvent.beyond(command.run, at, last)
        state = self._log.state_at(command.run, at)
        while state.before is not None:  # within a record of decisions, which is made again as a whole
            at -= 1
            state = self._log.state_at(command.run, at)
        return Cut(command.run, at, state)

    def _look(self, run: str) -> tuple[RunState, int]:
        """Return a run's state, and a `run_seq` at or before it: one read too late is found out on append."""
        try:
            seen = self._log.run_seq(run)
            return self._log.state(run), seen
        except StreamUnknown as error:
            raise UnknownRun.among(run, self._log.run_ids()) from error


def _settings_of(carried: Carried) -> Iterator[RunConfig]:
    """Yield the new settings of a run that a command brings."""
    for event in carried.events:
        if isinstance(event, ConfigChanged):
            yield RunConfig.model_validate(event.config)
        elif isinstance(event, RunForked) and event.rebase is not None:
            yield event.rebase.config


def create(command: Submit, workers: Workers) -> RunCreated:
    """Return the first event of a run.

    Raises:
        CommandRefused: the problem, size, target, evaluator or a planner is not one, and why.
    """
    config = command.config
    try:
        problem = seeds.from_files(command.files)
        toolchain = workers.toolchain(config)
        for name in config.planner:
            workers.require_proposer(name)
        bounds = remote.bounds(problem, config.size, config.target)
    except (seeds.SeedsError, remote.RemoteError, ProposerError) as error:
        raise CommandRefused(str(error), code=error.code) from error
    return RunCreated(
        config=config.model_copy(update={"problem": problem.name}),
        problem=problem.ref(),
        kernel=digest_of(_kernel(command)),
        bounds=bounds,
        toolchain=toolchain,
        code_version=version("nki-kernel-agent"),
        pinned=command.pinned,
    )


def _kernel(command: Submit) -> bytes:
    """Return the source to start from; a problem that was checked has one of its own."""
    return command.files[KERNEL] if command.kernel is None else command.kernel.encode()


def steer(run: str, state: RunState, command: Steering) -> Carried:
    """Return what a command on an existing run comes to.

    Raises:
        CommandRefused: the run's status does not allow it.
        ConfigError: a setting is unknown, wrong, or kept by every run.
    """
    if state.status not in _ALLOWED.get(type(command), LIVE) or _rests(command, state):
        raise CommandRefused(f"{command.verb}: run {run} is {state.status}", code="illegal_state")
    match command:
        case Pause():
            return Carried((RunPaused(reason=command.reason),))
        case Resume():
            return _resumed(run, state, command)
        case Approve():
            return _approved(run, state, command)
        case Cancel():
            return _cancelled(run, state, command)
        case Propose():
            return _proposed(state, command)
        case Set():
            return _set(state, command)
        case _:
            assert_never(command)


LIVE = (RunStatus.RUNNING, RunStatus.PAUSED)
_ALLOWED: dict[type, tuple[RunStatus, ...]] = {Approve: (RunStatus.PAUSED,)}
"""The statuses in which a command is legal, where that is not every one of a run that has not ended."""


def _rests(command: Steering, state: RunState) -> bool:
    """Return whether a pause would change nothing: a person must end this one as it is."""
    paused_by_person = state.status is RunStatus.PAUSED and state.pause_cause is PauseCause.PERSON
    return isinstance(command, Pause) and paused_by_person


def _resumed(run: str, state: RunState, command: Resume) -> Carried:
    if state.needs_approval:
        waits = f"resume: run {run} {state.status_reason}"
        raise CommandRefused(waits, code="needs_approval", hint=f"agentctl approve {run}")
    paused = state.status is RunStatus.PAUSED
    return Carried((RunResumed(reason=command.reason),) if paused else ())


def _cancelled(run: str, state: RunState, command: Cancel) -> Carried:
    """End a run, and charge its calls under way at all that is held for them: nobody will hear of them."""
    gone = all_lost(state, state.open, reason="cancelled")
    return Carried(
        (*gone, RunCancelled(reason=command.reason)), beside=tuple(settled(run, one) for one in gone)
    )


def _approved(run: str, state: RunState, command: Approve) -> Carried:
    points = state.needs_approval
    if not points:
        raise CommandRefused(
            f"approve: run {run} waits for nobody's approval",
            code="illegal_state",
            hint=f"agentctl resume {run}",
        )
    return Carried((RunResumed(reason=command.reason, approved=points),), result={"approved": list(points)})


def _set(state: RunState, command: Set) -> Carried:
    before = state.pending_config or state.config
    after = amended(before, command.settings, keep=JUDGED_BY, look_up=unknown)
    found = changes(before, after)
    pinned = tuple(run_keys(command.settings))
    event = ConfigChanged(config=after.model_dump(mode="json"), pinned=pinned)
    changed: dict[str, JsonValue] = {key: [old, new] for key, (old, new) in found.items()}
    return Carried((event,) if found else (), result={"changed": changed, "from_round": state.round + 1})


def _proposed(state: RunState, command: Propose) -> Carried:
    source = command.source.encode()
    key = person_key(state)
    event = KernelProposed(key=str(key), source=digest_of(source), note=command.note, author=PERSON)
    return Carried((event,), (source,), {"candidate": key.candidate, "round": key.round})


def person_key(state: RunState) -> EffectKey:
    """Return the place of the next kernel that a person proposes: in this round while it is open for more."""
    round_ = state.round if state.joinable else state.round + 1
    taken = [
        key
        for key in map(EffectKey.parse, state.outcomes)
        if (key.round, key.slot, key.role) == (round_, PERSON_SLOT, Role.EXECUTOR)
    ]
    return EffectKey(round_, PERSON_SLOT, len(taken), 0, 0, Role.EXECUTOR)
