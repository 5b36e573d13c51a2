"""Carries out commands: turns each into events and its answer.

A command is first recorded (CommandReceived; its file's id is the idempotency key). Then its run events
and its answer (CommandCompleted or CommandRejected) are appended in one transaction. If a file is read
again after a crash, it either has its answer, and nothing happens, or it is still pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar, assert_never

from pydantic import JsonValue

import remote
import seeds
from agent_core.proposers import ProposerError, require_known_proposer
from daemon import prompt_overrides
from daemon.calls.budget_ledger import lost_work
from daemon.command_models import (
    MAX_MESSAGE,
    Approve,
    Calibrate,
    Cancel,
    Command,
    CommandOrigin,
    Compact,
    Forget,
    Fork,
    Learn,
    Pause,
    Propose,
    Resume,
    Set,
    SteeringCommand,
    Submit,
    parse_command,
    read_origin,
    read_verb,
    run_id,
)
from daemon.config import ConfigError
from daemon.errors import BadFile, CommandRefused, EvaluatorPreparing, UnknownEvent, UnknownRun
from daemon.experience_files import apply_experience_command
from daemon.fork_events import ForkPoint, build_fork_events
from daemon.name_checks import find_unknown_names
from daemon.run_settings import EVALUATION_KEYS, apply_settings, diff_configs, expand_run_keys
from daemon.structured_log import structlog
from daemon.workers import Workers
from remote.registry import require_evaluator
from state.errors import (
    BadArchive,
    DuplicateOutcome,
    EventRefused,
    RunKept,
    StaleAppend,
    StateError,
    StorageFailed,
    StreamUnknown,
)
from state.events import (
    CommandCompleted,
    CommandReceived,
    CommandRejected,
    ConfigChanged,
    DeviceCalibrated,
    Event,
    KernelProposed,
    RunCancelled,
    RunCreated,
    RunForked,
    RunPaused,
    RunResumed,
)
from state.fold import RunState
from state.json_bounds import cut_text
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
    StartName,
    digest_of,
)
from state.records import NewEvent
from targets.registry import load_target, starting_kernel

log: structlog.stdlib.BoundLogger = structlog.get_logger("commands")

CommandListener = Callable[[Command, str], None]
"""Called with a command and the run that it concerned, once its answer is in the log."""


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The effect of a command on one run: events, the blobs that they name, and extra fields for the
    answer.

    `parent` are events of the run that a fork continues; `beside` are events of other streams.
    """

    events: tuple[Event, ...] = ()
    blobs: tuple[bytes, ...] = ()
    result: Mapping[str, JsonValue] = field(default_factory=dict)
    parent: tuple[Event, ...] = ()
    beside: tuple[NewEvent, ...] = ()


LARGE_BYTES = 1 << 16
"""A command longer than this is parsed in a thread: the loop must go on feeding the watchdog."""

Read = TypeVar("Read")


async def _work_on(data: bytes, read: Callable[[bytes], Read]) -> Read:
    return read(data) if len(data) <= LARGE_BYTES else await asyncio.to_thread(read, data)


def _read_head(data: bytes) -> tuple[str, CommandOrigin | None]:
    return read_verb(data), read_origin(data)


class CommandHandler:
    """Records commands in the log and answers them."""

    def __init__(
        self,
        log: EventLog,
        workers: Workers,
        *,
        touched: CommandListener,
        check: Callable[[RunConfig], list[str]] = lambda _: [],
        check_prices: Callable[[RunConfig], list[str]] = lambda _: [],
    ) -> None:
        """`check` returns further faults in the configuration of a run that is to start.

        `check_prices` returns why its cap in US$ cannot be kept.
        """
        self._check_prices = check_prices
        self._log = log
        self._check = check
        self._workers = workers
        self._touched = touched
        self.step: Callable[[], None] = lambda: None
        """Called as a long command goes on."""
        self.turn = asyncio.Lock()
        """Held while settings are read, changed and stored. Any other code that changes settings must
        take it too.
        """

    async def handle(self, id_: str, data: bytes) -> None:
        """Record, carry out and answer the command `data`, whose file has the id `id_`.

        Raises:
            BadFile: `data` is no command, or the id belongs to another command.
            EvaluatorPreparing: the command was recorded, but an evaluator is being prepared; call again
                when it is done.
            state.errors.AppendError: the log could not store it; nothing was half-applied.
        """
        verb, origin = await _work_on(data, _read_head)
        received = CommandReceived(id=id_, verb=verb, payload=digest_of(data), origin=origin)
        try:
            await self._log.append([NewEvent(SYSTEM_STREAM, received)], blobs=[data])
        except DuplicateOutcome as error:
            raise BadFile(f"the id {id_} belongs to another command") from error
        while id_ in self._log.system_state().pending:
            with suppress(StaleAppend):  # the run moved on between the read and the append, so try again
                async with self.turn:
                    await self._answer_command(id_, data)

    async def _answer_command(self, id_: str, data: bytes) -> None:
        try:
            command = await _work_on(data, parse_command)
            run = await self._execute_command(id_, command)
        except (CommandRefused, ConfigError, EventRefused, DuplicateOutcome) as error:
            hint = error.hint if isinstance(error, CommandRefused) else None
            message = cut_text(str(error), MAX_MESSAGE)
            info = ErrorInfo(code=error.code, message=message, hint=hint and cut_text(hint, MAX_MESSAGE))
            await self._log.append([NewEvent(SYSTEM_STREAM, CommandRejected(id=id_, error=info))])
            log.info("command_rejected", command=id_, code=info.code, error=info.message)
        except (StateError, EvaluatorPreparing):
            raise
        except Exception as error:  # no command may stop the runs, now or at any later start
            log.exception("command_failed", command=id_)
            what = f"{type(error).__name__} in the daemon; see its log"
            info = ErrorInfo(code="internal_error", message=what)
            await self._log.append([NewEvent(SYSTEM_STREAM, CommandRejected(id=id_, error=info))])
        else:
            log.info("command_completed", verb=command.verb, run=run)
            if run:
                self._touched(command, run)

    async def _execute_command(self, id_: str, command: Command) -> str:
        """Append the events of `command` with its answer; return the run, or "" if it concerns none."""
        expect: dict[str, int] = {}  # a new run needs no entry: an existing run refuses a second first event
        caused: list[NewEvent] = []
        if isinstance(command, Submit):
            created = create_run(command, self._workers)
            self._require_models(created.config)
            if not command.allow_unknown_prices:
                self._require_prices(created.config, otherwise=", or give --allow-unknown-prices")
            run, carried = run_id(id_, created.problem.name), self._prepare_submit(command, created)
        elif isinstance(command, Fork):
            state, last = self._look_up_run(command.run)
            run, carried = self._prepare_fork(id_, command, state, last=last)
            self._require_models(*_new_settings(carried), before=state.config)
            self._require_prices(*_new_settings(carried), before=state.config)
            caused = [NewEvent(command.run, event) for event in carried.parent]
            expect = {command.run: last} if caused else {}
        elif isinstance(command, Learn | Forget):
            event, blobs, said = apply_experience_command(command, self._log.system_state())
            beside = (NewEvent(SYSTEM_STREAM, event),) if event is not None else ()
            run, carried = "", CommandOutcome(blobs=blobs, result=said, beside=beside)
        elif isinstance(command, Calibrate):
            event = DeviceCalibrated(calibration=command.calibration)
            result: dict[str, JsonValue] = {"calibration": command.calibration.name}
            run, carried = "", CommandOutcome(result=result, beside=(NewEvent(SYSTEM_STREAM, event),))
        elif isinstance(command, Compact):
            run, carried = "", await self._compact_log(command)
        else:
            run = command.run
            state, expect[run] = self._look_up_run(run)
            carried = steer_run(run, state, command)
            self._require_models(*_new_settings(carried), before=state.config)
            self._require_prices(*_new_settings(carried), before=state.config)
        caused += [*(NewEvent(run, event) for event in carried.events), *carried.beside]
        named: dict[str, JsonValue] = {"run": run} if run else {}
        answer = CommandCompleted(id=id_, result={**named, **carried.result})
        await self._log.append([*caused, NewEvent(SYSTEM_STREAM, answer)], blobs=carried.blobs, expect=expect)
        return run

    async def _compact_log(self, command: Compact) -> CommandOutcome:
        """Compact the log while runs go on; other commands wait until it is done.

        Raises:
            CommandRefused: it cannot be compacted; the log is as it was.
        """
        from state.online_compaction import compact_open_log

        paths = [Path(name) for name in command.archives]
        try:
            done = await asyncio.to_thread(
                compact_open_log, self._log, paths, progress=lambda *_: self.step()
            )
        except (BadArchive, StreamUnknown, RunKept, StorageFailed) as error:
            raise CommandRefused(str(error), code=error.code) from error
        answer = done.event.model_dump(mode="json", exclude={"type"})
        return CommandOutcome(result={**answer, "events": done.report.events, "kept": None})

    def _require_models(self, *after: RunConfig, before: RunConfig | None = None) -> None:
        """Check that models can be asked under the new settings; faults that the old settings had do not
        count.

        Raises:
            ConfigError: they cannot; the error says why.
        """
        known = self._check(before) if before is not None and after else []
        wrong = [fault for config in after for fault in self._check(config) if fault not in known]
        if wrong:
            raise ConfigError(dict.fromkeys(wrong))

    def _require_prices(
        self, *after: RunConfig, before: RunConfig | None = None, otherwise: str = ""
    ) -> None:
        """Check that the cap in US$ can be kept under the new settings; models of the old ones do not count.

        Raises:
            ConfigError: it cannot; the error says what to set, or `otherwise`.
        """
        wrong: list[str] = []
        for config in after:
            former = before and before.model_copy(update={"cap_usd": config.cap_usd})
            known = self._check_prices(former) if former is not None else []
            wrong += [f"{fault}{otherwise}" for fault in self._check_prices(config) if fault not in known]
        if wrong:
            raise ConfigError(dict.fromkeys(wrong))

    def _prepare_fork(
        self, id_: str, command: Fork, parent: RunState, *, last: int
    ) -> tuple[str, CommandOutcome]:
        """Return a fork's run id, and its first events."""
        cut = self._find_fork_point(command, last)
        prompts = prompt_overrides.prompts_in_force(self._log)
        events = build_fork_events(command, cut, self._log, self._workers, prompts=prompts)
        rebase = events[0].rebase if isinstance(events[0], RunForked) else None
        problem = rebase.problem if rebase else cut.state.problem
        run = run_id(id_, problem.name)
        rewound = RunPaused(reason=f"rewound to event {cut.run_seq}: {run} goes on in its place")
        return run, CommandOutcome(
            events,
            (*(command.files.values() if command.files else ()), *self._missing_prompts(events)),
            {
                "parent": cut.run,
                "seq": cut.run_seq,
                "abandoned": len(cut.state.open),
                "rejudged": rebase is not None,
            },
            parent=(rewound,) if command.rewind and parent.status is RunStatus.RUNNING else (),
        )

    def _prepare_submit(self, command: Submit, created: RunCreated) -> CommandOutcome:
        prompts = prompt_overrides.prompts_in_force(self._log)
        blobs = (
            *command.files.values(),
            *filter(None, (_kernel_source(command),)),
            *prompt_overrides.missing_prompt_blobs(self._log, prompts),
        )
        return CommandOutcome((created.model_copy(update={"prompts": prompts}),), blobs)

    def _missing_prompts(self, events: Iterable[Event]) -> Iterator[bytes]:
        """Yield the prompts that a fork's first events name and the log does not have."""
        for event in events:
            if isinstance(event, ConfigChanged) and event.prompts:
                yield from prompt_overrides.missing_prompt_blobs(self._log, event.prompts)

    def _find_fork_point(self, command: Fork, last: int) -> ForkPoint:
        at = last if command.seq is None else command.seq
        if at > last:
            raise UnknownEvent.with_last_event(command.run, at, last)
        state = self._log.run_state(command.run, at)
        while state.before is not None:  # inside a record of decisions, which can only be repeated as a whole
            at -= 1
            state = self._log.run_state(command.run, at)
        return ForkPoint(command.run, at, state)

    def _look_up_run(self, run: str) -> tuple[RunState, int]:
        """Return a run's state and its `run_seq`. The state may be newer; `expect` then makes the append
        fail.
        """
        try:
            seen = self._log.run_seq(run)
            return self._log.run_state(run), seen
        except StreamUnknown as error:
            raise UnknownRun.with_nearest(run, self._log.run_ids()) from error


def _new_settings(carried: CommandOutcome) -> Iterator[RunConfig]:
    """Yield the new settings of a run that a command brings."""
    for event in carried.events:
        if isinstance(event, ConfigChanged):
            yield RunConfig.model_validate(event.config)
        elif isinstance(event, RunForked) and event.rebase is not None:
            yield event.rebase.config


def create_run(command: Submit, workers: Workers) -> RunCreated:
    """Return the first event of a run.

    Raises:
        CommandRefused: the problem, size, target, evaluator or a planner is unknown or does not fit.
    """
    config = command.config
    try:
        problem = seeds.build_problem(command.files)
        toolchain = workers.get_toolchain(config)
        for name in config.planner:
            workers.require_proposer(name)
        bounds = remote.compute_bounds(problem, config.size, config.target)
        for name in config.planner:
            require_known_proposer(name, config.target)
        require_evaluator(config.evaluator, config.target)
        starts = _select_starts(command, problem, workers)
    except (seeds.SeedsError, remote.RemoteError, ProposerError) as error:
        raise CommandRefused(str(error), code=error.code) from error
    return RunCreated(
        config=config.model_copy(update={"problem": problem.name}),
        problem=problem.make_ref(),
        kernel=digest_of(source) if (source := _kernel_source(command)) is not None else None,
        bounds=bounds,
        toolchain=toolchain,
        code_version=version("nki-kernel-agent"),
        pinned=command.pinned,
        starts=starts,
    )


def _select_starts(command: Submit, problem: seeds.Problem, workers: Workers) -> tuple[StartName, ...]:
    """Return the kernels that a run begins from: those that are wanted and that there can be.

    Raises:
        CommandRefused: a translation is wanted, and the target has no translator.
        seeds.NoStartingKernelError: the problem has no kernel, and nothing else to begin from.
    """
    target = load_target(command.config.target)
    wanted = command.config.starts
    translates = workers.translator is not None and target.parts.translator is not None
    if wanted == "translation" and not translates:
        raise CommandRefused(f"run.starts is translation, and {target.name} has no translator")
    found: list[StartName] = []
    if wanted != "translation":
        if _kernel_source(command) is not None:
            found.append("kernel")
        elif wanted == "kernel" or not translates:
            starting_kernel(problem, target.name)
    if wanted != "kernel" and translates:
        found.append("translation")
    return tuple(found)


def _kernel_source(command: Submit) -> bytes | None:
    """Return the starting kernel: the command's own, or the problem's; None if there is none."""
    if command.kernel is not None:
        return command.kernel.encode()
    return command.files.get(load_target(command.config.target).language.kernel_file)


def steer_run(run: str, state: RunState, command: SteeringCommand) -> CommandOutcome:
    """Return the outcome of a command on an existing run.

    Raises:
        CommandRefused: the run's status does not allow it.
        ConfigError: a setting is unknown, wrong, or one that runs cannot change.
    """
    if state.status not in _LEGAL_STATUSES.get(type(command), LIVE_STATUSES) or _is_redundant_pause(
        command, state
    ):
        raise CommandRefused(f"{command.verb}: run {run} is {state.status}", code="illegal_state")
    match command:
        case Pause():
            return CommandOutcome((RunPaused(reason=command.reason),))
        case Resume():
            return _resume_run(run, state, command)
        case Approve():
            return _approve_run(run, state, command)
        case Cancel():
            return _cancel_run(run, state, command)
        case Propose():
            return _propose_kernel(state, command)
        case Set():
            return _change_settings(state, command)
        case _:
            assert_never(command)


LIVE_STATUSES = (RunStatus.RUNNING, RunStatus.PAUSED)
_LEGAL_STATUSES: dict[type, tuple[RunStatus, ...]] = {Approve: (RunStatus.PAUSED,)}
"""The statuses in which a command is legal; other commands are legal in `LIVE_STATUSES`."""


def _is_redundant_pause(command: SteeringCommand, state: RunState) -> bool:
    """Return whether a pause would change nothing because a person has already paused the run."""
    paused_by_person = state.status is RunStatus.PAUSED and state.pause_cause is PauseCause.PERSON
    return isinstance(command, Pause) and paused_by_person


def _resume_run(run: str, state: RunState, command: Resume) -> CommandOutcome:
    if state.needs_approval:
        waits = f"resume: run {run} {state.status_reason}"
        raise CommandRefused(waits, code="needs_approval", hint=f"agentctl approve {run}")
    paused = state.status is RunStatus.PAUSED
    return CommandOutcome((RunResumed(reason=command.reason),) if paused else ())


def _cancel_run(run: str, state: RunState, command: Cancel) -> CommandOutcome:
    """End a run. Its calls and agents under way are charged in full, because nobody awaits their end."""
    gone, settled = lost_work(run, state, state.open, reason="cancelled")
    return CommandOutcome((*gone, RunCancelled(reason=command.reason)), beside=settled)


def _approve_run(run: str, state: RunState, command: Approve) -> CommandOutcome:
    points = state.needs_approval
    if not points:
        raise CommandRefused(
            f"approve: run {run} does not wait for approval",
            code="illegal_state",
            hint=f"agentctl resume {run}",
        )
    return CommandOutcome(
        (RunResumed(reason=command.reason, approved=points),), result={"approved": list(points)}
    )


def _change_settings(state: RunState, command: Set) -> CommandOutcome:
    before = state.pending_config or state.config
    after = apply_settings(before, command.settings, keep=EVALUATION_KEYS, look_up=find_unknown_names)
    found = diff_configs(before, after)
    pinned = tuple(expand_run_keys(command.settings))
    event = ConfigChanged(config=after.model_dump(mode="json"), pinned=pinned)
    changed: dict[str, JsonValue] = {key: [old, new] for key, (old, new) in found.items()}
    return CommandOutcome(
        (event,) if found else (), result={"changed": changed, "from_round": state.round + 1}
    )


def _propose_kernel(state: RunState, command: Propose) -> CommandOutcome:
    source = command.source.encode()
    key = next_person_key(state)
    event = KernelProposed(key=str(key), source=digest_of(source), note=command.note, author=PERSON)
    return CommandOutcome((event,), (source,), {"candidate": key.candidate_id, "round": key.round})


def next_person_key(state: RunState) -> EffectKey:
    """Return the key for the next kernel that a person proposes: in this round while it still accepts
    kernels.
    """
    round_ = state.round if state.is_joinable else state.round + 1
    taken = [
        key
        for key in map(EffectKey.parse, state.outcomes)
        if (key.round, key.slot, key.role) == (round_, PERSON_SLOT, Role.EXECUTOR)
    ]
    return EffectKey(round_, PERSON_SLOT, len(taken), 0, 0, Role.EXECUTOR)
